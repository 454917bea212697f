"""Who makes room: the idle one that came first, each one once, and busy ones are not looked through again and again."""

from gateway.crowd import LOOKED_AT, make_room


class Chair:
    def __init__(self, idle: bool = True) -> None:
        self.idle = idle
        self.ending = False
        self.looks = 0

    def close(self) -> None:
        assert not self.ending
        self.ending = True


def seats(*chairs: Chair) -> dict[Chair, None]:
    return dict.fromkeys(chairs)


def test_the_first_idle_one_goes_and_the_next_after_it() -> None:
    busy, first, second, newcomer = Chair(idle=False), Chair(), Chair(), Chair()
    held = seats(busy, first, second, newcomer)
    assert make_room(held, newcomer)
    assert (first.ending, second.ending) == (True, False)
    assert make_room(held, newcomer)
    assert second.ending
    assert not make_room(held, newcomer), "never the newcomer itself"
    assert not busy.ending
    assert not newcomer.ending


def test_busy_ones_go_behind_so_that_idle_ones_are_found_in_time() -> None:
    crowd = [Chair(idle=False) for _ in range(3 * LOOKED_AT)]
    sleeper, newcomer = Chair(), Chair()
    held = seats(*crowd, sleeper, newcomer)
    tries = 0
    while not make_room(held, newcomer):
        tries += 1
    assert (tries, sleeper.ending, len(held)) == (3, True, len(crowd) + 2)
