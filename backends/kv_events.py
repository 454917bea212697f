"""Events of an engine's KV cache as vLLM (0.32) and SGLang (0.5.23) publish them: batches in msgpack, numbered. Pure.

A message has three frames: topic, number (8 bytes, from 0 in each process), batch. `Ledger` takes them in order and
hands their events to a sink. A number that is missing means that something was missed: then whatever was believed is
forgotten, unless the publisher's replay fills the hole. Blocks elsewhere than in the accelerator's own memory do not
count, nor do those of further cache groups, which repeat the first one's.
"""

from collections.abc import Iterable, Sequence
from typing import Literal, Protocol

import msgspec

Hash = bytes | int
NUMBER_BYTES = 8
END = b"\xff" * NUMBER_BYTES  # of a replay
OWN_MEMORY = (None, "GPU")


def check_endpoint(text: str) -> str:
    """The endpoint itself. Raises ValueError unless it is one that can be connected to."""
    kind, _, rest = text.partition("://")
    if kind == "ipc" and rest.startswith("/"):
        return text
    host, _, port = rest.rpartition(":")
    if kind != "tcp" or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError("must be tcp://HOST:PORT or ipc:///PATH")
    if "*" in host:
        raise ValueError("* is what the engine binds to; name its host")
    return text


class KvSink(Protocol):
    """Who wants to know (predictor.kvview.KvView is one)."""

    def stored(self, session: str, hashes: Sequence[Hash], parent: Hash | None, block_tokens: int) -> None: ...
    def removed(self, hashes: Iterable[Hash]) -> None: ...
    def cleared(self) -> None: ...
    def lost(self) -> None: ...


class BlockStored(msgspec.Struct, tag=True, frozen=True):
    """Fields that are not named here are not read."""

    block_hashes: list[Hash]
    parent_block_hash: Hash | None
    block_size: int
    medium: str | None = None
    group_idx: int | None = None
    session_id: str | None = None


class BlockRemoved(msgspec.Struct, tag=True, frozen=True):
    block_hashes: list[Hash]
    medium: str | None = None
    group_idx: int | None = None


class AllBlocksCleared(msgspec.Struct, tag=True, frozen=True):
    pass


class Batch(msgspec.Struct, array_like=True, frozen=True):
    """What one step of the engine changed."""

    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]


_decoder = msgspec.msgpack.Decoder(Batch)
Verdict = Literal["taken", "old", "gap", "malformed"]


class Ledger:
    """Takes messages in order. `gaps` counts holes, `malformed` batches that could not be read, `restarts` connections
    after which it was not the same process any more, or could not be shown to be; all three make it forget."""

    def __init__(self, sink: KvSink) -> None:
        self.batches = self.events = self.gaps = self.malformed = self.restarts = 0
        self._sink = sink
        self._expected = -1
        self._last_s = 0.0  # the publisher's stamp of the last batch
        self._unproven = False

    def __repr__(self) -> str:
        return f"<Ledger next {self._expected} gaps={self.gaps} restarts={self.restarts}>"

    @property
    def wanted(self) -> int:
        """Where a replay has to begin: after a new connection with the last batch that is known, to compare stamps."""
        return max(0, self._expected - self._unproven)

    def connected(self) -> None:
        """A new connection: it may be another process, with numbers of its own."""
        self._unproven = self._expected > 0

    def take(self, frames: Sequence[bytes]) -> Verdict:
        """Take one message in. After `gap` nothing of it was taken: ask for a replay, or call `skip` and take it again."""
        if len(frames) != 3 or len(frames[1]) != NUMBER_BYTES:
            return self._bad()
        number = int.from_bytes(frames[1], "big")
        try:
            batch = _decoder.decode(frames[2])
        except msgspec.MsgspecError:
            self._expected = number + 1
            return self._bad()
        if self._unproven:
            self._unproven = False
            if number == self._expected - 1 and batch.ts == self._last_s:
                return "old"
            self.restarts += 1
            self._sink.lost()
            self._expected = 0
        if 0 <= number < self._expected:
            return "old"
        if number > self._expected >= 0:
            return "gap"
        self._expected, self._last_s = number + 1, batch.ts
        self.batches += 1
        for event in batch.events:
            self._tell(event)
        return "taken"

    def skip(self, frames: Sequence[bytes]) -> None:
        """Nobody can say what was missed before this message."""
        self.gaps += 1
        self._sink.lost()
        self._expected = int.from_bytes(frames[1], "big")

    def _bad(self) -> Verdict:
        self.malformed += 1
        self._sink.lost()
        return "malformed"

    def _tell(self, event: BlockStored | BlockRemoved | AllBlocksCleared) -> None:
        self.events += 1
        if isinstance(event, AllBlocksCleared):
            self._sink.cleared()
        elif event.medium not in OWN_MEMORY or event.group_idx:
            return
        elif isinstance(event, BlockStored):
            self._sink.stored(event.session_id or "", event.block_hashes, event.parent_block_hash, event.block_size)
        else:
            self._sink.removed(event.block_hashes)
