"""How the soak tells a level from a growth: by medians far apart, so that neither a step nor a swing passes for a leak."""

from random import Random

from tests.faults.soak_run import SoakResult

EPOCH = 5_000
MIB = 2**20


def growth_mib(readings_mib: list[float]) -> float:
    """Of a warm-up of two epochs and readings after each epoch since."""
    count = len(readings_mib)
    return SoakResult(memory_mib=readings_mib, memory_at=[EPOCH * (number + 2) for number in range(count)]).growth_mib


def swinging(seed: int, leak_bytes: float = 0.0) -> list[float]:
    """A level that swings by up to half a MiB, and by five once in four readings; and what leaks beside it."""
    rng = Random(seed)
    swings = [5.0 if number % 4 == seed % 4 else rng.uniform(0.0, 0.5) for number in range(21)]
    return [40.0 + swing + number * EPOCH * leak_bytes / MIB for number, swing in enumerate(swings)]


def test_a_level_is_no_growth_however_it_swings() -> None:
    assert growth_mib([41.0] * 21) == 0.0
    assert max(abs(growth_mib(swinging(seed))) for seed in range(50)) <= 0.75


def test_what_the_first_fifth_takes_for_good_is_no_growth() -> None:
    assert growth_mib([36.0, 38.0, 40.0, 41.0, 41.0] + [41.0] * 16) == 0.0


def test_a_leak_is_growth_however_little_it_is() -> None:
    for leak_bytes in (32.0, 2048.0):
        expected_mib = leak_bytes * 100_000 / MIB
        for seed in range(50):
            seen_mib = growth_mib(swinging(seed, leak_bytes))
            assert abs(seen_mib - expected_mib) <= 0.75
            assert seen_mib > 1.0


def test_a_late_step_that_stays_is_growth() -> None:
    assert growth_mib([41.0] * 17 + [44.0] * 4) > 1.0


def test_few_readings_say_nothing() -> None:
    assert growth_mib([40.0, 50.0, 60.0, 70.0, 80.0]) == 0.0
    assert SoakResult().growth_mib == SoakResult().line_mib == 0.0
