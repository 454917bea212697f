"""What travels between a gateway and a sidecar: asks and replies as JSON, both ways. Pure; docs/wire.md describes it.

A number that is not known travels as null and is NaN in a record. Whether a figure is plausible is for whoever uses it
to judge; here only the form is checked.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import orjson

from predictor.request import Estimate, LengthEstimate
from predictor.seats import Sent
from predictor.snapshot import ProbeReply, Snapshot

WIRE_VERSION = 1
ID_CHARACTERS_MAX = 256
MODEL_CHARACTERS_MAX = 256
CLASS_CHARACTERS_MAX = 256
PREFIX_HASHES_MAX = 4096
TOKENS_MAX = 1 << 31
NOTES_MAX = 64
TOOK_HEADER = "X-Leeway-Took"
_BIG = 1 << 64


class WireError(ValueError):
    """A body does not have the documented form. `code` is one of `version`, `malformed`."""

    def __init__(self, message: str, code: str = "malformed") -> None:
        super().__init__(message)
        self.code = code


class JobLike(Sent, Protocol):
    """What a request needs to be asked about (gateway.jobs.Job is one). Instants are of one clock."""

    @property
    def request_id(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def class_name(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Ask:
    """One request that somebody asks about or reserves for. `prefix` hashes its full prompt blocks of `block_tokens`.

    Unix seconds of the asker's clock: `asked_s` (0: not told), and of one that was promised something `arrival_s` and
    `deadline_s`, as they are told to its engine; `tier` is where it stood in the asker's own line.
    """

    id: str
    model: str
    prompt_tokens: int
    lengths: LengthEstimate
    prefix: tuple[int, ...] = ()
    block_tokens: int = 0
    harm: bool = False
    asked_s: float = 0.0
    arrival_s: float = 0.0
    deadline_s: float = math.inf
    class_name: str = ""
    tier: int = 1

    @property
    def request_id(self) -> str:
        """The id under which the engine gets it."""
        return self.id

    @property
    def session(self) -> str:
        """Not told on the wire."""
        return ""


@dataclass(frozen=True, slots=True)
class Correction:
    """How long the answer of a request may be that was reserved before that was known."""

    id: str
    lengths: LengthEstimate


@dataclass(frozen=True, slots=True)
class Question:
    """A request that is asked about, and what is to be known before: in this order, reservations, then corrections."""

    ask: Ask
    reserved: tuple[Ask, ...] = ()
    corrected: tuple[Correction, ...] = ()


def encode_ask(job: JobLike, now_unix_ms: int, now_s: float | None = None, tier: int = 1) -> bytes:
    """The body of /predict and of /reserve. `now_s` is the same instant on the job's clock; None: that tells unix seconds."""
    lengths = job.lengths
    fields: dict[str, object] = {
        "v": WIRE_VERSION,
        "id": job.request_id or job.id,
        "model": job.model,
        "prompt_tokens": job.prompt_tokens,
        "prefix_hashes": job.prefix[:PREFIX_HASHES_MAX],
        "block_tokens": job.block_tokens,
        "out_q10": lengths.q10,
        "out_q50": lengths.q50,
        "out_q90": lengths.q90,
        "now_unix_ms": now_unix_ms,
    }
    if job.deadline_s < math.inf:
        offset_ms = now_unix_ms - (now_s * 1e3 if now_s is not None else now_unix_ms)
        fields["arrival_unix_ms"] = round(job.arrival_s * 1e3 + offset_ms)
        fields["deadline_unix_ms"] = round(job.deadline_s * 1e3 + offset_ms)
        fields["class"] = job.class_name
        if tier != 1:
            fields["tier"] = tier
    return orjson.dumps(fields)


def encode_correction(job: JobLike) -> bytes:
    """The body of /correct."""
    lengths = job.lengths
    told = {"id": job.request_id or job.id, "out_q10": lengths.q10, "out_q50": lengths.q50, "out_q90": lengths.q90}
    return orjson.dumps({"v": WIRE_VERSION, **told})


def with_notes(body: bytes, reserved: Sequence[bytes], corrected: Sequence[bytes]) -> bytes:
    """The body of a /predict that brings what would else be bodies of /reserve and of /correct."""
    parts = [body[:-1]]
    for name, notes in ((b"reserved", reserved), (b"corrected", corrected)):
        if notes:
            parts.append(b',"%b":[%b]' % (name, b",".join(notes)))
    return b"".join((*parts, b"}"))


def parse_question(body: bytes) -> Question:
    """The body of /predict. Raises WireError, also where one of the notes is malformed: then none of them counts."""
    fields = _object(body)
    reserved, corrected = fields.get("reserved"), fields.get("corrected")
    if reserved is None and corrected is None:
        return Question(_ask_of(fields))
    notes = tuple(map(_ask_of, _notes(reserved, "reserved")))
    return Question(_ask_of(fields), notes, tuple(map(_correction_of, _notes(corrected, "corrected"))))


def parse_correction(body: bytes) -> Correction:
    """What `encode_correction` wrote. Raises WireError."""
    return _correction_of(_object(body))


def parse_ask(body: bytes) -> Ask:
    """What `encode_ask` wrote. Raises WireError."""
    return _ask_of(_object(body))


def _notes(given: object, name: str) -> list[dict[str, Any]]:
    notes = [] if given is None else given
    if not isinstance(notes, list) or len(notes) > NOTES_MAX or not all(isinstance(note, dict) for note in notes):
        raise WireError(f"{name} must be a list of at most {NOTES_MAX} objects")
    return notes


def _correction_of(fields: dict[str, Any]) -> Correction:
    return Correction(_text(fields, "id", ID_CHARACTERS_MAX), _lengths(fields))


def _lengths(fields: dict[str, Any]) -> LengthEstimate:
    q10, q50, q90 = (_count(fields, name, 1) for name in ("out_q10", "out_q50", "out_q90"))
    try:
        return LengthEstimate(q10, q50, q90, "wire")
    except ValueError as error:
        raise WireError(str(error)) from None


def _ask_of(fields: dict[str, Any]) -> Ask:
    hashes = fields.get("prefix_hashes", [])
    if not isinstance(hashes, list) or len(hashes) > PREFIX_HASHES_MAX:
        raise WireError(f"prefix_hashes must be a list of at most {PREFIX_HASHES_MAX} numbers")
    if not all(type(item) is int and -_BIG < item < _BIG for item in hashes):
        raise WireError("prefix_hashes must hold whole numbers of 64 bits")
    return Ask(
        _text(fields, "id", ID_CHARACTERS_MAX),
        _text(fields, "model", MODEL_CHARACTERS_MAX),
        _count(fields, "prompt_tokens", 1),
        _lengths(fields),
        tuple(hashes),
        _count(fields, "block_tokens", 0) if "block_tokens" in fields else 0,
        fields.get("harm") is True,
        now_ms / 1e3 if type(now_ms := fields.get("now_unix_ms")) is int and 0 < now_ms < _BIG else 0.0,
        _instant_s(fields, "arrival_unix_ms", 0.0),
        _instant_s(fields, "deadline_unix_ms", math.inf),
        _text(fields, "class", CLASS_CHARACTERS_MAX) if fields.get("class") else "",
        2 if fields.get("tier") == 2 else 1,
    )


def encode_reply(reply: ProbeReply) -> bytes:
    """The answer of /predict. `harm_s` is left out where it was not asked for."""
    estimate = reply.estimate
    fields: dict[str, float] = {
        "v": WIRE_VERSION,
        "ttft_s": estimate.ttft_s,
        "tpot_s": estimate.tpot_s,
        "e2e_s": estimate.e2e_s,
        "wait_s": estimate.wait_s,
        "kv_peak_blocks": estimate.kv_peak_blocks,
        "preempt_p": estimate.preempt_p,
        "spread": estimate.spread,
        "least": estimate.least,
        "most": estimate.most,
        "snapshot_age_s": reply.snapshot_age_s,
        "in_flight": reply.running + reply.waiting,
        "running": reply.running,
        "waiting": reply.waiting,
        "free_blocks": reply.free_blocks,
        "waiting_blocks": reply.waiting_blocks,
        "queued_tokens": reply.queued_tokens,
    }
    if not math.isnan(estimate.harm_s):
        fields["harm_s"] = estimate.harm_s
    return orjson.dumps(fields)  # orjson writes NaN as null


def parse_reply(body: bytes) -> ProbeReply:
    """What `encode_reply` wrote. Raises WireError. Runs twice for each request, so it looks at a field once."""
    fields = _object(body)
    if None in fields.values():
        fields = {name: math.nan if value is None else value for name, value in fields.items()}
    try:
        estimate = Estimate(
            fields["ttft_s"] + 0.0,
            fields["tpot_s"] + 0.0,
            fields["e2e_s"] + 0.0,
            fields["wait_s"] + 0.0,
            fields["preempt_p"] + 0.0,
            fields["kv_peak_blocks"] | 0,
            fields.get("harm_s", math.nan) + 0.0,
            fields["spread"] + 0.0,
            fields.get("least", 1.0) + 0.0,
            fields.get("most", 1.0) + 0.0,
        )
        return ProbeReply(
            estimate,
            fields["running"] | 0,
            fields["waiting"] | 0,
            fields["free_blocks"] | 0,
            fields["waiting_blocks"] | 0,
            fields["queued_tokens"] | 0,
            fields["snapshot_age_s"] + 0.0,
        )
    except KeyError as error:
        raise WireError(f"{error.args[0]} is missing") from None
    except TypeError:
        raise WireError("a figure is not a number of its kind") from None


def encode_snapshot(snapshot: Snapshot, engine: str, age_s: float, reserved: int) -> bytes:
    """The answer of /snapshot."""
    return orjson.dumps({"v": WIRE_VERSION, "engine": engine, "age_s": age_s, "reserved": reserved, "state": snapshot})


def _object(body: bytes) -> dict[str, Any]:
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise WireError("the body is not JSON") from None
    if not isinstance(fields, dict):
        raise WireError("the body must be a JSON object")
    if fields.get("v") != WIRE_VERSION:
        raise WireError(f"this side speaks version {WIRE_VERSION} of the wire", "version")
    return fields


def _instant_s(fields: dict[str, Any], name: str, absent_s: float) -> float:
    """Unix milliseconds as seconds."""
    value = fields.get(name)
    if value is None:
        return absent_s
    if type(value) is not int or not -_BIG < value < _BIG:
        raise WireError(f"{name} must be a whole number of milliseconds")
    return value / 1e3


def _text(fields: dict[str, Any], name: str, most: int) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= most:
        raise WireError(f"{name} must be a text of 1 to {most} characters")
    return value


def _count(fields: dict[str, Any], name: str, least: int) -> int:
    value = fields.get(name)
    if type(value) is not int or not least <= value <= TOKENS_MAX:
        raise WireError(f"{name} must be a whole number of at least {least}")
    return value
