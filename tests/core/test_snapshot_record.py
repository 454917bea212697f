"""The snapshot record: what is written is read, whole or not at all; the recorder's columns and steps."""

import struct

import pytest

from backends.scheduler_record import ID_CHARACTERS_MAX, WAITING_LISTED_MAX, StepRecorder, expected_tokens, payload_max
from backends.snapshot_record import (
    HEAD_BYTES,
    IDLE,
    NOBODY,
    VERSION,
    Columns,
    Limits,
    Record,
    RecordError,
    RecordReader,
    RecordWriter,
    Work,
    buffer_bytes,
    decode,
    encode,
    raw,
)
from tests.core.in_engine import InEngine

LIMITS = Limits(96, 128, 16, 512, 2048)


def a_record(**changed: object) -> Record:
    fields: dict[str, object] = {
        "engine": "vllm 0.32.0",
        "limits": LIMITS,
        "taken_s": 12.5,
        "free_blocks": 90,
        "preemptions": 3,
        "step": Work(0, 1, 70, 0),
        "past": IDLE,
        "past_s": 0.0,
        "running": Columns(["a"], [60], [40], [100], [11]),
        "computed": [71],
        "waiting": Columns(["b", "c"], [5, 6], [7, 8], [9, 10], [0, 2]),
        "more_waiting": 0,
        "more_tokens": 0,
    }
    return Record(**(fields | changed))  # type: ignore[arg-type]


def test_what_is_encoded_is_decoded() -> None:
    assert decode(encode(a_record())) == a_record()


def test_parts_encoded_before_are_the_same_bytes() -> None:
    record = a_record()
    values = [getattr(record, name) for name in Record.__struct_fields__]
    values[1], values[8] = raw(record.limits), raw(record.running)
    assert encode(tuple(values)) == encode(record)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc0",
        b"\x93\x01\x02\x03",
        encode(a_record())[:-1],
        encode(a_record(computed=[1, 2])),
        encode(a_record(running=Columns(["a"], [60], [40], [100], []))),
    ],
    ids=["empty", "nil", "too short", "cut", "column too long", "columns of two lengths"],
)
def test_malformed_payload_is_refused(payload: bytes) -> None:
    with pytest.raises(RecordError, match="malformed"):
        decode(payload)


def test_reader_sees_the_newest_of_two_slots() -> None:
    buffer = bytearray(buffer_bytes(100))
    writer, reader = RecordWriter(buffer, 100), RecordReader(buffer)
    with pytest.raises(RecordError, match="nothing has been published"):
        reader.read()
    for number in range(1, 6):
        assert writer.write(b"payload %d" % number)
        assert reader.sequence == number
        assert reader.read() == (number, b"payload %d" % number)


def test_payload_that_is_too_large_leaves_the_last_one() -> None:
    buffer = bytearray(buffer_bytes(100))
    writer, reader = RecordWriter(buffer, 100), RecordReader(buffer)
    assert writer.write(b"fits")
    assert not writer.write(bytes(1000))
    assert reader.read() == (1, b"fits")


def test_next_writer_goes_on_counting() -> None:
    buffer = bytearray(buffer_bytes(100))
    first = RecordWriter(buffer, 100)
    for _ in range(3):
        first.write(b"old")
    second = RecordWriter(buffer, 100)
    assert RecordReader(buffer).read() == (3, b"old")
    second.write(b"new")
    assert RecordReader(buffer).read() == (4, b"new")


class Racing(bytearray):
    """A buffer whose writer publishes twice while a reader copies a slot, so that the copy may be of two records."""

    def __init__(self, races: int) -> None:
        super().__init__(buffer_bytes(100))
        self.writer: RecordWriter | None = None
        self.races = races

    def __getitem__(self, at):  # type: ignore[no-untyped-def,override]
        found = super().__getitem__(at)
        if isinstance(at, slice) and self.writer is not None and self.races:
            self.races -= 1
            self.writer.write(b"between")
            self.writer.write(b"overtaking")
        return found


def test_overtaken_copy_is_made_again() -> None:
    buffer = Racing(races=3)
    writer, reader = RecordWriter(buffer, 100), RecordReader(buffer)
    writer.write(b"first")
    buffer.writer = writer
    assert reader.read() == (7, b"overtaking")


def test_reader_that_is_always_overtaken_gives_up() -> None:
    buffer = Racing(races=10**6)
    writer, reader = RecordWriter(buffer, 100), RecordReader(buffer)
    writer.write(b"first")
    buffer.writer = writer
    with pytest.raises(RecordError, match="no whole record"):
        reader.read()


def test_half_written_slot_is_not_taken() -> None:
    buffer = bytearray(buffer_bytes(100))
    writer, reader = RecordWriter(buffer, 100), RecordReader(buffer)
    writer.write(b"a record")
    at = buffer.index(b"a record")
    buffer[at] ^= 1
    with pytest.raises(RecordError, match="no whole record"):
        reader.read()


@pytest.mark.parametrize(
    ("at", "value", "says"),
    [
        (0, b"????", "does not begin"),
        (4, struct.pack("<H", VERSION + 1), f"version {VERSION + 1}"),
        (8, b"\xff\xff\xff\x7f", "sizes"),
    ],
)
def test_foreign_buffer_is_refused(at: int, value: bytes, says: str) -> None:
    buffer = bytearray(buffer_bytes(100))
    RecordWriter(buffer, 100)
    buffer[at : at + len(value)] = value
    with pytest.raises(RecordError, match=says):
        RecordReader(buffer)


def test_short_buffer_is_refused() -> None:
    with pytest.raises(RecordError, match="too short"):
        RecordReader(bytearray(HEAD_BYTES - 1))


class Kept:
    """Keeps the last payload; `room` False stands for one that did not fit."""

    def __init__(self) -> None:
        self.payload = b""
        self.room = True

    def __call__(self, payload: bytes) -> bool:
        self.payload = payload
        return self.room


def test_recorder_follows_steps() -> None:
    kept = Kept()
    recorder = StepRecorder("e", LIMITS, kept)
    old, new, late = InEngine("old", 10, 14, output=[0] * 4), InEngine("new", 300, 200), InEngine("late", 7)
    recorder.record(1.0, [], [], {}, 0, 96, 0)
    first = decode(kept.payload)
    assert (first.running, first.waiting, first.step, first.past_s, first.limits) == (NOBODY, NOBODY, IDLE, 0.0, LIMITS)

    recorder.record(2.0, [old, new], [late], {"old": 1, "new": 200}, 201, 93, 1)
    second = decode(kept.payload)
    assert second.running == Columns(["old", "new"], [10, 300], [50, 50], [100, 100], [4, 0])
    assert second.computed == [14, 200]
    assert second.waiting.ids == ["late"]
    # `old` decodes and reads 13 tokens; `new` computes 200 of its prompt, at 100 of context on average
    assert second.step == Work(200, 1, 13, 20_000)
    assert second.past_s == 0.0  # the step before did nothing, so its length is no step's

    old.num_computed_tokens, old.output = 15, [0] * 5
    new.num_computed_tokens = 300
    recorder.record(2.25, [old, new], [late], {"old": 1, "new": 100}, 101, 93, 1)
    third = decode(kept.payload)
    assert (third.past, third.past_s) == (second.step, 0.25)
    assert third.step == Work(100, 1, 14, 25_000)
    assert third.computed == [15, 300]
    assert third.running.generated == [4, 0]  # as when somebody last joined: `computed` tells the rest


def test_recorder_notices_who_joins_and_leaves() -> None:
    kept = Kept()
    recorder = StepRecorder("e", LIMITS, kept)
    one, two, three = InEngine("one", 10, 11), InEngine("two", 10, 11), InEngine("three", 10)
    seen = []
    for running, waiting in [([one], [two]), ([one, two], []), ([one, two], [three]), ([two], [three]), ([two, three], [])]:
        recorder.record(1.0, running, waiting, {}, 0, 9, 0)
        record = decode(kept.payload)
        seen.append((record.running.ids, record.waiting.ids))
    assert seen == [
        (["one"], ["two"]),
        (["one", "two"], []),
        (["one", "two"], ["three"]),
        (["two"], ["three"]),
        (["two", "three"], []),
    ]


def test_decode_step_of_all_needs_no_look_at_each() -> None:
    kept = Kept()
    running = [InEngine(str(i), 10, 15 + i, output=[0] * 5) for i in range(3)]
    StepRecorder("e", LIMITS, kept).record(1.0, running, [], {"0": 1, "1": 1, "2": 1}, 3, 9, 0)
    assert decode(kept.payload).step == Work(0, 3, 14 + 15 + 16, 0)


def test_record_stays_within_its_room_however_long_ids_and_queue_are() -> None:
    kept = Kept()
    running = [InEngine("r" * 10_000, 2**31, 2**31, 2**31, 2**31) for _ in range(16)]
    waiting = [InEngine("w" * 10_000, 100 + i) for i in range(WAITING_LISTED_MAX + 300)]
    StepRecorder("e", LIMITS, kept).record(1.0, running, waiting, {}, 0, 9, 0)
    record = decode(kept.payload)
    assert len(kept.payload) <= payload_max(16)
    assert record.running.ids == ["r" * ID_CHARACTERS_MAX] * 16
    assert len(record.waiting.ids) == WAITING_LISTED_MAX
    assert record.more_waiting == 300
    assert record.more_tokens == sum(100 + i for i in range(WAITING_LISTED_MAX, WAITING_LISTED_MAX + 300))


def test_record_without_room_is_counted() -> None:
    kept = Kept()
    kept.room = False
    recorder = StepRecorder("e", LIMITS, kept)
    recorder.record(1.0, [], [], {}, 0, 9, 0)
    assert recorder.dropped == 1


@pytest.mark.parametrize(
    ("hints", "tokens"),
    [
        (None, 100),
        ({}, 100),
        ({"leeway_out_tokens": 30}, 30),
        ({"leeway_out_tokens": 30.7}, 30),
        ({"leeway_out_tokens": 101}, 100),
        ({"leeway_out_tokens": 0}, 100),
        ({"leeway_out_tokens": -5}, 100),
        ({"leeway_out_tokens": "30"}, 100),
        ({"leeway_out_tokens": float("nan")}, 100),
    ],
)
def test_expected_length_is_the_hint_within_the_limit(hints: object, tokens: int) -> None:
    assert expected_tokens(hints, 100) == tokens
