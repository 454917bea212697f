"""The record in which an engine's scheduler publishes its state: bytes in a buffer, written and read without locks. Pure.

One writer, any number of readers, who never wait for each other. A fixed head carries a sequence number; two slots
take turns, so that the writer fills the one that nobody is told to read and then raises the number. Each slot has its
length, the Adler-32 of its payload and the payload in msgpack. A reader copies the slot of the number that it saw and
takes the copy only if the number is still the same and the checksum is right: it never sees half a record.
docs/wire.md describes the layout. Nothing here knows where the buffer comes from, or any engine.
"""

import struct
from collections.abc import Sequence
from zlib import adler32

import msgspec

from predictor.sighting import Cause

MAGIC = b"LWSN"
VERSION = 1
HEAD_BYTES = 64
_HEAD = struct.Struct("<4sHHIIQ")  # magic, version, head bytes, slot bytes, zero, sequence number
_SEQUENCE = struct.Struct("<Q")
_SEQUENCE_AT = 16
_SLOT = struct.Struct("<II")  # payload length, Adler-32
_TRIES = 16

Buffer = bytearray | memoryview


class RecordError(Exception):
    """The buffer holds no record of this version, or none that could be read whole. `cause` is for counting."""

    def __init__(self, message: str, cause: Cause = "none") -> None:
        super().__init__(message)
        self.cause: Cause = cause


class Limits(msgspec.Struct, array_like=True, frozen=True):
    """What the engine can hold, in its own words. `watermark_blocks` stay free when a request is admitted."""

    kv_blocks: int
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    watermark_blocks: int = 0
    prefix_caching: bool = True


class Work(msgspec.Struct, array_like=True, frozen=True):
    """What one step computes: prompt tokens, decoding sequences, context tokens that these read, and the sum of
    tokens x mean context over the prompt chunks."""

    prefill_tokens: int
    decode_seqs: int
    kv_tokens: int
    prefill_pairs: int


class Columns(msgspec.Struct, array_like=True, frozen=True):
    """What does not change from step to step of some requests, one column each.

    `expected` is the number of output tokens foretold, `most` the number that the request may not pass; `generated` were
    out when somebody last joined or left. While the request goes on, `computed` tells how many have come since.
    """

    ids: list[str]
    prompt: list[int]
    expected: list[int]
    most: list[int]
    generated: list[int]


class Bids(msgspec.Struct, array_like=True, frozen=True):
    """What decides about the places of those who wait, one column each, for those from place `first` on in the order of
    `waiting`: a sender's priority, or arrival and deadline in unix milliseconds (0: no deadline) and guarded cost."""

    first: int = 0
    number: list[int] = []
    arrival_ms: list[int] = []
    deadline_ms: list[int] = []
    cost_us: list[int] = []


class Begun(msgspec.Struct, array_like=True, frozen=True):
    """Prompts that are begun and stand in the order of those who wait, one column each: the place in `running`, arrival and
    deadline in unix milliseconds (0: no deadline), the guard of their costs. One whose prompt is computed counts no more."""

    at: list[int] = []
    arrival_ms: list[int] = []
    deadline_ms: list[int] = []
    guard: list[float] = []


class Rule(msgspec.Struct, array_like=True, frozen=True):
    """How the queue is ordered: `kind` is fcfs, priority or leeway; the rest is the tiered queue's of leeway (queues.py)."""

    kind: str = "fcfs"
    order: str = ""
    rho: float = 0.0
    alpha: float = 0.0
    age_s: float = 0.0
    makes_way: bool = False


class Figures(msgspec.Struct, array_like=True, frozen=True):
    """What a leeway queue goes by now: seconds of a step that only decodes and of a prompt token, the latter also as costs
    are reckoned with it, how much longer costs are taken to be now, the tokens that tier 2 is owed; with all slots taken, whose
    budget leaves most beyond its own redo, and how much."""

    step_s: float = 0.0
    token_s: float = 0.0
    reference_s: float = 0.0
    stretch: float = 1.0
    debt: float = 0.0
    gives: str = ""
    spare_s: float = 0.0


class Record(msgspec.Struct, array_like=True, frozen=True):
    """One state of one engine, as it is when the step has been composed and is about to run.

    `taken_s` is on the machine's monotonic clock. `computed` counts the step's own tokens, in the order of `running`.
    `past` is the step before, `past_s` how long it took (0: the
    engine was idle in between, or this is the first one). `more_waiting` requests with `more_tokens` prompt tokens in
    all stand in the queue behind those listed. `rule` and what follows it is not there where the queue is one of
    arrivals; `gammas` are the guards of costs by class; `begun` is not there where prompts keep their places.
    """

    engine: str
    limits: Limits
    taken_s: float
    free_blocks: int
    preemptions: int
    step: Work
    past: Work
    past_s: float
    running: Columns
    computed: list[int]
    waiting: Columns
    more_waiting: int
    more_tokens: int
    rule: Rule = Rule()
    bids: Bids = Bids()
    figures: Figures = Figures()
    gammas: dict[str, float] = {}
    begun: Begun = Begun()


IDLE = Work(0, 0, 0, 0)
NOBODY = Columns([], [], [], [], [])
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Record)


def encode(fields: Record | Sequence[object]) -> bytes:
    """A record's payload. A writer may give the fields in order instead, unchanged ones as `raw`."""
    return _encoder.encode(fields)


def raw(part: object) -> msgspec.Raw:
    """A part of a record, encoded once for many payloads."""
    return msgspec.Raw(_encoder.encode(part))


def decode(payload: bytes) -> Record:
    """The record in a payload. Raises RecordError."""
    try:
        record = _decoder.decode(payload)
    except msgspec.MsgspecError as error:
        raise RecordError(f"the record is malformed: {error}", "torn") from None
    for requests in (record.running, record.waiting):
        columns = (requests.prompt, requests.expected, requests.most, requests.generated)
        if any(len(column) != len(requests.ids) for column in columns):
            raise RecordError("the record is malformed: columns of different lengths", "torn")
    bids = record.bids
    if not 0 <= bids.first <= len(record.waiting.ids) - max(len(bids.number), len(bids.cost_us)):
        raise RecordError("the record is malformed: bids of nobody", "torn")
    if len({len(column) for column in (bids.arrival_ms, bids.deadline_ms, bids.cost_us)}) > 1:
        raise RecordError("the record is malformed: columns of different lengths", "torn")
    begun = record.begun
    if len({len(column) for column in (begun.at, begun.arrival_ms, begun.deadline_ms, begun.guard)}) > 1:
        raise RecordError("the record is malformed: columns of different lengths", "torn")
    if len(record.computed) != len(record.running.ids):
        raise RecordError("the record is malformed: columns of different lengths", "torn")
    return record


def buffer_bytes(payload_max: int) -> int:
    """Size of a buffer for payloads up to that many bytes."""
    return HEAD_BYTES + 2 * _slot_bytes(payload_max)


def _slot_bytes(payload_max: int) -> int:
    return -(-(payload_max + _SLOT.size) // 64) * 64


class RecordWriter:
    """The one writer of a buffer of `buffer_bytes(payload_max)`. Goes on counting where the last writer ended."""

    def __init__(self, buffer: Buffer, payload_max: int) -> None:
        magic, version, _, _, _, sequence = _HEAD.unpack_from(buffer)
        slot_bytes = _slot_bytes(payload_max)
        self._slots = tuple(memoryview(buffer)[at : at + slot_bytes] for at in (HEAD_BYTES, HEAD_BYTES + slot_bytes))
        self._number = memoryview(buffer)[_SEQUENCE_AT : _SEQUENCE_AT + 8].cast("Q")
        self._room = slot_bytes - _SLOT.size
        self.sequence: int = sequence if (magic, version) == (MAGIC, VERSION) else 0
        _HEAD.pack_into(buffer, 0, MAGIC, VERSION, HEAD_BYTES, slot_bytes, 0, self.sequence)

    def write(self, payload: bytes) -> bool:
        """Publish a payload; False, and nothing is published, if it is too large.

        Few steps on purpose: an engine's caches are cold here, so each line costs several times what it does in a loop.
        """
        length = len(payload)
        if length > self._room:
            return False
        sequence = self.sequence + 1
        self._slots[sequence & 1][: length + 8] = _SLOT.pack(length, adler32(payload)) + payload
        self._number[0] = self.sequence = sequence
        return True

    def close(self) -> None:
        """Let go of the buffer."""
        self._number.release()
        for slot in self._slots:
            slot.release()


class RecordReader:
    """Reads a buffer that another process writes. Raises RecordError if it is none of ours, or of another version."""

    def __init__(self, buffer: Buffer) -> None:
        if len(buffer) < HEAD_BYTES:
            raise RecordError("no record: too short")
        magic, version, head_bytes, slot_bytes, _, _ = _HEAD.unpack_from(buffer)
        if magic != MAGIC:
            raise RecordError("no record: it does not begin as one")
        if version != VERSION:
            raise RecordError(f"the record has version {version}, this program reads version {VERSION}", "version")
        if slot_bytes <= _SLOT.size or head_bytes + 2 * slot_bytes > len(buffer):
            raise RecordError("no record: its sizes do not fit")
        self._buffer = buffer
        self._head_bytes = head_bytes
        self._slot_bytes = slot_bytes

    @property
    def sequence(self) -> int:
        """The number of the newest record; 0 before the first."""
        number: int = _SEQUENCE.unpack_from(self._buffer, _SEQUENCE_AT)[0]
        return number

    def read(self) -> tuple[int, bytes]:
        """(sequence number, payload) of the newest record. Raises RecordError if there is none, or none stays whole."""
        for _ in range(_TRIES):
            sequence = self.sequence
            if sequence == 0:
                raise RecordError("nothing has been published yet")
            at = self._head_bytes + (sequence & 1) * self._slot_bytes
            length, check = _SLOT.unpack_from(self._buffer, at)
            if length > self._slot_bytes - _SLOT.size:
                continue
            start = at + _SLOT.size
            payload = bytes(self._buffer[start : start + length])
            if self.sequence == sequence and adler32(payload) == check:
                return sequence, payload
        raise RecordError("no whole record could be read", "torn")
