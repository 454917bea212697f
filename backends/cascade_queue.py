"""The waiting line of a scheduler that asks its queue for one head after another, ordered by budgets. Engine-neutral, pure.

Within a step the order stands still. Whom the scheduler takes out and puts back in the same step was skipped and returns
as it was; whom it keeps is admitted. A request that gave way rests until the next step, so that it cannot take back the
slot it left, and the one that it left it to is shown before all others for a few steps.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from backends.cascade import Cascade
from predictor.waiting import Waiting

HOLD_STEPS = 16


class BudgetQueue:
    """vLLM's RequestQueue by shape. `open` before each step, `close` after it."""

    def __init__(self, cascade: Cascade) -> None:
        self.now_s = 0.0
        self._cascade = cascade
        self._queue = cascade.queue
        self._requests: dict[str, Any] = {}
        self._taken: dict[str, tuple[Any, Waiting]] = {}
        self._resting: list[Any] = []
        self._held = ""
        self._hold_steps = 0
        self._debt = 0.0
        self._block_tokens = 0  # while the step is being composed: of a KV block
        self._spare_blocks = 0
        self._order: list[Any] | None = None

    def __repr__(self) -> str:
        return f"<BudgetQueue {self._queue!r} resting={len(self._resting)} held={self._held or None}>"

    # -- of our scheduler

    def open(self, now_s: float) -> None:
        """A step begins at this instant."""
        self.now_s = now_s
        self._taken.clear()
        self._debt = self._queue.share.debt
        self._order = None
        for request in self._resting:
            self.add_request(request)
        self._resting.clear()
        self._hold_steps -= 1
        if self._held not in self._requests or self._hold_steps <= 0:
            self._held = ""

    def limit(self, block_tokens: int) -> None:
        """The step is about to be composed: who waits behind prompts that are begun must leave them the KV blocks of so many
        tokens each that they still need. The engine asks for free ones only."""
        self._block_tokens, self._spare_blocks = block_tokens, self._cascade.handout.spare_blocks

    def close(self) -> list[Any]:
        """The step is composed: who was admitted in it."""
        self._block_tokens = 0
        self._queue.share.debt = self._debt
        for request, waiting in self._taken.values():
            self._cascade.admitted(request, waiting, self.now_s)
        return [request for request, _ in self._taken.values()]

    def request(self, request_id: str) -> Any:
        """Who waits under that id."""
        return self._requests[request_id]

    def gave_way(self, request: Any, to: str) -> None:
        """It was just put back (`prepend_request`) for another one, who is shown first from now on."""
        self.remove_request(request)
        self._resting.append(request)
        self._held, self._hold_steps = to, HOLD_STEPS

    # -- of vLLM's

    def add_request(self, request: Any) -> None:
        """Join."""
        self._put(request, self._cascade.entry(request, self.now_s))

    def prepend_request(self, request: Any) -> None:
        """Join; the place is the budget's to say."""
        self._return(request)

    def prepend_requests(self, requests: Iterable[Any]) -> None:
        """Those who were skipped in this step return."""
        for request in requests:
            self._return(request)

    def peek_request(self) -> Any:
        """Whose turn it is. IndexError if nobody waits."""
        return self._requests[self._head().id]

    def pop_request(self) -> Any:
        """Take whose turn it is. IndexError if nobody waits."""
        waiting = self._head()
        request = self._requests.pop(waiting.id)
        if self._block_tokens and waiting.id not in self._cascade.handout.kept:
            self._spare_blocks -= -(-waiting.tokens // self._block_tokens)
        if waiting.tier == 2 and self._queue.tiers[0]:
            self._queue.share.debt -= waiting.tokens  # until the step's own count: one turn is one request
        self._queue.remove(waiting.id)
        self._taken[waiting.id] = request, waiting
        self._order = None
        return request

    def remove_request(self, request: Any) -> None:
        """Leave, wherever it is."""
        if self._requests.pop(request.request_id, None) is not None:
            self._queue.remove(request.request_id)
            self._order = None
        elif request in self._resting:
            self._resting.remove(request)

    def remove_requests(self, requests: Iterable[Any]) -> None:
        """Leave; who is not here is passed over."""
        for request in requests:
            self.remove_request(request)

    def __bool__(self) -> bool:
        """Whether there is somebody to take; while a step is composed, somebody with room."""
        if not self._requests or not self._block_tokens:
            return bool(self._requests)
        waiting = self._head()
        return waiting.id in self._cascade.handout.kept or self._spare_blocks * self._block_tokens >= waiting.tokens

    def __len__(self) -> int:
        return len(self._requests) + len(self._resting)

    def __iter__(self) -> Iterator[Any]:
        """Tier 1, tier 2, those who rest."""
        if self._order is None:
            both = (self._queue.first(self.now_s), self._queue.second(self.now_s))
            self._order = [self._requests[waiting.id] for tier in both for waiting in tier if not waiting.begun]
        return iter([*self._order, *self._resting])

    # -- inside

    def _head(self) -> Waiting:
        if self._held and self._held in self._requests:
            held = self._queue.get(self._held)
            assert held is not None
            return held
        head = self._queue.head(self.now_s)
        if head is None:
            raise IndexError("nobody waits")
        return head

    def _return(self, request: Any) -> None:
        taken = self._taken.pop(request.request_id, None)
        if taken is None:  # it was preempted
            self._cascade.handout.leave(request.request_id)
            request.leeway.cached = 0
        self._put(request, taken[1] if taken is not None else self._cascade.entry(request, self.now_s))

    def _put(self, request: Any, waiting: Waiting) -> None:
        self._requests[waiting.id] = request
        self._queue.add(waiting, self.now_s)
        self._order = None
