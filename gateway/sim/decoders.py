"""The decoding sequences of one simulated engine, kept as sums, so that a stretch of steps costs the same as one.

`base` of a sequence is its tokens in the cache minus the engine's counter of steps, `fin` the counter's value at which
its last token is out; so all of them advance by one increment. A sequence takes a block in the step that begins when
its tokens are a multiple of the block size. Pure.
"""

import heapq
from collections.abc import Iterator

from predictor.request import Request


class Sequence:
    """A request inside the engine. While it decodes, `base` and `fin` say how far it is; else `computed` does."""

    __slots__ = ("base", "computed", "decoding", "done", "fin", "output", "prompt", "request_id", "spent", "target")

    def __init__(self, request: Request) -> None:
        self.request_id = request.id
        self.prompt = request.prompt_tokens
        self.output = request.output_tokens
        self.target = request.prompt_tokens  # tokens to prefill
        self.computed = 0
        self.spent = 0  # tokens generated before the current spell of decoding
        self.base = 0
        self.fin = 0
        self.decoding = False
        self.done = False


class Decoders:
    """All sequences that decode, by their sums."""

    __slots__ = ("_edges", "_ends", "_pushed", "_size", "base_sum", "count", "steps")

    def __init__(self, block_size: int) -> None:
        self.steps = 0  # completed steps
        self.count = 0
        self.base_sum = 0
        self._size = block_size
        self._edges = [0] * block_size  # sequences by base modulo block size
        self._ends: list[tuple[int, int, Sequence]] = []
        self._pushed = 0

    def add(self, seq: Sequence, computed: int) -> None:
        """`seq`, with so many tokens in the cache, decodes from now on."""
        seq.decoding = True
        seq.base = computed - self.steps
        seq.fin = self.steps + seq.output - seq.spent
        self.count += 1
        self.base_sum += seq.base
        self._edges[seq.base % self._size] += 1
        self._pushed += 1
        heapq.heappush(self._ends, (seq.fin, self._pushed, seq))

    def remove(self, seq: Sequence) -> int:
        """Out of the sums; returns the tokens it had in the cache."""
        seq.decoding = False
        seq.spent = seq.output - (seq.fin - self.steps)
        self.count -= 1
        self.base_sum -= seq.base
        self._edges[seq.base % self._size] -= 1
        return seq.base + self.steps

    def ended(self) -> Iterator[Sequence]:
        """Those whose last token is out, still in the sums."""
        ends = self._ends
        while ends and ends[0][0] <= self.steps:
            fin, _, seq = heapq.heappop(ends)
            if seq.decoding and seq.fin == fin:
                yield seq

    def steps_to_end(self) -> int:
        """Steps until the first of them ends; there must be one."""
        ends = self._ends
        while True:
            fin, _, seq = ends[0]
            if seq.decoding and seq.fin == fin:
                return fin - self.steps
            heapq.heappop(ends)  # it was preempted and has begun anew

    def need(self, steps: int) -> int:
        """Blocks that all of them take in the next steps."""
        if not self.count:
            return 0
        size = self._size
        rounds, rest = divmod(steps, size)
        blocks = rounds * self.count
        for j in range(self.steps, self.steps + rest):
            blocks += self._edges[-j % size]
        return blocks

    def fits(self, free: int) -> int:
        """Most steps for which so many free blocks suffice."""
        size = self._size
        rounds, left = divmod(free, self.count)
        k = rounds * size
        while (need := self._edges[-(self.steps + k) % size]) <= left:
            left -= need
            k += 1
        return k

    def at_edge(self, seq: Sequence) -> bool:
        """Whether its next token needs a new block."""
        return not (seq.base + self.steps) % self._size
