"""An `Instance` on an event loop's clock: the engine core behind the simulated server.

One timer, at the end of the step in progress. A step that the loop reaches late is booked at the time it was due, so
that timer resolution does not slow the engine down; only a lag beyond `CATCH_UP_S` moves the engine's clock.
Works under any loop that has `time` and `call_at`, virtual ones included. Touched from that loop only: no locks.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from predictor.instance import Instance
from predictor.request import Admitted, Decoded, Event, Finished, FirstToken, Preempted, Request, Timeline

CATCH_UP_S = 0.05


@dataclass(slots=True, eq=False)
class Track:
    """One sequence as the server follows it. `wake` is called whenever something changed."""

    request: Request
    finish_reason: str
    wake: Callable[[], None]
    expected_tokens: int = 0  # what was foretold of the length; 0: nothing
    cached_tokens: int = 0  # prompt tokens that the prefix cache saved
    produced: int = 0
    ended: str | None = None  # the finish reason, "abort" included
    admitted_s: float | None = None
    first_token_s: float | None = None
    last_token_s: float = 0.0
    finished_s: float | None = None
    preemptions: int = 0

    @property
    def timeline(self) -> Timeline:
        """The instants of this sequence; dispatch is its admission to the batch."""
        return Timeline(
            self.request.id,
            self.request.arrival_s,
            self.admitted_s,
            self.first_token_s,
            self.finished_s,
            self.produced,
            self.preemptions,
        )


class Observer(Protocol):
    """Who counts what the core does."""

    def admitted(self, track: Track) -> None: ...
    def token(self, track: Track, gap_s: float | None) -> None: ...
    def preempted(self) -> None: ...
    def stepped(self, tokens: int) -> None: ...
    def ended(self, track: Track) -> None: ...


class CoreStopped(Exception):
    """The core was closed, or an assertion of the model failed: nothing will run any more."""


class EngineCore:
    """Runs an instance. `pause` has vLLM's three modes: abort what runs, wait for it, or keep it where it is."""

    def __init__(self, instance: Instance, observer: Observer, loop: asyncio.AbstractEventLoop) -> None:
        self.instance = instance
        self.paused = False
        self.stopped = False
        self.changes = 1  # grows with whatever changes the instance's state
        self._observer = observer
        self._loop = loop
        self._tracks: dict[str, Track] = {}
        self._held: deque[Track] = deque()
        self._frozen = False
        self._timer: asyncio.TimerHandle | None = None
        self._clock_s = loop.time()
        self._drained = asyncio.Event()
        self._drained.set()

    @property
    def running(self) -> int:
        """Sequences in the batch."""
        return self.instance.running

    @property
    def waiting(self) -> int:
        """Sequences in the queue, those held back by a pause included."""
        return self.instance.waiting + len(self._held)

    def expected_tokens(self) -> dict[str, int]:
        """Output tokens that were foretold, by request."""
        return {name: track.expected_tokens for name, track in self._tracks.items() if track.expected_tokens}

    def now_s(self) -> float:
        """The engine's clock: the loop's, but never behind a step already booked."""
        return max(self._loop.time(), self._clock_s)

    def submit(self, track: Track) -> None:
        """Queue a sequence, or hold it while paused."""
        if self.stopped:
            raise CoreStopped
        if self.paused:
            self._held.append(track)
            return
        self._tracks[track.request.id] = track
        self._drained.clear()
        self.changes += 1
        self.instance.submit(track.request, self.now_s())
        self._arm()

    def abort(self, track: Track) -> None:
        """End a sequence now; nothing happens if it has ended."""
        if track.ended is not None:
            return
        if self._tracks.pop(track.request.id, None) is None:
            self._held.remove(track)
        else:
            self.changes += 1
            self.instance.abort(track.request.id)
            self._note_drained()
        self._end(track, "abort")

    def reset_prefix_cache(self) -> bool:
        """Empty the prefix cache; False, and nothing happens, while sequences hold blocks."""
        self.changes += 1
        return self.instance.forget_prefixes()

    async def pause(self, mode: str) -> None:
        """Hold new sequences; "abort" ends the present ones, "wait" lets them finish first, "keep" stops the clock."""
        self.paused = True
        if mode == "keep":
            self._frozen = True
            self._disarm()
        elif mode == "abort":
            for track in list(self._tracks.values()):
                self.abort(track)
        else:
            await self._drained.wait()

    def resume(self) -> None:
        """Undo `pause`: go on with what was kept, then queue what was held."""
        self.paused = self._frozen = False
        held, self._held = self._held, deque()
        for track in held:
            self.submit(track)
        self._arm()

    def stop(self) -> None:
        """End the core for good; whoever waits for tokens is woken."""
        self.stopped = True
        self._disarm()
        for track in (*self._tracks.values(), *self._held):
            track.wake()

    def _arm(self) -> None:
        ends_at_s = self.instance.step_ends_at_s
        if self._timer is None and ends_at_s is not None and not self._frozen and not self.stopped:
            self._timer = self._loop.call_at(ends_at_s, self._on_step_end)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_step_end(self) -> None:
        self._timer = None
        due_s = self.instance.step_ends_at_s
        assert due_s is not None
        self.changes += 1
        now_s = self._loop.time()
        self._clock_s = due_s if now_s - due_s <= CATCH_UP_S else now_s
        self._observer.stepped(self.instance.step_tokens)
        try:
            for event in self.instance.finish_step(self._clock_s):
                self._deliver(event)
        except Exception:
            self.stop()
            raise
        self._arm()

    def _deliver(self, event: Event) -> None:
        if isinstance(event, Decoded):
            for request_id in event.request_ids:
                self._count_token(self._tracks[request_id], event.at_s)
            return
        track = self._tracks.get(event.request_id)
        if track is None:
            return  # aborted during the step that admitted or preempted it
        match event:
            case FirstToken():
                self._count_token(track, event.at_s)
            case Finished():
                del self._tracks[event.request_id]
                track.finished_s = event.at_s
                self._note_drained()
                self._end(track, track.finish_reason)
            case Admitted():
                if track.admitted_s is None:
                    track.admitted_s = event.at_s
                    track.cached_tokens = event.cached_tokens
                    self._observer.admitted(track)
            case Preempted():
                track.preemptions += 1
                self._observer.preempted()

    def _count_token(self, track: Track, at_s: float) -> None:
        gap_s = None
        if track.first_token_s is None:
            track.first_token_s = at_s
        else:
            gap_s = at_s - track.last_token_s
        track.last_token_s = at_s
        track.produced += 1
        self._observer.token(track, gap_s)
        track.wake()

    def _end(self, track: Track, reason: str) -> None:
        track.ended = reason
        self._observer.ended(track)
        track.wake()

    def _note_drained(self) -> None:
        if not self._tracks:
            self._drained.set()
