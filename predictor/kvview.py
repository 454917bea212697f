"""What one engine's KV cache holds, by its own account: events of blocks stored and removed, joined to hashed text. Pure.

Engines name a block by a hash of its tokens, the gateway by a checksum of its text, and nobody here has a tokenizer. The
join is the request: it is sent under a session name, the engine names that session with each block that it stores or
uses again, and so the chain of blocks behind a prompt becomes known, as many tokens long as the prompt is. Text block j
of m then covers the engine blocks that lie in its share of the chain. When the engine lets go of one, the text in it is
no longer believed. What cannot be joined (other names, a chain whose beginning is not known) is bounded by counts: the
index never believes more text than the engine holds tokens. Never an argument for a hit, only against one.
"""

import math
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Protocol

from predictor.prefix import PrefixIndex

Hash = bytes | int
CLAIMS_MAX = 4096
NODES_MAX = 1 << 20
CHAIN_MAX = 8192  # blocks of a prompt that are followed: some 6 ms of the loop
TEXTS_MAX = 16  # prompts that part ways within one engine block
SLACK = 1.1
LEARNING = 0.1
LATE = 0.9  # of a prompt's length: chain enough, when its events came after its end
WHOLE = 0.5  # of it: what follows the first token is the answer, not the rest of a prompt whose events are late
RATIO_MIN, RATIO_MAX = 0.25, 4.0  # tokens of a prompt by the engine's count, over our own


class Sent(Protocol):
    """A request that went to the engine (gateway.jobs.Job and predictor.wire.Ask are some)."""

    @property
    def request_id(self) -> str: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def prefix(self) -> tuple[int, ...]: ...
    @property
    def block_tokens(self) -> int: ...
    @property
    def session(self) -> str: ...


class Block:
    """One block that the engine holds: what it continues, its tokens, and the text blocks that need it."""

    __slots__ = ("parent", "texts", "tokens")

    def __init__(self, parent: Hash | None, tokens: int) -> None:
        self.parent = parent
        self.tokens = tokens
        self.texts: tuple[int, ...] = ()


class _Claim:
    """A prompt of ours; `done` once its chain is known, or cannot be known any more; `over` if it ended before its events;
    `grown` if its chain may hold some of its answer."""

    __slots__ = ("block_tokens", "done", "grown", "over", "prefix", "prompt_tokens", "session", "tail")

    def __init__(self, job: Sent) -> None:
        self.prefix = job.prefix
        self.block_tokens = job.block_tokens
        self.prompt_tokens = job.prompt_tokens
        self.session = job.session
        self.tail: Hash | None = None
        self.done = self.over = self.grown = False


class KvView:
    """Corrects `index` by what the engine says. `tokens` are held there; `joined` prompts were matched with their blocks;
    `forgotten` so many times was all. `answers_at_once`: an answer's blocks are told in one piece, at its end (SGLang), not
    each as it is full (vLLM)."""

    def __init__(self, index: PrefixIndex) -> None:
        self.index = index
        self.answers_at_once = False
        self.tokens = 0
        self.joined = 0
        self.forgotten = 0
        self._blocks: dict[Hash, Block] = {}
        self._claims: OrderedDict[str, _Claim] = OrderedDict()
        self._computed: set[str] = set()  # of those that are not done
        self._sessions: dict[str, list[str]] = {}  # that clients named: their requests in flight
        self._ratio = 1.0
        self._block_tokens = 0

    def __len__(self) -> int:
        return len(self._blocks)

    def __repr__(self) -> str:
        open_claims = sum(not (claim.done or claim.over) for claim in self._claims.values())
        return f"<KvView {len(self._blocks)} blocks, {self.tokens} tokens, {open_claims} not joined>"

    # -- what we do

    def sent(self, job: Sent) -> None:
        """The request goes to the engine, under the session that its client named, else under its id."""
        if job.block_tokens:
            self._block_tokens = job.block_tokens
        if not job.prefix or not job.request_id:
            return
        self._forget(job.request_id)
        self._claims[job.request_id] = _Claim(job)
        if job.session:
            self._sessions.setdefault(job.session, []).append(job.request_id)
        if len(self._claims) > CLAIMS_MAX:
            self._forget(next(iter(self._claims)))

    def computed(self, request_id: str) -> None:
        """Its first token is here: the chain that the engine names for it until now is its prompt."""
        claim = self._claims.get(request_id)
        if claim is not None and not claim.done:
            self._computed.add(request_id)

    def gone(self, request_id: str) -> None:
        """It has ended or was given up. Where nobody saw its first token, the chain ends where such prompts do."""
        claim = self._claims.get(request_id)
        if claim is None:
            return
        if request_id in self._computed and claim.tail is not None and not claim.grown:
            self._join(request_id, claim)
        elif not claim.done and claim.tail is not None:
            self._join(request_id, claim, claim.prompt_tokens * self._ratio)
        if claim.done:
            self._forget(request_id)
        else:  # its events are on their way, or were for somebody else
            claim.over = True
            self._computed.discard(request_id)
            self._leave_session(request_id, claim)

    # -- what the engine says

    def stored(self, session: str, hashes: Sequence[Hash], parent: Hash | None, block_tokens: int) -> None:
        """Blocks that continue `parent`, in order: new ones, or old ones that are used again."""
        blocks, before = self._blocks, parent
        for name in hashes:
            if name not in blocks:
                blocks[name] = Block(parent, block_tokens)
                self.tokens += block_tokens
            parent = name
        if len(blocks) > NODES_MAX:
            self.lost()
            return
        request_id = self._whose(session)
        claim = self._claims.get(request_id)
        if claim is not None and not claim.done and hashes:
            follows = request_id in self._computed and claim.tail is not None and before == claim.tail
            if follows and self._answers(claim, len(hashes)):
                self._join(request_id, claim)
            else:
                claim.grown = claim.grown or (follows and self.answers_at_once)
                claim.tail = hashes[-1]
                if claim.over:
                    self._join_late(request_id, claim)

    def removed(self, hashes: Iterable[Hash]) -> None:
        """Blocks that are no longer there, and with them the text that they hold."""
        for request_id in [*self._computed]:
            claim = self._claims[request_id]
            if claim.tail is not None and not claim.grown:
                self._join(request_id, claim)
        gone: list[int] = []
        for name in hashes:
            block = self._blocks.pop(name, None)
            if block is not None:
                self.tokens -= block.tokens
                gone += block.texts
        if gone:
            self.index.drop(gone)
        if self._block_tokens:
            pending = sum([claim.prompt_tokens for claim in self._claims.values() if not (claim.done or claim.over)])
            most = SLACK * (self.tokens / self._ratio + pending) / self._block_tokens
            self.index.keep(int(most) + 1)

    def cleared(self) -> None:
        """Nothing is held any more."""
        self.lost()

    def lost(self) -> None:
        """Events were missed: what is not known to be held is not believed."""
        self._blocks.clear()
        self.tokens = 0
        self.forgotten += 1
        for claim in self._claims.values():
            claim.done = True
        self._computed.clear()
        self.index.forget()

    # -- inside

    def _answers(self, claim: _Claim, blocks: int) -> bool:
        """Whether so many blocks that follow a prompt after its first token are of its answer."""
        if not self.answers_at_once:
            return blocks == 1
        assert claim.tail is not None
        return sum([block.tokens for block in self._chain(claim.tail)]) >= WHOLE * claim.prompt_tokens * self._ratio

    def _join(self, request_id: str, claim: _Claim, end_tokens: float = math.inf) -> None:
        """Give the blocks of the claim's chain, up to so many tokens, the text that they hold."""
        claim.done = True
        self._computed.discard(request_id)
        if claim.tail is None:
            return
        chain = self._chain(claim.tail)
        ratio = min(end_tokens, sum([block.tokens for block in chain])) / claim.prompt_tokens
        if not RATIO_MIN <= ratio <= RATIO_MAX:
            return
        self.joined += 1
        if end_tokens == math.inf:
            self._ratio += LEARNING * (ratio - self._ratio)
        _assign(chain, claim.prefix, claim.block_tokens * ratio)
        self.index.touch(claim.prefix)

    def _join_late(self, request_id: str, claim: _Claim) -> None:
        """Once the chain is as long as such prompts are."""
        assert claim.tail is not None
        whole = claim.prompt_tokens * self._ratio
        if sum([block.tokens for block in self._chain(claim.tail)]) >= LATE * whole:
            self._join(request_id, claim, whole)
            self._forget(request_id)

    def _whose(self, session: str) -> str:
        """The request that an event is about; with several in one session nobody can tell, so none of them is joined."""
        if session in self._claims:
            return session
        mine = self._sessions.get(session, [])
        if len(mine) > 1:
            for request_id in mine:
                self._claims[request_id].done = True
                self._computed.discard(request_id)
        return mine[0] if len(mine) == 1 else ""

    def _forget(self, request_id: str) -> None:
        claim = self._claims.pop(request_id, None)
        self._computed.discard(request_id)
        if claim is not None:
            self._leave_session(request_id, claim)

    def _leave_session(self, request_id: str, claim: _Claim) -> None:
        mine = self._sessions.get(claim.session, [])
        if request_id in mine:
            mine.remove(request_id)
            if not mine:
                del self._sessions[claim.session]

    def _chain(self, tail: Hash) -> list[Block]:
        """From the prompt's beginning on; empty if that is not known, or too far to go."""
        found: list[Block] = []
        name: Hash | None = tail
        while name is not None:
            block = self._blocks.get(name)
            if block is None or len(found) >= CHAIN_MAX:
                return []
            found.append(block)
            name = block.parent
        found.reverse()
        return found


def _assign(chain: list[Block], texts: tuple[int, ...], text_tokens: float) -> None:
    """Tell each block of the text that begins in it or reaches into it first; later text needs it as well, but a prefix
    ends for its reader with the first piece that is missing."""
    at = 0
    for block in chain:
        which = int(at / text_tokens)
        if which >= len(texts):
            return
        if texts[which] not in block.texts:
            block.texts = (*block.texts[-TEXTS_MAX + 1 :], texts[which])
        at += block.tokens
