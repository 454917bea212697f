"""The wall clock as engines are told it: as it is, but never back."""

from gateway.wall import Wall


class Clocks:
    """Both clocks of a machine."""

    def __init__(self) -> None:
        self.now_s = 500.0
        self.wall_s = 1_800_000_000.0

    def passes(self, seconds: float) -> None:
        self.now_s += seconds
        self.wall_s += seconds

    def wall_ns(self) -> int:
        return int(self.wall_s * 1e9)


def made() -> tuple[Clocks, Wall]:
    clocks = Clocks()
    return clocks, Wall(lambda: clocks.now_s, clocks.wall_ns)


def off_s(clocks: Clocks, wall: Wall) -> float:
    """How far ahead of the machine's it is."""
    return round(wall.unix_ms() / 1e3 - clocks.wall_s, 2)


def test_it_is_the_machines_and_follows_it_forward() -> None:
    clocks, wall = made()
    assert off_s(clocks, wall) == 0
    clocks.passes(10)
    assert off_s(clocks, wall) == 0
    clocks.wall_s += 3600
    assert off_s(clocks, wall) == 0


def test_set_back_it_goes_on_slowly_until_it_is_right() -> None:
    clocks, wall = made()
    before = wall.unix_ms()
    clocks.wall_s -= 3600
    told = []
    for _ in range(7200):
        clocks.passes(1)
        told.append(wall.unix_ms())
    steps = [later - earlier for earlier, later in zip([before, *told[:-1]], told, strict=True)]
    assert set(steps) == {500}
    assert off_s(clocks, wall) == 0
    clocks.passes(5)
    assert off_s(clocks, wall) == 0


def test_what_comes_later_is_never_told_an_earlier_instant() -> None:
    clocks, wall = made()
    last = 0
    for jump_s in (0.0, -5.0, 3.0, -3600.0, -1.0, 7200.0, -7200.0):
        clocks.wall_s += jump_s
        for _ in range(4):
            clocks.passes(0.25)
            told = wall.unix_ms()
            assert told > last
            last = told
