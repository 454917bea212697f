"""The instance beyond its plain order: prefix reuse, watermark, SGLang's order, copies, snapshots, progress."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.instance import Instance
from predictor.profile import EngineLimits, StepProfile
from predictor.request import Admitted, Event, Finished, FirstToken, Preempted, Request
from predictor.snapshot import Resident, Snapshot, settle

PROFILE = StepProfile(base_s=1.0, prefill_token_s=0.25, decode_seq_s=0.5, kv_token_s=0.0625, pair_s=0.01)
ROOMY = EngineLimits(kv_blocks=64, block_size=4, max_num_seqs=4, max_num_batched_tokens=8, max_model_len=256)
SMALL = EngineLimits(kv_blocks=12, block_size=4, max_num_seqs=5, max_num_batched_tokens=9, max_model_len=48)


def request(name: str, prompt: int, output: int, prefix: tuple[int, ...] = ()) -> Request:
    return Request(name, prompt, output, 0.0, prefix)


def finish(instance: Instance) -> list[Event]:
    """Run to the end, punctually."""
    events: list[Event] = []
    while instance.step_ends_at_s is not None:
        events += instance.finish_step(instance.step_ends_at_s)
    return events


def test_a_prefix_that_is_cached_is_not_computed_again() -> None:
    instance = Instance(PROFILE, ROOMY)
    instance.submit(request("a", 8, 1, (1, 2)), 0.0)
    assert instance.step_ends_at_s == PROFILE.step_s(8, 0, 0, 32.0)
    finish(instance)
    assert (instance.free_blocks, instance.hit_tokens(request("b", 9, 1, (1, 2)))) == (64, 8)
    instance.submit(request("b", 9, 1, (1, 2)), 10.0)
    assert instance.step_ends_at_s == 10.0 + PROFILE.step_s(1, 0, 0, 8.5)
    finish(instance)
    instance.submit(request("c", 8, 1, (1, 2)), 20.0)
    assert instance.step_ends_at_s == 20.0 + PROFILE.step_s(4, 0, 0, 4 * 6.0), "one token at least, so one block, is computed"


def test_a_prefix_is_shared_as_soon_as_it_is_computed() -> None:
    instance = Instance(PROFILE, ROOMY)
    instance.submit(request("a", 8, 9, (1, 2)), 0.0)
    instance.submit(request("b", 10, 9, (1, 2)), 0.0)  # waits: a takes the whole step
    instance.finish_step(10.0)
    assert instance.free_blocks == 64 - 3 - 1, "b holds a's two blocks and one of its own; a grows by one"
    assert instance.step_ends_at_s == 10.0 + PROFILE.step_s(2, 1, 8, 2 * 9.0)
    assert instance.abort("a")
    assert instance.free_blocks == 64 - 3, "b keeps what both held"
    finish(instance)
    assert instance.free_blocks == 64


def test_the_watermark_stays_free_unless_nobody_runs() -> None:
    limits = EngineLimits(12, 4, 5, 9, 48, watermark_blocks=4)
    instance = Instance(PROFILE, limits)
    instance.submit(request("large", 40, 2), 0.0)
    assert (instance.running, instance.free_blocks) == (1, 2), "an empty batch takes whom it can hold"
    finish(instance)
    instance.submit(request("a", 4, 6), 100.0)
    instance.submit(request("b", 28, 6), 100.0)
    assert instance.waiting == 1, "11 blocks are free, 7 needed, 4 to be left: a takes one more in this step"
    instance.finish_step(110.0)
    assert (instance.waiting, instance.free_blocks) == (1, 10)


def test_sglang_computes_prompts_before_it_decodes() -> None:
    limits = EngineLimits(64, 4, 4, 8, 256, order="sglang")
    instance = Instance(PROFILE, limits)
    instance.submit(request("a", 4, 9), 0.0)
    instance.submit(request("b", 12, 9), 0.0)
    instance.finish_step(5.0)
    assert instance.step_ends_at_s == 5.0 + PROFILE.step_s(8, 0, 0, 32.0), "b's first chunk alone, a waits"
    instance.finish_step(10.0)
    assert instance.step_ends_at_s == 10.0 + PROFILE.step_s(4, 0, 0, 4 * 10.0)
    assert FirstToken("b", 20.0) in instance.finish_step(20.0)
    assert instance.step_ends_at_s == 20.0 + PROFILE.step_s(0, 2, 4 + 12)
    assert sum(isinstance(event, Finished) for event in finish(instance)) == 2


def test_sglang_takes_from_the_one_with_the_least_output_and_puts_it_last() -> None:
    limits = EngineLimits(6, 4, 3, 8, 24, order="sglang")
    instance = Instance(PROFILE, limits)
    for name, prompt in (("a", 4), ("b", 5), ("c", 7), ("d", 1)):
        instance.submit(request(name, prompt, 9), 0.0)
    while not instance.preemptions:
        assert instance.step_ends_at_s is not None
        instance.finish_step(instance.step_ends_at_s)
    events = finish(instance)
    assert next(event for event in events if isinstance(event, Preempted)).request_id == "c", "level in output, longest prompt"
    entries = [event.request_id for event in events if isinstance(event, Admitted)]
    assert entries[:2] == ["d", "c"], "behind whoever waits"
    assert sum(isinstance(event, Finished) for event in events) == 4


def test_progress_is_live() -> None:
    instance = Instance(PROFILE, ROOMY)
    instance.submit(request("a", 10, 3), 0.0)
    progress = instance.progress("a")
    seen = []
    while instance.step_ends_at_s is not None:
        seen.append((progress.computed, progress.generated))
        instance.finish_step(instance.step_ends_at_s)
    assert seen == [(0, 0), (8, 0), (10, 1), (11, 2)]
    assert progress.generated == 3
    with pytest.raises(KeyError):
        instance.progress("a")


def test_a_restored_waiting_request_uses_its_hits_once() -> None:
    who = Resident("w", prompt_tokens=12, computed_tokens=8, generated_tokens=0, output_tokens=2)
    instance = Instance.restore(PROFILE, Snapshot(5.0, ROOMY, (), (who,), 64))
    assert instance.step_ends_at_s == 5.0
    assert instance.finish_step(5.0) == ()
    assert instance.step_ends_at_s == 5.0 + PROFILE.step_s(4, 0, 0, 4 * 10.0)


@pytest.mark.parametrize(
    "who",
    [
        Resident("x", 0, 0, 0, 4),
        Resident("x", 250, 0, 6, 9),
        Resident("x", 10, 0, -1, 4),
        Resident("x", 10, 13, 3, 9),
        Resident("x", 10, 0, 0, 4, shared_blocks=3),
    ],
)
def test_a_state_that_no_engine_can_be_in_is_refused(who: Resident) -> None:
    for running, waiting in (((who,), ()), ((), (who,))):
        with pytest.raises(ValueError, match="'x'"):
            Instance.restore(PROFILE, Snapshot(0.0, ROOMY, running, waiting, 50))
    twice = Resident("y", 5, 0, 0, 4)
    with pytest.raises(ValueError, match="'y' twice"):
        Instance.restore(PROFILE, Snapshot(0.0, ROOMY, (), (twice, twice), 64))
    with pytest.raises(ValueError, match="blocks more"):
        Instance.restore(PROFILE, Snapshot(0.0, ROOMY, (Resident("z", 8, 7, 0, 4),), (), 66))


def test_settling_ties_loose_ends() -> None:
    old = Resident("old", 9, 12, 4, 4)  # longer than expected already
    long = Resident("long", 9, 0, 0, 999)
    settled = settle(Snapshot(0.0, ROOMY, (old,), (long,), 50))
    assert [who.output_tokens for who in (*settled.running, *settled.waiting)] == [14, 247]
    assert settled.free_blocks == 61, "look-ahead blocks count as free"
    pair = (Resident("a", 8, 8, 1, 4), Resident("b", 9, 9, 1, 4))
    settled = settle(Snapshot(0.0, ROOMY, pair, (), 61))
    assert [who.shared_blocks for who in settled.running] == [0, 2], "two held by both; the newest is taken to share"
    assert settle(settled) is settled


SUBMIT = st.tuples(st.just("submit"), st.integers(1, 28), st.integers(1, 20))
STEP = st.tuples(st.just("step"), st.integers(0, 1), st.just(0))
ABORT = st.tuples(st.just("abort"), st.integers(0, 50), st.just(0))
OPERATIONS = st.lists(st.one_of(SUBMIT, SUBMIT, STEP, STEP, ABORT), max_size=50)


def played(operations: list[tuple[str, int, int]], limits: EngineLimits, *, talks: int) -> tuple[Instance, float]:
    """An instance after these operations; prompts of one conversation in `talks` share their beginnings (0: none do)."""
    instance = Instance(PROFILE, limits)
    now_s = 0.0
    live: list[str] = []
    for number, (kind, first, second) in enumerate(operations):
        if kind == "submit":
            prefix = tuple(first % talks * 100 + piece for piece in range(first // 4)) if talks else ()
            instance.submit(request(f"r{number}", first, second, prefix), now_s)
            live.append(f"r{number}")
        elif kind == "abort" and live:
            instance.abort(live.pop(first % len(live)))
        elif instance.step_ends_at_s is not None:
            now_s = instance.step_ends_at_s + first
            instance.finish_step(now_s)
    return instance, now_s


@settings(max_examples=150, deadline=None)
@given(OPERATIONS, st.sampled_from(["vllm", "sglang"]), st.sampled_from([0, 2]))
def test_a_fork_goes_the_same_way_and_leaves_the_original_alone(
    operations: list[tuple[str, int, int]], order: str, talks: int
) -> None:
    limits = EngineLimits(12, 4, 5, 9, 48, watermark_blocks=1, order=order)
    instance, _ = played(operations, limits, talks=talks)
    before = repr(instance)
    twin = instance.fork()
    events = finish(twin)
    assert repr(instance) == before
    assert finish(instance) == events
    assert instance.preemptions == twin.preemptions
    assert instance.free_blocks == twin.free_blocks == 12


@settings(max_examples=200, deadline=None)
@given(OPERATIONS, st.sampled_from(["vllm", "sglang"]))
def test_a_restored_engine_goes_on_as_the_original(operations: list[tuple[str, int, int]], order: str) -> None:
    limits = EngineLimits(12, 4, 5, 9, 48, watermark_blocks=1, order=order)
    instance, now_s = played(operations, limits, talks=0)
    snapshot = instance.snapshot(now_s)
    assert settle(snapshot) is snapshot, "an instance leaves no loose ends"
    restored = Instance.restore(PROFILE, snapshot)
    if instance.step_ends_at_s is not None:
        assert snapshot.step_ends_s == instance.step_ends_at_s - now_s
        instance.finish_step(instance.step_ends_at_s)  # the step in progress is in the snapshot already
    if restored.step_ends_at_s is not None:
        assert restored.finish_step(restored.step_ends_at_s) == ()
    assert repr(restored).split("step")[0] == repr(instance).split("step")[0]
    ends = [(event.request_id, event.at_s) for event in finish(instance) if isinstance(event, Finished)]
    again = [(event.request_id, event.at_s) for event in finish(restored) if isinstance(event, Finished)]
    assert [name for name, _ in ends] == [name for name, _ in again]
    assert all(abs(left - right) < 1e-6 for (_, left), (_, right) in zip(ends, again, strict=True))
    assert restored.preemptions == instance.preemptions


@settings(max_examples=100, deadline=None)
@given(OPERATIONS)
def test_a_snapshot_of_shared_prefixes_accounts_for_every_block(operations: list[tuple[str, int, int]]) -> None:
    instance, now_s = played(operations, SMALL, talks=2)
    snapshot = instance.snapshot(now_s)
    assert settle(snapshot) is snapshot
    assert 0 <= snapshot.cached_free_blocks <= snapshot.free_blocks
    restored = Instance.restore(PROFILE, snapshot)
    assert restored.free_blocks == snapshot.free_blocks
    assert sum(isinstance(event, Finished) for event in finish(restored)) == len(snapshot.running) + len(snapshot.waiting)


def test_expected_lengths_replace_the_true_ones_in_a_snapshot() -> None:
    instance = Instance(PROFILE, ROOMY)
    instance.submit(request("a", 4, 9), 0.0)
    instance.submit(request("b", 100, 9), 0.0)
    snapshot = instance.snapshot(0.0, {"a": 30})
    assert [who.output_tokens for who in (*snapshot.running, *snapshot.waiting)] == [30, 9]
