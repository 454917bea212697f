"""Answer lengths that gateways foretold, kept while their requests are in the engine. Pure.

An engine knows the limit of an answer, not its length: without this, a request counts with all it might generate as soon
as the engine shows it. Lengths come with reservations; one is kept until its request has been seen and is gone, and the
oldest is dropped beyond a bound. Of an answer under way what remains is its median on condition that it got so far (rest).
"""

from collections.abc import Iterable
from dataclasses import replace

from predictor.request import LengthEstimate
from predictor.rest import Rest
from predictor.snapshot import Resident, Snapshot

KEPT_MAX = 8192


class Foretold:
    """By request id."""

    def __init__(self) -> None:
        self._lengths: dict[str, Rest] = {}
        self._seen: set[str] = set()

    def __len__(self) -> int:
        return len(self._lengths)

    def told(self, name: str, lengths: LengthEstimate) -> None:
        """A request is on its way."""
        if name not in self._lengths and len(self._lengths) >= KEPT_MAX:
            oldest = next(iter(self._lengths))
            del self._lengths[oldest]
            self._seen.discard(oldest)
        self._lengths[name] = Rest(lengths)

    def correct(self, name: str, lengths: LengthEstimate) -> bool:
        """It turned out to have other lengths. False for one that nobody foretold, or that is gone."""
        known = name in self._lengths
        if known:
            self._lengths[name] = Rest(lengths)
        return known

    def saw(self, present: Iterable[str]) -> None:
        """These are in the engine now."""
        there = self._lengths.keys() & present
        for name in self._seen - there:
            del self._lengths[name]
        self._seen = set(there)

    def forget(self) -> None:
        """It is another engine."""
        self._lengths.clear()
        self._seen.clear()

    def corrected(self, snapshot: Snapshot) -> Snapshot:
        """The state with these lengths, where they are below what the engine reckons with."""
        if not self._lengths:
            return snapshot
        running, waiting = ([self._one(one) for one in some] for some in (snapshot.running, snapshot.waiting))
        return replace(snapshot, running=tuple(running), waiting=tuple(waiting))

    def _one(self, one: Resident) -> Resident:
        rest = self._lengths.get(one.id)
        if rest is None:
            return one
        output_tokens = one.generated_tokens + rest.tokens(one.generated_tokens)
        if output_tokens >= one.output_tokens:
            return one
        return Resident(one.id, one.prompt_tokens, one.computed_tokens, one.generated_tokens, output_tokens, one.shared_blocks)
