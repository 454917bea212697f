"""KV blocks of one engine: who holds how many, and which idle ones still keep a prompt's beginning.

A block that holds a full piece of prompt can be found again by its hash (see `Request.prefix`) as soon as it is
computed. While requests hold it, it is shared by reference count; afterwards it is idle: free, yet reusable until it
is taken for something else, the one idle longest first. Two copies computed at the same time become one.
Blocks are counted, not numbered; blocks of output are not kept (vLLM keeps them: hits are underestimated).
"""

from collections.abc import Sequence


class BlockLedger:
    """Counts of blocks; `free` includes the idle ones. A broken assertion is a mistake of the caller."""

    __slots__ = ("_held", "_idle", "free")

    def __init__(self, blocks: int) -> None:
        self.free = blocks
        self._idle: dict[int, None] = {}  # in the order in which they became idle
        self._held: dict[int, int] = {}  # how many requests hold the block

    def __repr__(self) -> str:
        return f"<BlockLedger free={self.free} of them cached={len(self._idle)} named={len(self._held)}>"

    @property
    def cached(self) -> int:
        """Free blocks that keep a reusable prefix."""
        return len(self._idle)

    def hits(self, prefix: Sequence[int], most: int) -> int:
        """How many blocks from the start of `prefix`, at most so many, are there to be reused."""
        count = 0
        for name in prefix[:most]:
            if name not in self._held and name not in self._idle:
                break
            count += 1
        return count

    def in_use(self, prefix: Sequence[int]) -> int:
        """How many of these blocks somebody holds: reusing those takes nothing from the free ones."""
        held = self._held
        return sum(name in held for name in prefix)

    def take(self, blocks: int) -> None:
        """Take unnamed blocks, from idle ones when no others are left."""
        self.free -= blocks
        assert self.free >= 0, repr(self)
        while len(self._idle) > self.free:
            del self._idle[next(iter(self._idle))]

    def give(self, blocks: int) -> None:
        """Give unnamed blocks back."""
        self.free += blocks

    def reuse(self, prefix: Sequence[int]) -> None:
        """Hold these named blocks; all must be there."""
        for name in prefix:
            if name in self._held:
                self._held[name] += 1
            else:
                del self._idle[name]
                self._held[name] = 1
                self.free -= 1

    def name(self, prefix: Sequence[int]) -> None:
        """Unnamed blocks of the caller have been computed and may be found from now on."""
        for name in prefix:
            if name in self._held:
                self._held[name] += 1
                self.free += 1
            else:
                self._held[name] = 1
                self._idle.pop(name, None)

    def drop(self, prefix: Sequence[int]) -> None:
        """Hold these named blocks no longer; the end of a prompt becomes idle before its beginning."""
        for name in reversed(prefix):
            count = self._held[name] - 1
            if count:
                self._held[name] = count
            else:
                del self._held[name]
                self._idle[name] = None
                self.free += 1

    def forget(self) -> None:
        """Empty the cache: what is idle cannot be found any more."""
        self._idle.clear()

    def fork(self) -> "BlockLedger":
        """An independent copy."""
        twin = BlockLedger(self.free)
        twin._idle = dict(self._idle)
        twin._held = dict(self._held)
        return twin
