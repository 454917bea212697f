"""One request inside an engine: how far it is and what it holds. `Instance` moves it; others may read it."""

from collections.abc import Mapping

from predictor.kv import BlockLedger
from predictor.profile import EngineLimits
from predictor.request import Request
from predictor.snapshot import Resident, held_blocks


class Sequence:
    """It decodes once all tokens but the newest output are computed.

    `computed` tokens have their KV in the cache, `target` must be computed before the next output token can be sampled:
    the prompt, after a preemption also the output so far. `blocks` are all that it sits on, of which the first `named`
    are registered in the ledger and `shared` were others' before it came.
    """

    __slots__ = (
        "_kept", "blocks", "computed", "decoding", "expected_hits", "id", "last", "named", "output", "prefix", "prompt",
        "shared", "target",
    )  # fmt: skip

    def __init__(self, request: Request, block_size: int) -> None:
        self.id = request.id
        self.prompt = request.prompt_tokens
        self.output = request.output_tokens
        self.prefix = request.prefix[: self.prompt // block_size]
        self.last = self.prompt + self.output - 1  # computed tokens when the last output token has been sampled
        self.target = self.prompt
        self.computed = 0
        self.decoding = False
        self.blocks = 0
        self.named = 0
        self.shared = 0
        self.expected_hits = 0  # tokens that the cache saves at the first admission, where prefixes are not followed
        self._kept = 0  # output tokens as long as it does not decode

    @property
    def generated(self) -> int:
        """Output tokens so far."""
        return self.computed + 1 - self.prompt if self.decoding else self._kept

    def enter(self, blocks: int, hits: int, block_size: int) -> None:
        """Admitted, with so many blocks, so many of them reused."""
        self.blocks = blocks
        self.named = hits
        self.computed = hits * block_size or self.expected_hits
        self.expected_hits = 0

    def advance(self, tokens: int, block_size: int, kv: BlockLedger) -> bool:
        """So many more tokens of the prompt are computed; True if that completed it, so that a token was sampled."""
        self.computed += tokens
        full = min(self.computed // block_size, len(self.prefix))
        if full > self.named:
            kv.name(self.prefix[self.named : full])
            self.named = full
        if self.computed >= self.target:
            self._kept += 1
            self.decoding = True
            return True
        if self._kept and self.computed + 1 == self.target:
            self.decoding = True  # what is left is the newest output token
            if self.computed % block_size == 0:
                self.blocks -= 1
                kv.give(1)
        return False

    def restart(self) -> None:
        """Everything computed is lost; the output so far is not."""
        self._kept = self.generated
        self.decoding = False
        self.target = self.prompt + self._kept
        self.computed = 0

    def fork(self) -> "Sequence":
        """An independent copy."""
        twin: Sequence = Sequence.__new__(Sequence)
        for name in Sequence.__slots__:
            setattr(twin, name, getattr(self, name))
        return twin

    def resident(self, lengths: Mapping[str, int], tokens: int) -> Resident:
        """Its record once so many more tokens are computed; `lengths` may replace the true number of output tokens."""
        computed = self.computed + tokens
        generated = self.generated + 1 if tokens and (self.decoding or computed >= self.target) else self.generated
        return Resident(self.id, self.prompt, computed, generated, lengths.get(self.id, self.output), self.shared)

    def resume(self, who: Resident) -> None:
        """Take over a waiting request's record."""
        self._kept = who.generated_tokens
        self.target = self.prompt + self._kept
        self.expected_hits = who.computed_tokens
        self.shared = who.shared_blocks

    def seat(self, who: Resident, limits: EngineLimits) -> None:
        """Take over, after `resume`, a running request's record."""
        self.expected_hits = 0
        self.computed = who.computed_tokens
        self.decoding = who.decoding
        self.blocks = held_blocks(who, limits)
