"""Which KV blocks lie in which tier below HBM: written through when computed, demoted tier by tier, evicted from the last.

Placement "lru" demotes what was used longest ago; "value" what has the least reuse probability x recompute seconds per
byte (`predictor.restore`), the prior of a class being the share of its blocks that were ever asked for again, those
evicted meanwhile included: else what is evicted early would look as if nobody wanted it. Pure.
"""

import heapq
from collections.abc import Sequence

from predictor.restore import Found, Tier, keep_key

GHOSTS = 8  # names remembered after their eviction, in multiples of the blocks held


class _Block:
    __slots__ = ("hits", "key", "kind", "recompute_s", "tier", "used_s")

    def __init__(self, kind: int, recompute_s: float) -> None:
        self.kind = kind
        self.recompute_s = recompute_s
        self.hits = 0
        self.used_s = 0.0
        self.tier = 0
        self.key = 0.0


class TierStore:
    """One pool that all instances reach. `kinds`: how many classes of requests there are."""

    def __init__(self, tiers: Sequence[Tier], block_bytes: float, placement: str, half_life_s: float, kinds: int) -> None:
        self._room = [int(tier.capacity_bytes // block_bytes) for tier in tiers]
        self._block_bytes = block_bytes
        self._by_value = placement == "value"
        self._half_life_s = half_life_s
        self._blocks: dict[int, _Block] = {}
        self._count = [0] * len(tiers)
        self._heaps: list[list[tuple[float, int]]] = [[] for _ in tiers]  # with outdated items among them
        self._gone: dict[int, int] = {}  # evicted before anybody asked again: the class of each, the oldest forgotten
        self._seen = [1.0] * kinds
        self._again = [0.5] * kinds
        self.evicted = 0

    def __repr__(self) -> str:
        return f"<TierStore {self._count} of {self._room} blocks>"

    def found(self, prefix: Sequence[int], hbm_blocks: int, block_tokens: int) -> Found:
        """How far a prefix reaches with each further tier."""
        blocks = self._blocks
        deepest, reach = 0, []
        count = hbm_blocks
        for name in prefix[hbm_blocks:]:
            block = blocks.get(name)
            if block is None:
                break
            while block.tier > deepest:
                reach.append(count * block_tokens)
                deepest += 1
            count += 1
        reach += [count * block_tokens] * (len(self._room) - len(reach))
        return Found(hbm_blocks * block_tokens, tuple(reach))

    def use(self, prefix: Sequence[int], kind: int, seconds: Sequence[float], now_s: float) -> None:
        """These blocks were computed, or used again; the last one first, so that a beginning outlives its end.

        `seconds`: what computing each block costs.
        """
        for place in range(len(prefix) - 1, -1, -1):
            name = prefix[place]
            block = self._blocks.get(name)
            if block is None:
                block = self._blocks[name] = _Block(kind, seconds[place])
                self._count[0] += 1
                if name in self._gone:
                    self._again[self._gone.pop(name)] += 1
                    block.hits = 1
                else:
                    self._seen[kind] += 1
            else:
                self._again[block.kind] += block.hits == 0
                block.hits += 1
                self._count[block.tier] -= 1
                self._count[0] += 1
            block.tier = 0
            block.used_s = now_s
            self._push(name, block, place)
        self._settle()

    def _push(self, name: int, block: _Block, depth: int) -> None:
        if self._by_value:
            prior = self._again[block.kind] / self._seen[block.kind]
            block.key = keep_key(block.hits, block.used_s, self._half_life_s, prior, block.recompute_s, self._block_bytes)
        else:
            block.key = block.used_s
        block.key -= depth * 1e-7
        heapq.heappush(self._heaps[block.tier], (block.key, name))

    def _settle(self) -> None:
        """Demote until every tier holds what it can."""
        for tier, room in enumerate(self._room):
            while self._count[tier] > room:
                key, name = heapq.heappop(self._heaps[tier])
                block = self._blocks.get(name)
                if block is None or block.tier != tier or block.key != key:
                    continue
                self._count[tier] -= 1
                if tier + 1 < len(self._room):
                    block.tier = tier + 1
                    self._count[tier + 1] += 1
                    heapq.heappush(self._heaps[tier + 1], (key, name))
                else:
                    self._evict(name, block)

    def _evict(self, name: int, block: _Block) -> None:
        del self._blocks[name]
        self.evicted += 1
        if not block.hits:
            self._gone[name] = block.kind
            if len(self._gone) > GHOSTS * sum(self._room):
                del self._gone[next(iter(self._gone))]
