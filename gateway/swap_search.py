"""The searches over swap schedules: a narrow one, and for small fleets one that is sure within a few percent. Pure.

Sure: level by level every step is drafted, and reckoned unless even the best that may come of it is no better than what was
found: its model alone where it comes to (`Reckoning.alone`), and as many models as there are steps left on every device as
soon as they can be (`Reckoning.least`). A step that looks bad by itself may be the first half of a good pair, so the most
hopeful states go on beside the cheapest. Wherever brute force could tell (tests/core/test_swaps.py), what is found costs at
most 1.05 times the least. Narrow (`width` 1, or many models): the best step, then the best after it. It must never know what
a step does: that is the planner's (gateway/swaps.py).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter, itemgetter

from gateway.residency import SwapPlan
from gateway.schedule import Draft, Option, State
from gateway.swaps import MODELS_MAX, Planner

LOOKS_MIN = 18  # states of a large fleet that are reckoned for one more step
SLACK = 0.96  # what may be better by less than this is not looked at

Key = frozenset[tuple[str, str, tuple[str, ...], float, str, float, bool]]


def best(planner: Planner) -> SwapPlan:
    """The best schedule that is found."""
    small = planner.settings.width > 1 and len(planner.root.costs) <= MODELS_MAX
    return planner.plan_of(_Bounded(planner).best() if small else _narrow(planner))


def _narrow(planner: Planner) -> State:
    """One step after the other, of those that look best the best each time."""
    settings, state = planner.settings, planner.root
    looks = max(settings.looks // max(len(state.costs), 1) // settings.steps, LOOKS_MIN)
    for _ in range(settings.steps):
        options = sorted(planner.options(state), key=attrgetter("guess"))[:looks]
        child = min([planner.after(state, option) for option in options], key=attrgetter("cost_s"), default=state)
        if child.cost_s >= state.cost_s:
            break
        state = child
    return state


@dataclass(slots=True)
class _Node:
    """A state of the search. `key` is the set of its steps, whatever their order; `gains` what each model's cost may still fall
    by; `hope` the cost that the steps that are left bring it down to at the best or so: it orders, and rules nothing out."""

    state: State
    key: Key
    gains: dict[str, float]
    hope: float


class _Bounded:
    """One search of a small fleet."""

    def __init__(self, planner: Planner) -> None:
        self._planner = planner
        self._seen: set[Key] = set()
        self._found = planner.root

    @property
    def _goal_s(self) -> float:
        """Only what costs less is worth a look."""
        return self._found.cost_s * SLACK

    def best(self) -> State:
        planner, settings = self._planner, self._planner.settings
        self._found = _narrow(planner)
        frontier = [self._node(planner.root, frozenset(), settings.steps)]
        for left in range(settings.steps - 1, -1, -1):
            until = planner.reckoning.count + (settings.reckonings - planner.reckoning.count) / (left + 1)
            children: list[_Node] = []
            for node in frontier:
                children.extend(self._children(node, left, until))
            frontier = _kept(children, settings.width)
        return self._found

    def _node(self, state: State, key: Key, left: int) -> _Node:
        if state.cost_s < self._found.cost_s:
            self._found = state
        if not left:
            return _Node(state, key, {}, state.cost_s)
        least = self._planner.reckoning.least(state)
        gains = {name: state.costs[name] - least_s for name, least_s in least.items()}
        return _Node(state, key, gains, state.cost_s - _most(gains, left))

    def _children(self, node: _Node, left: int, until: float) -> Iterator[_Node]:
        """The states after it that may lead to something better, while there are reckonings left."""
        if self._planner.reckoning.count >= until:
            return
        for hope_s, key, draft in sorted(self._drafts(node, left), key=itemgetter(0)):
            if hope_s >= self._goal_s or self._planner.reckoning.count >= until:
                return
            yield self._node(self._planner.reckoned(node.state, draft), key, left)

    def _drafts(self, node: _Node, left: int) -> Iterator[tuple[float, Key, Draft]]:
        """Steps that may lead to something better, with what that costs at the least."""
        planner, state, gains = self._planner, node.state, node.gains
        total_s = sum(gains.values())
        if state.cost_s - total_s >= self._goal_s:
            return
        crowd_s = planner.reckoning.crowd_s(state)
        for option in planner.options(state):
            key = node.key | {_name(option)}
            if key in self._seen:
                continue
            self._seen.add(key)
            name = option.tenant.name
            own_s = gains.get(name, 0.0)
            others = {other: gain for other, gain in gains.items() if other != name}
            more_s = min(total_s - own_s, _most(others, left) + crowd_s)
            draft = planner.draft(state, option)
            step_s = draft.extra_s - state.extra_s
            if state.cost_s + step_s - own_s - more_s >= self._goal_s:
                continue
            now_s = state.costs[name] - planner.reckoning.alone(state, draft)  # it may gain the rest by a later step
            others[name] = max(own_s - now_s, 0.0)
            more_s = min(total_s - own_s + others[name], _most(others, left) + crowd_s)
            yield state.cost_s + step_s - now_s - more_s, key, draft


def _name(option: Option) -> tuple[str, str, tuple[str, ...], float, str, float, bool]:
    return (
        option.tenant.name,
        option.device.name,
        option.leaves,
        option.fraction,
        option.mode,
        option.cut_s,
        option.visit,
    )


def _most(gains: dict[str, float], steps: int) -> float:
    """What so many steps gain at the most, each for one model."""
    return sum(sorted(gains.values(), reverse=True)[:steps])


def _kept(children: list[_Node], width: int) -> list[_Node]:
    """So many of the cheapest and so many of the most hopeful, the latter first."""
    children.sort(key=lambda node: node.state.cost_s)
    if len(children) > 2 * width:
        children = children[:width] + sorted(children[width:], key=attrgetter("hope"))[:width]
    return sorted(children, key=attrgetter("hope"))
