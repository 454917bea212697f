"""A record becomes the state at the end of its step, in the predictor's books."""

import pytest

from backends.record_state import OVERDUE_TOKENS, UNLISTED_MAX, outer_id, sighting
from backends.snapshot_record import IDLE, NOBODY, Columns, Limits, Record, Work
from predictor.snapshot import Resident, settle

LIMITS = Limits(100, 16, 8, 64, 1024, 2)


def record(running: list[tuple[str, int, int, int, int, int]], free_blocks: int = 50, **more: object) -> Record:
    """`running` rows are id, prompt, expected, most, computed, generated."""
    rows = list(zip(*running, strict=True)) if running else [()] * 6
    ids, prompt, expected, most, computed, generated = (list(column) for column in rows)
    fields: dict[str, object] = {
        "running": Columns(ids, prompt, expected, most, generated),
        "computed": computed,
        "waiting": NOBODY,
        "more_waiting": 0,
        "more_tokens": 0,
    }
    return Record(**{  # type: ignore[arg-type]
        "engine": "e", "limits": LIMITS, "taken_s": 5.0, "free_blocks": free_blocks, "preemptions": 3,
        "step": Work(1, 2, 3, 4), "past": IDLE, "past_s": 0.0, **fields, **more,
    })  # fmt: skip


@pytest.mark.parametrize(
    ("name", "row", "resident"),
    [
        ("decodes: the step yields one more token", ("a", 10, 50, 99, 14, 4), Resident("a", 10, 14, 5, 50)),
        ("prompt ends in the step: its first token", ("a", 40, 50, 99, 40, 0), Resident("a", 40, 40, 1, 50)),
        ("prompt goes on", ("a", 40, 50, 99, 32, 0), Resident("a", 40, 32, 0, 50)),
        ("preempted before, computed again", ("a", 40, 50, 99, 42, 5), Resident("a", 40, 42, 5, 50)),
        ("known tokens are some steps old", ("a", 10, 50, 99, 22, 4), Resident("a", 10, 22, 13, 50)),
        ("scheduled ahead: two tokens on their way", ("a", 10, 50, 99, 15, 4), Resident("a", 10, 15, 6, 50)),
        ("longer than expected", ("a", 10, 5, 99, 14, 4), Resident("a", 10, 14, 5, 5 + OVERDUE_TOKENS)),
        ("longer than expected, near its limit", ("a", 10, 5, 7, 14, 4), Resident("a", 10, 14, 5, 7)),
    ],
)
def test_request_after_the_step(name: str, row: tuple[str, int, int, int, int, int], resident: Resident) -> None:
    assert sighting(1, record([row])).snapshot.running == (resident,)


def test_request_that_ends_with_the_step_has_left_and_given_its_blocks_back() -> None:
    snapshot = sighting(1, record([("a", 10, 5, 5, 14, 4), ("b", 10, 50, 99, 14, 4)], free_blocks=50)).snapshot
    assert [one.id for one in snapshot.running] == ["b"]
    assert snapshot.free_blocks == 51


def test_prompt_once_begun_has_all_its_blocks() -> None:
    # 40 tokens need 3 blocks of 16; the engine has taken one so far, for 16 tokens
    snapshot = sighting(1, record([("a", 40, 50, 99, 16, 0)], free_blocks=99)).snapshot
    assert snapshot.free_blocks == 97
    assert settle(snapshot) == snapshot


def test_shared_prefix_is_settled_not_refused() -> None:
    # both hold 4 blocks, two of which are the same: 6 are used
    snapshot = settle(sighting(1, record([("a", 60, 50, 99, 63, 3), ("b", 60, 50, 99, 63, 3)], free_blocks=94)).snapshot)
    assert [one.shared_blocks for one in snapshot.running] == [0, 2]
    assert snapshot.free_blocks == 94


def test_free_blocks_stay_within_the_engine() -> None:
    assert sighting(1, record([("a", 900, 5, 5, 904, 4)], free_blocks=99)).snapshot.free_blocks == 100


def test_prompts_begun_that_do_not_all_fit_wait_newest_first() -> None:
    rows = [("a", 60, 50, 99, 63, 3), ("b", 700, 50, 99, 320, 0), ("c", 900, 50, 99, 16, 0)]
    snapshot = sighting(1, record(rows, free_blocks=75)).snapshot
    assert [one.id for one in snapshot.running] == ["a", "b"]
    assert snapshot.waiting == (Resident("c", 900, 0, 0, 50),)
    assert snapshot.free_blocks == 100 - 4 - 44
    assert settle(snapshot) == snapshot


def test_queue_keeps_its_order_and_what_was_generated_before_a_preemption() -> None:
    found = sighting(1, record([], waiting=Columns(["p", "q"], [10, 20], [30, 5], [99, 99], [0, 7])))
    assert found.snapshot.waiting == (Resident("p", 10, 0, 0, 30), Resident("q", 20, 0, 7, 7 + OVERDUE_TOKENS))
    assert found.busy


def test_requests_that_are_not_listed_count_as_average_ones() -> None:
    waiting = Columns(["p", "q"], [10, 20], [30, 50], [99, 99], [0, 0])
    found = sighting(1, record([], waiting=waiting, more_waiting=3, more_tokens=40))
    assert found.snapshot.waiting[2:] == tuple(Resident(f"+{i}", 13, 0, 0, 40) for i in range(3))
    many = sighting(1, record([], waiting=waiting, more_waiting=10**9, more_tokens=10**9))
    assert len(many.snapshot.waiting) == 2 + UNLISTED_MAX


def test_rest_of_the_record_is_taken_over() -> None:
    found = sighting(9, record([]))
    assert (found.number, found.engine, found.snapshot.taken_s, found.snapshot.preemptions) == (9, "e", 5.0, 3)
    assert found.snapshot.limits.watermark_blocks == 2
    assert (found.step.prefill_tokens, found.step.decode_seqs, found.step.kv_tokens, found.step.pairs) == (1, 2, 3, 4)
    assert not sighting(9, record([], step=IDLE)).busy


def test_limits_of_no_engine_are_refused() -> None:
    with pytest.raises(ValueError, match="block_size"):
        sighting(1, record([], limits=Limits(100, 0, 8, 64, 1024)))


@pytest.mark.parametrize(
    ("inner", "outer"),
    [
        ("cmpl-3fa9-0-1234abcd", "3fa9"),
        ("chatcmpl-3fa9-1234abcd", "3fa9"),
        ("chatcmpl-a-b-c-1234abcd", "a-b-c"),
        ("cmpl-my-id-7-12-1234abcd", "my-id-7"),
        ("resp_77", "resp_77"),
        ("chatcmpl-cut off", "chatcmpl-cut off"),
    ],
)
def test_gateways_id_is_found_in_the_engines(inner: str, outer: str) -> None:
    assert outer_id(inner) == outer
