"""The sidecar's wire: both ends agree with each other and with the published schemas; odd bodies are refused."""

import json
import math
from dataclasses import replace
from pathlib import Path

import jsonschema
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.snapshot_record import (
    IDLE,
    Begun,
    Bids,
    Columns,
    Figures,
    Limits,
    Record,
    RecordError,
    Rule,
    Work,
    decode,
    encode,
)
from predictor.profile import EngineLimits
from predictor.request import Estimate, LengthEstimate
from predictor.snapshot import ProbeReply, Resident, Snapshot
from predictor.wire import (
    PREFIX_HASHES_MAX,
    Ask,
    WireError,
    encode_ask,
    encode_reply,
    encode_snapshot,
    parse_ask,
    parse_reply,
)

SCHEMAS = Path(__file__).parents[2] / "docs" / "wire"
NOW_MS = 1_700_000_000_000
ASK = Ask("r1", "llama", 700, LengthEstimate(10, 100, 300, "wire"), (2**63, -5), 16, asked_s=NOW_MS / 1e3)
PROMISED = replace(ASK, arrival_s=NOW_MS / 1e3 - 0.25, deadline_s=NOW_MS / 1e3 + 1.5, class_name="chat", tier=2)
REPLY = ProbeReply(Estimate(0.1, 0.02, 3.5, 0.05, 0.25, 90, math.nan, 1.5), 3, 2, 40, 7, 900, 0.125)


def fits(name: str, body: object) -> None:
    jsonschema.Draft202012Validator(json.loads((SCHEMAS / f"{name}.json").read_text())).validate(body)


@pytest.mark.parametrize("path", sorted(SCHEMAS.glob("*.json")), ids=lambda path: path.stem)
def test_schemas_are_schemas(path: Path) -> None:
    jsonschema.Draft202012Validator.check_schema(json.loads(path.read_text()))


def test_ask_goes_over_and_fits_its_schema() -> None:
    for ask in (ASK, PROMISED):
        body = encode_ask(ask, NOW_MS, tier=ask.tier)
        fits("ask", json.loads(body))
        assert parse_ask(body) == ask


def test_a_promise_on_another_clock_goes_over_in_unix_time() -> None:
    """The gateway's instants are of its loop's clock."""
    on_loop = replace(PROMISED, arrival_s=99.75, deadline_s=101.5)
    assert encode_ask(on_loop, NOW_MS, 100.0, tier=2) == encode_ask(PROMISED, NOW_MS, tier=2)


def test_a_request_without_a_promise_costs_no_byte_more() -> None:
    fields = json.loads(encode_ask(ASK, NOW_MS, 100.0, tier=2))
    assert not fields.keys() & {"arrival_unix_ms", "deadline_unix_ms", "class", "tier"}


def test_long_prefix_is_cut_to_what_the_other_side_takes() -> None:
    body = encode_ask(replace(ASK, prefix=tuple(range(PREFIX_HASHES_MAX + 9))), 0)
    assert parse_ask(body).prefix == tuple(range(PREFIX_HASHES_MAX))


def test_optional_fields_may_be_missing() -> None:
    fields = json.loads(encode_ask(ASK, 0))
    del fields["prefix_hashes"], fields["block_tokens"], fields["now_unix_ms"]
    assert parse_ask(json.dumps(fields).encode()) == replace(ASK, prefix=(), block_tokens=0, asked_s=0.0)
    assert parse_ask(json.dumps({**fields, "harm": True, "later": [1]}).encode()).harm


@pytest.mark.parametrize(
    "changed",
    [
        {"id": ""},
        {"id": "x" * 257},
        {"id": 5},
        {"model": None},
        {"prompt_tokens": 0},
        {"prompt_tokens": 2**31 + 1},
        {"prompt_tokens": 1.5},
        {"prompt_tokens": True},
        {"out_q50": "9"},
        {"out_q10": 101},
        {"out_q90": 99},
        {"prefix_hashes": 7},
        {"prefix_hashes": [1.5]},
        {"prefix_hashes": [True]},
        {"prefix_hashes": [2**64]},
        {"prefix_hashes": [0] * (PREFIX_HASHES_MAX + 1)},
        {"block_tokens": -1},
        {"deadline_unix_ms": 1.5},
        {"deadline_unix_ms": "soon"},
        {"arrival_unix_ms": True},
        {"deadline_unix_ms": 2**64},
        {"class": 7},
        {"class": "x" * 257},
    ],
    ids=str,
)
def test_malformed_ask_is_refused(changed: dict[str, object]) -> None:
    fields = {**json.loads(encode_ask(ASK, 0)), **changed}
    with pytest.raises(WireError) as caught:
        parse_ask(json.dumps(fields).encode())
    assert caught.value.code == "malformed"


@pytest.mark.parametrize("body", [b"", b"[]", b"7", b"{", b'{"id": "a"', b"\xff", b'{"v":1}'])
def test_body_that_is_no_ask_is_refused(body: bytes) -> None:
    with pytest.raises(WireError):
        parse_ask(body)


@pytest.mark.parametrize("version", [2, "1", None])
def test_another_version_is_told_apart(version: object) -> None:
    for parse, body in ((parse_ask, encode_ask(ASK, 0)), (parse_reply, encode_reply(REPLY))):
        with pytest.raises(WireError) as caught:
            parse(json.dumps({**json.loads(body), "v": version}).encode())
        assert caught.value.code == "version"


def same(one: ProbeReply, other: ProbeReply) -> bool:
    return repr(one) == repr(other)  # NaN included


def test_reply_goes_over_and_fits_its_schema() -> None:
    for reply in (
        REPLY,
        replace(REPLY, estimate=replace(REPLY.estimate, harm_s=2.5)),
        replace(REPLY, estimate=Estimate.unknown),
    ):
        body = encode_reply(reply)
        fits("predict-reply", json.loads(body))
        assert same(parse_reply(body), reply)


@pytest.mark.parametrize(
    "changed",
    [{"ttft_s": "1"}, {"ttft_s": [1]}, {"running": "3"}, {"running": None}, {"running": 2.5}, {"spread": {}}, {"harm_s": "x"}],
    ids=str,
)
def test_reply_with_a_figure_of_the_wrong_kind_is_refused(changed: dict[str, object]) -> None:
    with pytest.raises(WireError):
        parse_reply(json.dumps({**json.loads(encode_reply(REPLY)), **changed}).encode())


@pytest.mark.parametrize("name", ["ttft_s", "wait_s", "running", "snapshot_age_s", "kv_peak_blocks"])
def test_reply_without_a_figure_is_refused(name: str) -> None:
    fields = json.loads(encode_reply(REPLY))
    del fields[name]
    with pytest.raises(WireError, match=name):
        parse_reply(json.dumps(fields).encode())


@given(
    st.binary(max_size=200)
    | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(lambda v: json.dumps(v).encode())
)
def test_garbage_is_refused_not_raised_through(body: bytes) -> None:
    for parse in (parse_ask, parse_reply):
        with pytest.raises(WireError):
            parse(body)


def test_snapshot_fits_its_schema() -> None:
    limits = EngineLimits(96, 128, 16, 512, 2048)
    state = Snapshot(1.5, limits, (Resident("a", 10, 12, 3, 50),), (Resident("b", 10, 0, 0, 50),), 90)
    body = json.loads(encode_snapshot(state, "vllm 0.32.0", 0.25, 1))
    fits("snapshot", body)
    assert body["state"]["running"][0]["computed_tokens"] == 12
    assert body["reserved"] == 1


def test_record_fits_its_schema() -> None:
    columns = Columns(["a", "b"], [1, 2], [3, 4], [5, 6], [1, 1])
    record = Record(
        "e", Limits(96, 128, 16, 512, 2048), 1.5, 90, 0, Work(0, 2, 9, 0), IDLE, 0.0, columns, [2, 3], columns, 0, 0
    )
    by_budget = (
        Rule("leeway", "mh", 0.02, 0.5, 120.0, True),
        Bids(1, [], [NOW_MS], [0], [2500]),
        Figures(0.02, 1e-4, 1e-4, 1.0, -3.5),
    )

    def plain(value: object) -> object:
        if hasattr(value, "__struct_fields__"):
            return [plain(getattr(value, name)) for name in value.__struct_fields__]
        return [plain(item) for item in value] if isinstance(value, list) else value

    fits("record", plain(record))
    ordered = msgspec.structs.replace(record, rule=by_budget[0], bids=by_budget[1], figures=by_budget[2], gammas={"chat": 1.2})
    fits("record", plain(ordered))
    assert decode(encode(ordered)) == ordered
    begun = msgspec.structs.replace(ordered, begun=Begun([1], [NOW_MS], [0], [1.2]))
    fits("record", plain(begun))
    assert decode(encode(begun)) == begun
    with pytest.raises(RecordError, match="columns"):
        decode(encode(msgspec.structs.replace(begun, begun=Begun([1], [NOW_MS], [0], []))))
    older = [getattr(record, name) for name in Record.__struct_fields__[:13]]
    fits("record", plain(older))
    assert decode(encode(older)) == record, "an engine's scheduler of before"
    newer = [*(getattr(ordered, name) for name in Record.__struct_fields__), "what is yet to come"]
    assert decode(encode(newer)) == ordered
    with pytest.raises(RecordError, match="bids"):
        decode(encode(msgspec.structs.replace(ordered, bids=Bids(2, [], [NOW_MS], [0], [2500]))))
