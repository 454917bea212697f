"""A second tier's part of what is handed out: how much it is owed, and whose turn it is. Pure."""

import math


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
