"""Swap costs: the study's own points, learning from real swaps, places and their order, KV's small part."""

import random

import pytest

from predictor.cost import GB, SwapCosts
from predictor.hosts import HostError, host_profiles

HOSTS = host_profiles()
RTX = "rtx-5000-ada"


def penalty(costs: SwapCosts, weight_gb: float, kv_gb: float = 0.0, host: str = RTX) -> float:
    return costs.preempt("m", weight_gb * GB, host, "disk", kv_gb * GB).mean_s


@pytest.mark.parametrize(("weight_gb", "seconds"), [(6.2, 3.0), (29.5, 7.3), (16.4, 4.9)])
def test_the_prior_gives_the_published_penalties(weight_gb: float, seconds: float) -> None:
    assert penalty(SwapCosts(HOSTS), weight_gb) == pytest.approx(seconds, rel=0.03)


def test_a_full_cache_is_a_small_part_of_the_penalty() -> None:
    costs = SwapCosts(HOSTS)
    share = (penalty(costs, 29.5, 0.95) - penalty(costs, 29.5)) / penalty(costs, 29.5, 0.95)
    assert 0.01 < share < 0.03


def test_nearer_places_are_cheaper() -> None:
    costs = SwapCosts(HOSTS)
    times = [costs.predict("m", 16 * GB, RTX, place, "gpu").mean_s for place in ("asleep1", "ram", "cache", "disk")]
    assert times == sorted(times) and times[0] < times[-1] / 2


def test_two_sizes_foretell_a_third_on_another_machine() -> None:
    costs, rng = SwapCosts(HOSTS), random.Random(5)
    for _ in range(4):
        for name, gb in (("small", 2.0), ("large", 20.0)):
            costs.observe(name, gb * GB, RTX, "disk", "gpu", (26 + gb / 1.1) * rng.uniform(0.95, 1.05))
    assert costs.predict("third", 9 * GB, RTX, "disk", "gpu").mean_s == pytest.approx(26 + 9 / 1.1, rel=0.2)


def test_a_models_own_time_beats_the_line_and_narrows_the_interval() -> None:
    costs = SwapCosts(HOSTS)
    first = costs.predict("odd", 8 * GB, RTX, "disk", "gpu")
    for _ in range(6):
        costs.observe("plain", 8 * GB, RTX, "disk", "gpu", 3.0)
        costs.observe("odd", 8 * GB, RTX, "disk", "gpu", 4.5)
    learned = costs.predict("odd", 8 * GB, RTX, "disk", "gpu")
    assert learned.mean_s == pytest.approx(4.5, rel=0.08) and learned.seen == 6
    assert costs.predict("plain", 8 * GB, RTX, "disk", "gpu").mean_s == pytest.approx(3.0, rel=0.08)
    assert learned.high_s / learned.low_s < first.high_s / first.low_s


def test_intervals_hold_what_they_promise() -> None:
    rng, inside, count = random.Random(7), 0, 0
    costs = SwapCosts(HOSTS)
    for _ in range(400):
        gb = rng.choice((4.0, 8.0, 16.0))
        took_s = (1.5 + gb / 5.4) * rng.lognormvariate(0.05, 0.12)
        guess = costs.predict(f"m{gb}", gb * GB, RTX, "disk", "gpu")
        inside, count = inside + (guess.low_s <= took_s <= guess.high_s), count + 1
        costs.observe(f"m{gb}", gb * GB, RTX, "disk", "gpu", took_s)
    assert 0.72 < inside / count < 0.9


def test_one_stall_does_not_spoil_what_was_learned() -> None:
    costs = SwapCosts(HOSTS)
    for _ in range(8):
        costs.observe("m", 8 * GB, RTX, "disk", "gpu", 3.0)
    costs.observe("m", 8 * GB, RTX, "disk", "gpu", 300.0)
    assert costs.predict("m", 8 * GB, RTX, "disk", "gpu").mean_s < 3.7


def test_what_is_learned_on_one_host_or_way_stays_there() -> None:
    costs = SwapCosts(HOSTS)
    before = costs.predict("m", 8 * GB, "a6000", "disk", "gpu"), costs.predict("m", 8 * GB, RTX, "asleep1", "gpu")
    costs.observe("m", 8 * GB, RTX, "disk", "gpu", 20.0)
    assert before == (costs.predict("m", 8 * GB, "a6000", "disk", "gpu"), costs.predict("m", 8 * GB, RTX, "asleep1", "gpu"))


def test_nothing_goes_from_disk_to_a_sleeping_engine() -> None:
    with pytest.raises(ValueError, match="nothing goes from disk to asleep1"):
        SwapCosts(HOSTS).predict("m", GB, RTX, "disk", "asleep1")


def test_a_bad_file_of_hosts_says_what_is_wrong(tmp_path) -> None:
    path = tmp_path / "hosts.toml"
    path.write_text("[hosts.x]\nmemory_gb = 3\n")
    with pytest.raises(HostError, match=r"hosts\.x: unknown or missing: cache_gb_per_s"):
        host_profiles(path)


def test_a_start_that_was_learned_of_one_place_is_expected_of_the_others() -> None:
    costs = SwapCosts(HOSTS)
    before_s = costs.predict("m", 0.3 * GB, RTX, "cache", "gpu").mean_s
    costs.observe("m", 0.3 * GB, RTX, "disk", "gpu", 30.0)
    after_s = costs.predict("m", 0.3 * GB, RTX, "cache", "gpu").mean_s
    assert before_s < 2.0
    assert after_s == pytest.approx(30.0, rel=0.2)
    assert costs.predict("m", 0.3 * GB, RTX, "asleep1", "gpu").mean_s < 2.0, "who stayed needs no start"
    costs.observe("m", 0.3 * GB, RTX, "cache", "gpu", 20.0)
    costs.observe("m", 0.3 * GB, RTX, "cache", "gpu", 20.0)
    assert costs.predict("m", 0.3 * GB, RTX, "cache", "gpu").mean_s == pytest.approx(20.0, rel=0.1), "its own times win"
