"""How a step's prompt tokens are handed out in one order among prompts that are begun and those who wait. Pure.

An engine gives a step's tokens to running requests first, so a long prompt once begun would block whoever comes with an
earlier deadline. Here the prompts that are begun stay in the queue with what is left of them, and each gets a limit for the
coming step: what those before it, begun or waiting, leave. Tokens are left only for whom the engine can admit: a slot,
KV blocks for all of its prompt, and nothing else that it waits for. Where they were left in vain, the next few steps leave
none for that one. A prompt that is passed over keeps its blocks and what it has computed; blocks that it still needs are
kept from those behind it, as they are not from those before it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from backends.standing import InEngine
from predictor.queues import TieredQueue
from predictor.share import Share
from predictor.waiting import Waiting

IN_VAIN_STEPS = 8
IN_VAIN_MAX = 256
NO_LIMIT = 1 << 60
_ARRIVAL, _KEY, _LATE_KEY = (attrgetter(name, "number") for name in ("arrival_s", "key", "late_key"))


@dataclass(frozen=True, slots=True)
class Room:
    """What a step has for prompts: tokens, free slots, free KV blocks of so many tokens each."""

    tokens: int
    slots: int
    blocks: int
    block_tokens: int


class Handout:
    """The begun prompts of one engine within its queue, and the limits of the coming step (`limits`: by request id)."""

    def __init__(self, queue: TieredQueue) -> None:
        self.limits: dict[str, int] = {}
        self.left: dict[str, int] = {}  # prompt tokens to compute, of those begun
        self.kept: dict[str, int] = {}  # tokens left to those who wait
        self.spare_blocks = NO_LIMIT  # KV blocks for others who wait
        self.blocked = False  # whether tier 1 has nobody who could use tokens in this step
        self._queue = queue
        self._in_vain: dict[str, int] = {}  # until which step nothing is left to whom
        self._step = 0

    def __repr__(self) -> str:
        return f"<Handout begun={self.left} limits={self.limits}>"

    # -- who is begun

    def follow(
        self,
        filling: Sequence[InEngine],
        begins: Callable[[InEngine], None],
        goes_on: Callable[[InEngine, int], None],
    ) -> None:
        """These are begun now: `begins` puts a new one into the queue, `goes_on` reckons anew what is left of one."""
        known, left = self.left, {}
        for request in filling:
            name = request.request_id
            tokens = request.num_prompt_tokens + request.num_output_tokens - request.num_computed_tokens
            if tokens <= 0:
                continue  # its last tokens are on their way
            left[name] = tokens
            before = known.get(name)
            if before is None:
                begins(request)
            elif before != tokens:
                goes_on(request, tokens)
        for name in known.keys() - left.keys():
            self._queue.remove(name)
        self.left = left

    def leave(self, request_id: str) -> None:
        """It is not begun any more: it gave way, or is gone."""
        if self.left.pop(request_id, 0):
            self._queue.remove(request_id)

    # -- a step

    def plan(self, room: Room, ready: Callable[[str], bool], now_s: float) -> None:
        """The limits of the coming step. `ready`: whether one who waits could begin, but for room."""
        self._step += 1
        self.kept, self.limits, self.spare_blocks, self.blocked = {}, {}, NO_LIMIT, False
        if not self.left:
            return
        limits, tokens, slots, blocks = self.limits, room.tokens, room.slots, room.blocks
        first_given, first_refused, todo = False, False, len(self.left)
        for waiting in self._in_turn(now_s, slots > 0):
            if tokens <= 0 or not todo:
                break
            name = waiting.id
            if waiting.begun:
                given = limits[name] = min(self.left[name], tokens)
                blocks -= -(-self.left[name] // room.block_tokens)
                todo -= 1
            else:
                needed = -(-waiting.tokens // room.block_tokens)
                if slots <= 0 or needed > blocks:
                    slots = 0  # the engine tries nobody behind it
                elif self._in_vain.get(name, 0) < self._step and ready(name):
                    given = self.kept[name] = min(waiting.tokens, tokens)
                    slots, blocks = slots - 1, blocks - needed
                if name not in self.kept:
                    first_refused = first_refused or waiting.tier == 1
                    continue
            tokens -= given
            first_given = first_given or waiting.tier == 1
        self.spare_blocks = blocks
        self.blocked = first_refused and not first_given
        for name in self.left:
            limits.setdefault(name, 0)

    def done(self, scheduled: Mapping[str, int]) -> None:
        """The step is composed, with so many tokens for each."""
        for name in self.kept:
            if name not in scheduled:
                if len(self._in_vain) >= IN_VAIN_MAX:
                    self._in_vain.clear()
                self._in_vain[name] = self._step + IN_VAIN_STEPS

    def _in_turn(self, now_s: float, all_of_them: bool) -> Iterator[Waiting]:
        """Tier 1, and between them tier 2 when its share has its turn; those begun, or all of them."""
        if all_of_them:
            first, second = self._queue.first(now_s), self._queue.second(now_s)
        else:
            first, second = self._begun(now_s)
        if not second:
            yield from first
            return
        share, at = Share(self._queue.share.rho), 0
        share.debt = self._queue.share.debt
        for waiting in first:
            while at < len(second) and share.turn(tokens := self._tokens(second[at])):
                yield second[at]
                share.count(0, tokens)
                at += 1
            yield waiting
            share.count(self._tokens(waiting), 0)
        yield from second[at:]

    def _begun(self, now_s: float) -> tuple[list[Waiting], list[Waiting]]:
        """Those begun, in the queue's order: before all others who has waited long."""
        queue = self._queue
        begun = [waiting for waiting in map(queue.get, self.left) if waiting is not None]
        aged = [waiting for waiting in begun if now_s - waiting.arrival_s >= queue.age_s]
        first = [waiting for waiting in begun if waiting.tier == 1 and waiting not in aged]
        second = [waiting for waiting in begun if waiting.tier == 2 and waiting not in aged]
        aged.sort(key=_ARRIVAL)
        first.sort(key=_KEY)
        second.sort(key=_LATE_KEY)
        return aged + first, second

    def _tokens(self, waiting: Waiting) -> int:
        return self.left[waiting.id] if waiting.begun else waiting.tokens
