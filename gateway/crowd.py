"""More clients than there is room for: the connection that has idled longest makes room, so that whoever only holds
connections locks nobody out. Pure.
"""

from typing import Protocol, TypeVar

LOOKED_AT = 64


class Seat(Protocol):
    """A client's connection."""

    @property
    def idle(self) -> bool: ...
    @property
    def ending(self) -> bool: ...
    def close(self) -> None: ...


_Seat = TypeVar("_Seat", bound=Seat)


def make_room(seats: dict[_Seat, None], newcomer: _Seat) -> bool:
    """Close an idle connection, the first of those in `seats`; the newcomer is the last. Busy ones that are passed over go
    behind, so that a crowd of them is not looked through again and again. False when nobody was found."""
    for seat in [seat for seat, _ in zip(seats, range(LOOKED_AT), strict=False)]:
        if seat is newcomer or seat.ending:
            continue
        if seat.idle:
            seat.close()
            return True
        del seats[seat]
        seats[seat] = None
    return False
