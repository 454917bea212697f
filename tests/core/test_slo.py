"""What headers, classes, keys, models and routes promise a request; nonsense names its header."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.config import ClassSpec
from gateway.slo import NEVER, Asked, ClassBook, Promise, SloError, asked

CHAT = ClassSpec("chat", ttft_ms=1000, tpot_ms=50, models=("m",), priorities=(-1,))
BATCH = ClassSpec("batch", e2e_ms=600_000, strict=True, routes=("completions",), priorities=(5, 6))
BOOK = ClassBook((CHAT, BATCH))


@pytest.mark.parametrize(
    "name", [b"x-slo-ttft-ms", b"x-llm-d-slo-ttft-ms", b"x-dynamo-slo-ttft-ms"], ids=lambda name: name.decode()
)
def test_every_name_for_a_ttft_target(name: bytes) -> None:
    assert asked({name: b"250"}) == Asked(ttft_s=0.25)
    assert asked({name: b" 12.5 "}) == Asked(ttft_s=0.0125)


@pytest.mark.parametrize("name", [b"x-slo-tpot-ms", b"x-llm-d-slo-tpot-ms", b"x-dynamo-slo-tpot-ms"])
def test_every_name_for_a_tpot_target(name: bytes) -> None:
    assert asked({name: b"40"}) == Asked(tpot_s=0.04)


def test_of_two_targets_the_shorter_counts() -> None:
    assert asked({b"x-slo-ttft-ms": b"900", b"x-llm-d-slo-ttft-ms": b"300"}) == Asked(ttft_s=0.3)


def test_a_head_that_says_nothing_costs_nothing() -> None:
    assert asked({b"host": b"x", b"content-type": b"application/json", b"x-slo": b"1"}) is None


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *(
            (b"x-slo-ttft-ms", text)
            for text in (b"", b"0", b"-1", b"soon", b"1e3", b"1_0", b"inf", b"nan", b"86400001", b"1.2.3")
        ),
        (b"x-slo-ttft-ms", b"9" * 17),
        (b"x-slo-ttft-ms", "٢".encode()),
        (b"x-slo-tpot-ms", b"fast"),
        (b"x-slo-e2e-ms", b"0.0"),
        (b"x-llm-d-slo-ttft-ms", b"1s"),
        (b"x-slo-class", b""),
        (b"x-slo-class", b"x" * 65),
        (b"x-leeway-strict", b"maybe"),
        (b"x-leeway-admit", b"later"),
        (b"x-leeway-wait-status", b"json"),
    ],
)
def test_nonsense_names_its_header(name: bytes, text: bytes) -> None:
    with pytest.raises(SloError) as refused:
        asked({name: text})
    assert refused.value.header == name.decode()
    assert name.decode() in str(refused.value)


def test_what_else_a_head_may_say() -> None:
    said = asked({b"x-leeway-strict": b"true", b"x-leeway-admit": b"now", b"x-leeway-wait-status": b"SSE"})
    assert said == Asked(strict=True, admit_now=True, wait_status=True)
    assert asked({b"x-stainless-read-timeout": b"30", b"x-stainless-timeout": b"12.5"}) == Asked(read_s=12.5)
    assert asked({b"x-stainless-timeout": b"NOT_GIVEN"}) == Asked()
    for name in (b"x-request-priority", b"x-dynamo-request-priority", b"x-dynamo-request-strict-priority", b"x-vllm-priority"):
        assert asked({name: b"-7"}) == Asked(priority=-7)
        assert asked({name: b"high"}) == Asked()
    assert asked({b"x-smg-priority": b"bulk"}) == Asked(hints=("bulk",))
    for name in (b"x-llm-d-inference-fairness-id", b"x-tenant-id"):
        assert asked({name: b"team"}) == Asked(tenant="team")


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.sampled_from([b"x-slo-ttft-ms", b"x-stainless-timeout", b"x-smg-priority"]), st.binary(max_size=20)))
def test_any_bytes_are_a_target_or_a_refusal(values: dict[bytes, bytes]) -> None:
    try:
        said = asked(values)
    except SloError:
        return
    assert said is None or said.ttft_s > 0


def test_the_order_of_who_says_the_class() -> None:
    def class_of(
        said: Asked | None, key: str = "default", model: str = "", route: str = "", priority: int | None = None
    ) -> str:
        made = BOOK.promise(said, key, model, route, priority=priority)
        return made.class_name if made else ""

    assert class_of(None) == ""
    assert class_of(None, route="completions") == "batch"
    assert class_of(None, model="m", route="completions") == "chat"
    assert class_of(None, "batch", "m") == "batch"
    assert class_of(None, "batch", "m", priority=-1) == "chat"
    assert class_of(Asked(priority=5), "chat", "m", priority=-1) == "batch"
    assert class_of(Asked(hints=("bulk", "chat"), priority=5)) == "chat"
    assert class_of(Asked(class_name="batch", hints=("chat",))) == "batch"
    assert class_of(Asked(hints=("bulk",)), model="m") == "chat", "what nobody here calls so says nothing"
    assert class_of(Asked(class_name="default"), model="m") == ""


def test_a_class_that_is_not_there_is_refused() -> None:
    with pytest.raises(SloError, match="Known classes: batch, chat") as refused:
        BOOK.promise(Asked(class_name="gold"), "default", "", "")
    assert refused.value.header == "x-slo-class"


def test_headers_override_their_class_and_the_read_timeout_bounds_both() -> None:
    assert BOOK.promise(None, "chat", "", "") == Promise("chat", 1.0, 0.05, NEVER)
    assert BOOK.promise(Asked(ttft_s=3.0), "chat", "", "") == Promise("chat", 3.0, 0.05, NEVER)
    assert BOOK.promise(Asked(ttft_s=0.5), "default", "", "") == Promise("default", 0.5, NEVER, NEVER)
    assert BOOK.promise(Asked(read_s=0.2), "chat", "", "") == Promise("chat", 0.2, 0.05, NEVER)
    assert BOOK.promise(Asked(read_s=10.0), "batch", "", "", stream=False) == Promise("batch", NEVER, NEVER, 10.0, True)
    assert BOOK.promise(Asked(read_s=10.0), "default", "", "") is None, "a time-out alone promises nothing"
    assert BOOK.promise(Asked(ttft_s=1.0, strict=True), "default", "", "") == Promise("default", 1.0, NEVER, NEVER, True)
