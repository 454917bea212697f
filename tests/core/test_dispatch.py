"""Who gets a request: each policy on small tables with a known random source, and what surrounds every choice."""

from collections import Counter
from collections.abc import Iterable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.config import BackendSpec, ModelSpec, PolicyName
from gateway.dispatch import Ask, Dispatcher, Hold
from gateway.policies.base import Policy
from gateway.policies.counts import POINTS_PER_REPLICA
from gateway.policies.table import COUNTING as POLICIES
from gateway.replica import Replica


class Draws(Random):
    """A random source that gives exactly these numbers."""

    def __init__(self, numbers: Iterable[float]) -> None:
        super().__init__(0)
        self._numbers = iter(numbers)

    def random(self) -> float:
        return next(self._numbers)


def replica(name: str, in_flight: int = 0, weight: float = 1.0, minute_count: int = 0, max_in_flight: int = 1024) -> Replica:
    made = Replica(BackendSpec(name, f"http://{name}", weight=weight, max_in_flight=max_in_flight))
    made.in_flight = in_flight
    for _ in range(minute_count):
        made.minute.add(0.0)
    return made


def row(*in_flight: int) -> list[Replica]:
    """Replicas a, b, c ... with this many in flight."""
    return [replica("abcdefgh"[at], count) for at, count in enumerate(in_flight)]


def policy(name: PolicyName, rng: Random | None = None, d: int = 2) -> Policy:
    return POLICIES[name](ModelSpec("m", name, d), rng or Random(1))


ASK = Ask("m")


def chosen(policy: Policy, replicas: list[Replica], times: int = 1, ask: Ask = ASK) -> str:
    return "".join(policy.choose(ask, replicas, 0.0).name for _ in range(times))


@pytest.mark.parametrize(
    ("name", "draws", "replicas", "names"),
    [
        ("random", (0.0, 0.34, 0.5, 0.67, 0.99), row(9, 0, 0), "abbcc"),
        ("random", (0.99,), row(9), "a"),
        ("round_robin", (), row(9, 0, 5), "abcabca"),
        ("round_robin", (), [replica("c"), replica("a")], "acac"),
        ("least_request", (0.0, 0.49, 0.5, 0.99), row(1, 2, 1), "aacc"),
        ("least_request", (0.0,), [replica("a", 3, weight=2.0), replica("b", 2, weight=1.0)], "a"),
        ("least_request", (0.9,), [replica("a", 4, weight=2.0), replica("b", 2, weight=1.0)], "b"),
        (
            "min_qpm",
            (0.5, 0.5, 0.5),
            [replica("a", minute_count=5), replica("b", 9, minute_count=4), replica("c", 0, 1, 6)],
            "b",
        ),
        ("min_qpm", (0.5, 0.4), [replica("a", minute_count=4), replica("b", minute_count=4)], "b"),
        ("min_qpm", (0.5, 0.9), [replica("a", weight=0.5, minute_count=2), replica("b", minute_count=3)], "b"),
        ("po2_requests", (), row(7), "a"),
        ("po2_requests", (0.0, 0.5), row(1, 0), "bb"),
        ("po2_requests", (0.0, 0.5), row(1, 1), "ab"),
        ("po2_requests", (0.0,), [replica("a", 3, weight=2.0), replica("b", 2, weight=1.0)], "a"),
        ("po2_requests", (0.0,), [replica("a", 5, weight=2.0), replica("b", 2, weight=1.0)], "b"),
    ],
)
def test_choices(name: PolicyName, draws: tuple[float, ...], replicas: list[Replica], names: str) -> None:
    made = policy(name, Draws(draws))
    assert chosen(made, replicas, len(names)) == names


def test_round_robin_goes_on_by_name_when_the_set_changes() -> None:
    made = policy("round_robin")
    a, b, c, d = row(0, 0, 0, 0)
    assert chosen(made, [a, b, c], 2) == "ab"
    assert chosen(made, [a, b, c, d], 2) == "cd"
    assert chosen(made, [a, c], 3) == "aca"
    assert chosen(made, [a, b], 3) == "bab"


def test_the_minute_of_min_qpm_slides() -> None:
    before, lately = replica("a"), replica("b")
    for second in range(50):
        before.minute.add(second / 10)
        lately.minute.add(60.0 + second / 100)
    lately.minute.add(60.0)
    made = policy("min_qpm")
    assert [view.minute.count(59.9) for view in (before,)] == [50]
    assert made.choose(ASK, [before, lately], 61.0).name == "a"
    assert made.choose(ASK, [before, lately], 64.0).name == "a"
    assert [(view.minute.count(64.9), view.minute.count(65.0)) for view in (before, lately)] == [(0, 0), (51, 51)]
    assert made.choose(ASK, [before, lately], 120.0).name in {"a", "b"}
    assert lately.minute.count(120.0) == 0


@pytest.mark.parametrize("count", [2, 3, 4, 7])
def test_power_of_two_draws_every_ordered_pair_once(count: int) -> None:
    """Over all numbers that can be drawn, the exact distribution: 2 (n - 1 - rank) of n (n - 1) by load, even on ties."""
    pairs = count * (count - 1)
    every_draw = [(at + 0.5) / pairs for at in range(pairs)]
    ranked = row(*range(count))
    seen = Counter(chosen(policy("po2_requests", Draws(every_draw)), ranked, pairs))
    assert seen == Counter({r.name: 2 * (count - 1 - rank) for rank, r in enumerate(ranked)})
    tied = Counter(chosen(policy("po2_requests", Draws(every_draw)), row(*[3] * count), pairs))
    assert set(tied.values()) == {count - 1}


def test_power_of_two_never_draws_one_replica_twice_nor_beyond() -> None:
    for number in (0.0, 0.4999999, 0.5, 1 - 2**-53):
        assert chosen(policy("po2_requests", Draws([number])), row(5, 0)) == "b"
        assert chosen(policy("po2_requests", Draws([number])), row(5, 5, 0)) in {"a", "b", "c"}


@pytest.mark.parametrize(("d", "names"), [(1, 3), (3, 1), (4, 1), (99, 1)])
def test_power_of_d(d: int, names: int) -> None:
    """d = 1 is random; d of all or more is the least loaded."""
    replicas = row(2, 1, 0) if d != 1 else row(0, 0, 0)
    assert len(set(chosen(policy("po2_requests", Random(3), d), replicas, 40))) == names


KEYS = [f"session-{number}" for number in range(2000)]


def homes(replicas: list[Replica]) -> dict[str, str]:
    made = policy("consistent_hash")
    return {key: made.choose(Ask("m", key), replicas, 0.0).name for key in KEYS}


@pytest.mark.parametrize("leaving", range(5))
def test_when_one_replica_leaves_only_its_keys_move(leaving: int) -> None:
    replicas = row(0, 0, 0, 0, 0)
    rest = replicas[:leaving] + replicas[leaving + 1 :]
    before, after = homes(replicas), homes(rest)
    moved = {key for key in KEYS if before[key] != after[key]}
    assert moved == {key for key in KEYS if before[key] == replicas[leaving].name}
    assert {after[key] for key in moved} == {r.name for r in rest}, "its keys are spread over the others"


def test_a_home_that_is_full_for_a_while_changes_nothing_else() -> None:
    """Whatever sets one policy object has seen before, each choice is that of a new one."""
    replicas, used = row(0, 0, 0, 0, 0), policy("consistent_hash")
    for subset in ([0, 1, 2, 3, 4], [1, 2, 3, 4], [4], [0, 2], [0, 1, 2, 3, 4], [3, 1]):
        there = [replicas[at] for at in subset]
        assert {key: used.choose(Ask("m", key), there, 0.0).name for key in KEYS[:200]} == {
            key: name for key, name in homes(there).items() if key in KEYS[:200]
        }


def test_the_ring_forgets_names_when_there_were_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.policies.counts.RING_NAMES_MAX", 10)
    used = policy("consistent_hash")
    for number in range(50):
        there = [replica(f"r{number}"), replica(f"r{number + 1}")]
        assert used.choose(Ask("m", "key"), there, 0.0) in there
        assert len(used.ring.names) <= 10  # type: ignore[attr-defined]


def test_a_session_s_home_depends_on_names_alone() -> None:
    replicas = row(0, 0, 0, 0)
    assert homes(replicas) == homes(replicas[::-1]) == homes(row(9, 5, 0, 1))
    counts = Counter(homes(replicas).values())
    assert max(counts.values()) < 1.5 * len(KEYS) / 4
    assert min(counts.values()) > 0.5 * len(KEYS) / 4
    assert POINTS_PER_REPLICA == 64


def test_without_a_session_consistent_hash_balances() -> None:
    assert chosen(policy("consistent_hash", Draws([0.0, 0.5])), row(1, 0), 2) == "bb"


# -- around the choice


def dispatcher(name: PolicyName = "round_robin", rng: Random | None = None) -> Dispatcher:
    return Dispatcher(lambda model: ModelSpec(model, name), rng or Random(1))


def closed(name: str, kind: str) -> Replica:
    made = replica(name, max_in_flight=2)
    if kind == "full":
        made.in_flight = 2
    elif kind == "trial":
        made.trial, made.in_flight, made.trying = True, 1, 1
    else:
        made.overloaded_until_s = 10.1
    return made


@pytest.mark.parametrize(
    ("replicas", "exclude", "outcome"),
    [
        ([], (), Hold("none ready")),
        ([], ("a",), Hold("none ready")),
        (row(0), ("a",), Hold("excluded")),
        (row(0, 0), ("a", "b", "gone"), Hold("excluded")),
        ([closed("a", "full")], (), Hold("all full")),
        ([closed("a", "overloaded"), closed("b", "trial")], (), Hold("all full")),
        ([closed("a", "full"), replica("b")], ("b",), Hold("all full")),
        ([closed("a", "full"), replica("b")], (), "b"),
        ([closed("a", "trial"), replica("b")], (), "b"),
        ([closed("a", "overloaded"), replica("b")], (), "b"),
        (row(0, 0), ("a",), "b"),
        (row(0, 0), ("gone",), "a"),
    ],
)
@pytest.mark.parametrize("name", sorted(POLICIES))
def test_only_open_and_untried_replicas(
    name: PolicyName, replicas: list[Replica], exclude: tuple[str, ...], outcome: Hold | str
) -> None:
    got = dispatcher(name).choose(Ask("m", "session"), replicas, 10.0, frozenset(exclude))
    if isinstance(outcome, Hold):
        assert got == outcome
    elif exclude != ("gone",):
        assert getattr(got, "name", got) == outcome
    else:
        assert got in replicas


def test_an_overloaded_replica_comes_back_by_itself() -> None:
    replicas = [closed("a", "overloaded")]
    assert dispatcher().choose(ASK, replicas, 10.0999) == Hold("all full")
    assert dispatcher().choose(ASK, replicas, 10.1) is replicas[0]


def test_each_model_has_its_own_policy_by_its_rule() -> None:
    asked = []

    def rule(model: str) -> ModelSpec:
        asked.append(model)
        return ModelSpec(model, "round_robin" if model == "r" else "least_request")

    made = Dispatcher(rule, Random(1))
    replicas = row(1, 0)
    assert "".join(made.choose(Ask("r"), replicas, 0.0).name for _ in range(4)) == "abab"  # type: ignore[union-attr]
    assert "".join(made.choose(Ask("l"), replicas, 0.0).name for _ in range(4)) == "bbbb"  # type: ignore[union-attr]
    assert asked == ["r", "l"]
    for number in range(5000):
        made.choose(Ask(f"m{number}"), replicas, 0.0)
    assert len(made._policies) <= 4096


open_or_not = st.tuples(st.integers(0, 3), st.booleans(), st.booleans(), st.sampled_from((0.5, 1.0, 4.0)))


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(sorted(POLICIES)), st.lists(open_or_not, max_size=6), st.sets(st.sampled_from("abcdef")), st.integers())
def test_a_choice_is_open_and_untried_or_there_is_none(
    name: PolicyName, states: list[tuple[int, bool, bool, float]], tried: set[str], seed: int
) -> None:
    replicas = []
    for at, (in_flight, overloaded, trial, weight) in enumerate(states):
        made = replica("abcdef"[at], in_flight, weight, max_in_flight=3)
        made.overloaded_until_s, made.trial, made.trying = 99.0 if overloaded else 0.0, trial, in_flight
        replicas.append(made)
    may = [r for r in replicas if r.open(10.0) and r.name not in tried]
    surface = dispatcher(name, Random(seed))
    for session in ("", "one", "two"):
        got = surface.choose(Ask("m", session), replicas, 10.0, frozenset(tried))
        assert got in may if may else isinstance(got, Hold)
