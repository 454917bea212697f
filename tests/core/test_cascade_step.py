"""A step's prompt tokens, handed out in one order among prompts that are begun and those who wait: properties of it."""

import math
from random import Random

import pytest

from backends.cascade_step import NO_LIMIT, Handout, Room
from predictor.queues import TieredQueue
from predictor.waiting import Waiting
from tests.core.test_cascade import NOW_S, Held, held

BLOCK = 16


class Line:
    """Some who wait and some begun, in one queue; a token takes a millisecond."""

    def __init__(self, order: str, seed: int) -> None:
        self.random = random = Random(seed)
        self.queue = TieredQueue(order, rho=0.1)
        self.queue.share.debt = random.uniform(-200, 200)
        self.handout = Handout(self.queue)
        self.waiting = [self._waiting(f"w{number}", random.randrange(1, 900)) for number in range(random.randrange(7))]
        for one in self.waiting:
            self.queue.add(one, NOW_S)
        self.begun: list[Held] = []
        for number in range(random.randrange(1, 5)):
            one = held(f"b{number}", random.randrange(2, 900))
            one.num_computed_tokens = random.randrange(one.num_prompt_tokens)
            self.begun.append(one)
        self.handout.follow(self.begun, self._begins, lambda *_: None)  # type: ignore[arg-type]
        self.queue.retier(NOW_S)

    def _waiting(self, name: str, tokens: int) -> Waiting:
        due_s = self.random.choice((math.inf, 0.3, 1.0, 3.0))
        return Waiting(name, NOW_S - self.random.random(), tokens * 1e-3, tokens, NOW_S + due_s)

    def _begins(self, request: Held) -> None:
        waiting = self._waiting(request.request_id, request.num_prompt_tokens - request.num_computed_tokens)
        waiting.begun = True
        self.queue.add(waiting, NOW_S)


@pytest.mark.parametrize("order", ["fcfs", "sjf", "edf", "lrb", "mh"])
def test_no_token_is_wasted_and_none_given_twice(order: str) -> None:
    for seed in range(300):
        line = Line(order, seed)
        handout, random = line.handout, line.random
        room = Room(random.randrange(0, 1200), random.randrange(3), random.randrange(100), BLOCK)
        unready = {one.id for one in line.waiting if random.random() < 0.2}
        handout.plan(room, lambda name, unready=unready: name not in unready, NOW_S)  # type: ignore[misc]
        assert handout.limits.keys() == handout.left.keys()
        given, kept = sum(handout.limits.values()), sum(handout.kept.values())
        assert given + kept == room.tokens or handout.limits == handout.left, "work is left only if the step is full"
        assert given + kept <= room.tokens
        assert all(0 <= limit <= handout.left[name] for name, limit in handout.limits.items())
        assert len(handout.kept) <= room.slots
        assert not handout.kept.keys() & unready


@pytest.mark.parametrize("order", ["edf", "lrb", "mh"])
def test_within_tier_1_nobody_gets_what_one_before_it_could_use(order: str) -> None:
    seen = 0
    for seed in range(300):
        line = Line(order, seed)
        line.queue.share.debt = -1e9  # tier 2 has no turn
        handout = line.handout
        handout.plan(Room(300, 100, 10_000, BLOCK), lambda _: True, NOW_S)
        wants = [handout.left.get(one.id, one.tokens) for one in line.queue.first(NOW_S)]
        gets = [handout.limits.get(one.id, handout.kept.get(one.id, 0)) for one in line.queue.first(NOW_S)]
        short = next((place for place, (want, got) in enumerate(zip(wants, gets, strict=True)) if got < want), len(gets))
        assert not any(gets[short + 1 :]), (wants, gets)
        seen += 0 < short < len(gets)
    assert seen > 30, "some had to stop between two"


def test_without_begun_prompts_nothing_is_planned() -> None:
    queue = TieredQueue("mh")
    handout = Handout(queue)
    queue.add(Waiting("w", NOW_S, 0.1, 50, NOW_S + 1.0), NOW_S)
    handout.plan(Room(10, 0, 0, BLOCK), lambda _: True, NOW_S)
    assert (handout.limits, handout.kept, handout.spare_blocks) == ({}, {}, NO_LIMIT)


@pytest.mark.parametrize("order", ["lrb", "mh"])
def test_those_begun_do_not_wait_for_a_slot(order: str) -> None:
    """A second until the next slot is free: who waits is late, who is begun is not."""
    queue = TieredQueue(order)
    for name, begun in (("begun", True), ("waits", False)):
        one = Waiting(name, NOW_S, 0.4, 100, NOW_S + 1.2)
        one.begun = begun
        queue.add(one, NOW_S)
    queue.retier(NOW_S, 1.0, begun_s=1.0)
    assert [(one.id, one.tier) for one in queue] == [("begun", 1), ("waits", 2)]
    assert queue.head(NOW_S) is queue.get("waits"), "who is begun is taken by nobody"
