"""A second tier's part of what is handed out: how much it is owed, and whose turn it is. Pure."""

import math
from collections.abc import Sequence


class Share:
    """Tier 2's part of what is handed out, in tokens, counted only while both tiers have somebody.

    `debt` is what tier 2 is owed: rho x all - its own. It stays within one item (or one batch's rounding), so over any
    window the share is rho up to that.
    """

    __slots__ = ("debt", "rho")

    def __init__(self, rho: float) -> None:
        assert 0 <= rho <= 1
        self.rho = rho
        self.debt = 0.0

    def due(self, tokens: int) -> int:
        """How many of a batch of so many tokens tier 2 is to get, where prompts may be cut."""
        return max(0, min(tokens, math.floor(self.debt + self.rho * tokens)))

    def turn(self, tokens: int) -> bool:
        """Whether it is the turn of a request of tier 2 with so many tokens, where prompts are handed out whole."""
        return self.rho > 0 and self.debt >= 0.5 * (1.0 - self.rho) * tokens

    def count(self, first: int, second: int) -> None:
        """So many tokens were handed out to each tier, both having somebody."""
        self.debt += self.rho * (first + second) - second


def turns(debt: float, rho: float, first: Sequence[int], second: Sequence[int], most: int = 1 << 30) -> list[int]:
    """The tiers in the order in which they get their turns, for requests of so many tokens that are handed out whole and
    none of which leaves before; mixed for at most so many turns, the rest is tier 1 before tier 2."""
    share = Share(rho)
    share.debt = debt
    order: list[int] = []
    at = behind = 0
    while at < len(first) and behind < len(second) and len(order) < most:
        if share.turn(second[behind]):
            share.count(0, second[behind])
            behind += 1
            order.append(2)
        else:
            share.count(first[at], 0)
            at += 1
            order.append(1)
    return order + [1] * (len(first) - at) + [2] * (len(second) - behind)
