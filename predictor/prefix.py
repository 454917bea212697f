"""Which prompt blocks an engine probably still holds: hashes in the order of their last use, as many as its KV holds.

The gateway touches the blocks of a prompt when it sends the prompt there; no event of the engine is needed if the
capacity is the engine's own (half of it would double the tail of agents' traffic, four times it would cost 15 %).
A hash stands for all text up to the end of its block. Of a prompt's blocks the last is forgotten first, as engines do.
"""

from collections import OrderedDict
from collections.abc import Sequence


class PrefixIndex:
    """Least recently used hashes of one engine. `version` grows with each change of what is held."""

    def __init__(self, capacity_blocks: int) -> None:
        self._held: OrderedDict[int, None] = OrderedDict()
        self.capacity_blocks = max(0, capacity_blocks)
        self.version = 0

    def __len__(self) -> int:
        return len(self._held)

    def __repr__(self) -> str:
        return f"<PrefixIndex {len(self._held)}/{self.capacity_blocks} blocks>"

    def hit_blocks(self, prefix: Sequence[int]) -> int:
        """How many blocks of `prefix`, from its beginning, are held."""
        held = self._held
        count = 0
        for block in prefix:
            if block not in held:
                break
            count += 1
        return count

    def touch(self, prefix: Sequence[int]) -> None:
        """All blocks of `prefix` are used now; the oldest others give way."""
        if not prefix or not self.capacity_blocks:
            return
        held = self._held
        for block in reversed(prefix):
            if block in held:
                held.move_to_end(block)
            else:
                held[block] = None
        self._shrink()
        self.version += 1

    def resize(self, capacity_blocks: int) -> None:
        """Another capacity: the engine's KV turned out larger or smaller."""
        self.capacity_blocks = max(0, capacity_blocks)
        self._shrink()
        self.version += 1

    def drop(self, blocks: Sequence[int]) -> None:
        """The engine says that it no longer has these."""
        for block in blocks:
            self._held.pop(block, None)
        self.version += 1

    def keep(self, count: int) -> None:
        """The engine holds no more than that: the least recently used beyond are forgotten."""
        if len(self._held) > count:
            while len(self._held) > count:
                self._held.popitem(last=False)
            self.version += 1

    def forget(self) -> None:
        """The engine started anew."""
        self._held.clear()
        self.version += 1

    def _shrink(self) -> None:
        while len(self._held) > self.capacity_blocks:
            self._held.popitem(last=False)
