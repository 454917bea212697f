"""The gateway's own picture of one engine: what it sent there, how far that is, what it holds. Pure.

Fed by dispatches, first tokens and ends; progress in between is read lazily, never told token by token. Between events
the step in progress is reckoned from the profile: steps follow each other without a gap, prompts are computed first
come first served in chunks of the step's token budget. What is heard corrects the reckoning: a first token or an end
marks the end of a step.
"""

from typing import Protocol


class Progress(Protocol):
    """How far one request is, read when needed. `computed` counts tokens whose KV exists, hits included; below 0 when
    nobody can say."""

    @property
    def generated(self) -> int: ...
    @property
    def computed(self) -> int: ...


class Sight(Protocol):
    """An engine whose clock can be seen: when its step in progress ends, None when it is idle."""

    @property
    def step_ends_at_s(self) -> float | None: ...


class Mirror:
    """See the module's words."""
