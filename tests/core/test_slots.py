"""An engine's slots, from what it says of its queue: what proves them, what refutes them, what says nothing."""

from random import Random

from predictor.slots import PROOFS, Slots


def read(slots: Slots, times: int, running: int, waiting: int = 3, kv_usage: float = 0.3, ends: int = 4) -> int:
    for _ in range(times):
        slots.report(running, waiting, kv_usage, ends)
    return slots.limit


def test_a_number_that_stays_while_requests_wait_and_end_is_the_limit() -> None:
    slots = Slots()
    assert read(slots, PROOFS - 1, 16) == 0
    assert read(slots, 1, 16) == 17, "one more, so that it can be refuted"
    assert read(slots, 9, 16, waiting=0) == 17, "without a queue nothing is learned and nothing lost"


def test_an_engine_is_read_before_the_places_of_the_ended_are_taken() -> None:
    slots = Slots()
    assert [slots.report(running, 9, 0.5, 2) for running in (15, 16, 16, 15, 16, 16, 15, 16)][-1] == 17


def test_more_that_run_refute_it() -> None:
    slots = Slots()
    read(slots, PROOFS, 16)
    assert read(slots, 1, 17) == 0
    assert read(slots, PROOFS, 32) == 33


def test_what_proves_nothing() -> None:
    assert read(Slots(), 20, 16, waiting=0) == 0, "nobody waits"
    assert read(Slots(), 20, 16, kv_usage=0.9) == 0, "it may be the KV that is short"
    assert read(Slots(), 20, 16, kv_usage=-1.0) == 0
    assert read(Slots(), 20, 16, ends=0) == 0, "one long prompt holds all others up"
    assert read(Slots(), 20, 0) == 0, "a paused engine"


def test_a_queue_behind_prompts_is_hardly_ever_taken_for_one_behind_slots() -> None:
    """The number that runs goes up and down there; a belief that arises all the same is refuted by the next height."""
    believed = 0
    for seed in range(200):
        rng, slots, running = Random(seed), Slots(), 40
        for _ in range(100):
            running = max(10, running + rng.choice((-3, -2, -1, 0, 1, 2, 3)))
            believed += slots.report(running, 5, 0.4, 6) > 0
    assert believed < 0.05 * 200 * 100
