"""The gateways that a request came through, as its Via says: one that comes back is refused, since it would go round for
ever. Pure.

Every process has a mark of its own, which goes with each request to those of its backends that are gateways, too (RFC 9110,
7.6.3); to engines nothing is added. `GET /` tells a gateway's mark, so that one which is its own backend is not used at all.
"""

from collections.abc import Iterable

HOPS_MAX = 8  # where each way round leads through other processes
_NAME = b"leeway-"


def mark_of(number: int) -> bytes:
    """The mark of a process that drew this number."""
    return b"%b%012x" % (_NAME, number)


def came_back(headers: Iterable[tuple[bytes, bytes]], mark: bytes) -> bool:
    """Whether a request with these fields has been here before, or came through too many gateways."""
    via = b",".join([value for name, value in headers if name == b"via"])
    return mark in via or via.count(_NAME) >= HOPS_MAX
