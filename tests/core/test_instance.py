"""The instance: exact step composition on small examples, conservation laws on random traffic."""

from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.instance import Instance
from predictor.profile import EngineLimits, StepProfile
from predictor.request import Admitted, Decoded, Event, Finished, FirstToken, Preempted, Request

PROFILE = StepProfile(base_s=1.0, prefill_token_s=0.25, decode_seq_s=0.5, kv_token_s=0.0625)
ROOMY = EngineLimits(kv_blocks=64, block_size=4, max_num_seqs=4, max_num_batched_tokens=8, max_model_len=256)


def request(name: str, prompt_tokens: int, output_tokens: int) -> Request:
    return Request(name, prompt_tokens, output_tokens, arrival_s=0.0)


def steps(instance: Instance) -> Iterator[tuple[float, tuple[Event, ...]]]:
    """Run to the end, punctually."""
    while (ends_at_s := instance.step_ends_at_s) is not None:
        yield ends_at_s, instance.finish_step(ends_at_s)


def test_one_request_alone() -> None:
    instance = Instance(PROFILE, ROOMY)
    instance.submit(request("a", 6, 3), now_s=10.0)
    assert list(steps(instance)) == [
        (12.5, (Admitted("a", 10.0), FirstToken("a", 12.5))),  # 1 + 6 * 0.25
        (14.375, (Decoded(("a",), 14.375),)),  # 1 + 0.5 + 6 * 0.0625
        (16.3125, (Decoded(("a",), 16.3125), Finished("a", 16.3125))),  # 1 + 0.5 + 7 * 0.0625
    ]
    assert (instance.running, instance.waiting, instance.kv_usage) == (0, 0, 0.0)


def test_a_long_prompt_is_prefilled_in_chunks_and_takes_its_blocks_at_once() -> None:
    instance = Instance(PROFILE, ROOMY)
    instance.submit(request("long", 20, 1), now_s=0.0)
    assert instance.free_blocks == 64 - 5
    assert [ends_at_s for ends_at_s, _ in steps(instance)] == [3.0, 6.0, 8.0]  # chunks of 8, 8, 4


def test_decodes_come_before_the_next_chunk_and_the_queue_takes_what_is_left() -> None:
    instance = Instance(PROFILE, ROOMY)
    instance.submit(request("a", 4, 9), now_s=0.0)
    instance.submit(request("b", 12, 9), now_s=0.0)
    instance.submit(request("c", 1, 9), now_s=0.0)
    assert instance.finish_step(2.0) == (Admitted("a", 0.0), FirstToken("a", 2.0))
    # a decodes, b gets 7 of its 12 tokens, nothing is left for c
    assert instance.step_ends_at_s == 2.0 + PROFILE.step_s(prefill_tokens=7, decode_seqs=1, kv_tokens=4)
    assert (instance.running, instance.waiting) == (2, 1)
    instance.finish_step(10.0)
    # a decodes, b gets its last 5, c its only one
    assert instance.step_ends_at_s == 10.0 + PROFILE.step_s(prefill_tokens=6, decode_seqs=1, kv_tokens=5)
    assert instance.finish_step(20.0) == (
        Admitted("c", 10.0),
        FirstToken("b", 20.0),
        FirstToken("c", 20.0),
        Decoded(("a",), 20.0),
    )


def test_no_more_sequences_run_than_allowed() -> None:
    instance = Instance(PROFILE, ROOMY)
    for name in "abcdef":
        instance.submit(request(name, 1, 2), now_s=0.0)
    admitted = [event.request_id for _, events in steps(instance) for event in events if isinstance(event, Admitted)]
    assert admitted == list("abcdef")
    instance.submit(request("g", 1, 9), now_s=100.0)
    for name in "hijkl":
        instance.submit(request(name, 1, 9), now_s=100.0)
    instance.finish_step(102.0)
    assert (instance.running, instance.waiting) == (4, 2)


def test_the_newest_is_preempted_and_computes_prompt_and_output_again() -> None:
    limits = EngineLimits(kv_blocks=3, block_size=4, max_num_seqs=4, max_num_batched_tokens=8, max_model_len=12)
    instance = Instance(PROFILE, limits)
    instance.submit(request("old", 4, 6), now_s=0.0)
    instance.submit(request("new", 4, 4), now_s=0.0)
    instance.finish_step(2.0)  # old: first token, 1 block, takes its second for the next one; new: admitted
    assert instance.free_blocks == 1 - 0 - 1
    events = instance.finish_step(5.0)
    assert events == (Admitted("new", 2.0), FirstToken("new", 5.0), Decoded(("old",), 5.0))
    assert instance.preemptions == 1
    assert (instance.running, instance.waiting) == (1, 1)
    assert instance.finish_step(10.0) == (Preempted("new", 5.0), Decoded(("old",), 10.0))
    rest = [event for _, events in steps(instance) for event in events]
    again = [event for event in rest if isinstance(event, Admitted)]
    assert [event.request_id for event in again] == ["new"]
    assert Finished("old", again[0].at_s) in rest, "the block comes free when the old one ends"
    assert not [event for event in rest if isinstance(event, FirstToken)], "a first token comes once"
    assert Counter(name for event in rest if isinstance(event, Decoded) for name in event.request_ids)["new"] == 3


def test_recompute_costs_a_prefill_of_prompt_and_output() -> None:
    limits = EngineLimits(kv_blocks=3, block_size=4, max_num_seqs=4, max_num_batched_tokens=8, max_model_len=12)
    instance = Instance(PROFILE, limits)
    instance.submit(request("old", 4, 3), now_s=0.0)
    instance.submit(request("new", 4, 4), now_s=0.0)
    instance.finish_step(2.0)
    instance.finish_step(5.0)
    assert Finished("old", 10.0) in instance.finish_step(10.0)
    assert instance.step_ends_at_s == 10.0 + PROFILE.step_s(prefill_tokens=5, decode_seqs=0, kv_tokens=0)


def test_abort_frees_at_once_and_lets_the_step_run_out() -> None:
    instance = Instance(PROFILE, ROOMY)
    instance.submit(request("a", 8, 5), now_s=0.0)
    instance.submit(request("b", 8, 5), now_s=0.0)
    assert instance.abort("a")
    assert instance.free_blocks == 64
    assert instance.step_ends_at_s == 3.0
    assert not instance.abort("a"), "gone"
    assert instance.finish_step(3.0) == (Admitted("a", 0.0),)
    assert instance.running == 1
    assert instance.abort("b")
    assert instance.finish_step(6.0) == (Admitted("b", 3.0),)
    assert instance.step_ends_at_s is None


def test_a_late_caller_shifts_the_next_step() -> None:
    instance = Instance(PROFILE, ROOMY)
    instance.submit(request("a", 4, 2), now_s=0.0)
    instance.finish_step(7.0)
    assert instance.step_ends_at_s == 7.0 + PROFILE.step_s(0, 1, 4)


def test_protocol_is_asserted_and_impossible_requests_refused() -> None:
    instance = Instance(PROFILE, ROOMY)
    with pytest.raises(ValueError, match="256"):
        instance.submit(request("huge", 200, 57), now_s=0.0)
    with pytest.raises(AssertionError):
        instance.finish_step(0.0)
    instance.submit(request("a", 4, 2), now_s=0.0)
    with pytest.raises(AssertionError):
        instance.submit(request("a", 4, 2), now_s=0.0)
    with pytest.raises(AssertionError):
        instance.finish_step(1.9)


def test_repr_says_what_matters() -> None:
    instance = Instance(PROFILE, ROOMY)
    assert repr(instance) == "<Instance waiting=0 running=0 free_blocks=64/64 idle>"
    instance.submit(request("a", 4, 2), now_s=0.0)
    instance.submit(request("b", 4, 2), now_s=0.0)
    assert repr(instance) == "<Instance waiting=1 running=1 free_blocks=63/64 step ends at 2.000000 s>"


class Witness(StepProfile):
    """A step profile that checks each step against the limits."""

    __slots__ = ()

    def step_s(self, prefill_tokens: int, decode_seqs: int, kv_tokens: float, pairs: float = 0.0) -> float:
        assert 0 < prefill_tokens + decode_seqs <= SMALL.max_num_batched_tokens
        assert decode_seqs <= SMALL.max_num_seqs
        assert kv_tokens <= SMALL.kv_blocks * SMALL.block_size
        return super().step_s(prefill_tokens, decode_seqs, kv_tokens, pairs)


SMALL = EngineLimits(kv_blocks=12, block_size=4, max_num_seqs=5, max_num_batched_tokens=9, max_model_len=48)

# Each element: submit a request (prompt, output), end a step after a lag, or abort the nth live request.
SUBMIT = st.tuples(st.just("submit"), st.integers(1, 28), st.integers(1, 20))
STEP = st.tuples(st.just("step"), st.integers(0, 3), st.just(0))
ABORT = st.tuples(st.just("abort"), st.integers(0, 50), st.just(0))


@settings(max_examples=120, deadline=None)
@given(st.lists(st.one_of(SUBMIT, SUBMIT, STEP, STEP, ABORT), max_size=60))
def test_conservation(operations: list[tuple[str, int, int]]) -> None:
    instance = Instance(Witness(1.0, 0.25, 0.5, 0.0625), SMALL)
    live: dict[str, int] = {}
    tokens: Counter[str] = Counter()
    events: list[Event] = []
    now_s = 0.0

    def settle(lag_s: float) -> None:
        nonlocal now_s
        assert instance.step_ends_at_s is not None
        now_s = max(now_s, instance.step_ends_at_s) + lag_s
        new = instance.finish_step(now_s)
        assert all(event.at_s <= now_s for event in new)
        events.extend(new)
        for event in new:
            if isinstance(event, FirstToken):
                assert tokens[event.request_id] == 0
                tokens[event.request_id] = 1
            elif isinstance(event, Decoded):
                tokens.update(event.request_ids)
            elif isinstance(event, Finished):
                assert tokens[event.request_id] == live.pop(event.request_id), "exactly the tokens it was to give"
        assert instance.running + instance.waiting == len(live)
        assert (instance.step_ends_at_s is None) == (not live)

    for number, (kind, first, second) in enumerate(operations):
        if kind == "submit":
            live[f"r{number}"] = second
            instance.submit(request(f"r{number}", first, second), now_s)
        elif kind == "abort" and live:
            name = list(live)[first % len(live)]
            assert instance.abort(name)
            del live[name]
        elif instance.step_ends_at_s is not None:
            settle(float(first))
        assert instance.running + instance.waiting == len(live)
        assert 0 <= instance.free_blocks <= SMALL.kv_blocks
        assert instance.running <= SMALL.max_num_seqs
    while instance.step_ends_at_s is not None:
        settle(0.0)
    assert not live
    assert instance.free_blocks == SMALL.kv_blocks
    assert sum(isinstance(event, Preempted) for event in events) <= instance.preemptions
    admissions = Counter(event.request_id for event in events if isinstance(event, Admitted))
    preemptions = Counter(event.request_id for event in events if isinstance(event, Preempted))
    finished = Counter(event.request_id for event in events if isinstance(event, Finished))
    assert all(admissions[name] == preemptions[name] + 1 for name in finished), "one admission more than preemptions"
    assert set(finished.values()) <= {1}


def test_a_crowded_engine_serves_everyone_and_preempts() -> None:
    instance = Instance(PROFILE, SMALL)
    for number in range(30):
        instance.submit(request(f"r{number}", 8, 16), now_s=0.0)
    events = [event for _, events in steps(instance) for event in events]
    assert sum(isinstance(event, Finished) for event in events) == 30
    assert instance.preemptions == sum(isinstance(event, Preempted) for event in events) > 10
