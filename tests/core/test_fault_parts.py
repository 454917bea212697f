"""The plain parts of the fault tools: where a fault strikes, what a script writes, what a client reads, what is sent."""

import json
from random import Random

import pytest

from tests.faults.ledger import request
from tests.faults.matrix import FAULTS, cells
from tests.faults.mix import draw, network_faults, wished
from tests.faults.phases import PHASES, Fault, Phase, locate
from tests.faults.response import BadResponseError, ResponseParser
from tests.faults.script import DONE, EXTRA, GARBAGE, LAST_CHUNK, Wish, script

STREAM = b"".join(script(Wish(), b"id", True, True).pieces)
PLAIN = b"".join(script(Wish(), b"id", False, False).pieces)
CHUNKED = b"".join(script(Wish(framing="chunked"), b"id", False, False).pieces)


def read(wire: bytes, step: int = 1 << 20) -> ResponseParser:
    parser = ResponseParser()
    for at in range(0, len(wire), step):
        parser.feed(wire[at : at + step])
    return parser


def app(wire: bytes) -> bytes:
    return bytes(read(wire).body)


# -- phases


def test_phases_of_a_stream() -> None:
    at = {phase: locate(STREAM, phase, 2) for phase in PHASES}
    assert (at["connect"], at["headers"], at["idle"]) == (0, 0, len(STREAM))
    assert STREAM[: at["head_sent"]].endswith(b"\r\n\r\n")
    middle, between, terminal = (app(STREAM[: at[phase]]) for phase in ("mid_event", "between", "terminal"))
    assert (middle.count(b"\n\n"), middle.endswith(b"\n\n")) == (1, False)
    assert (between.count(b"\n\n"), between.endswith(b"\n\n")) == (2, True)
    assert terminal + DONE == app(STREAM)


@pytest.mark.parametrize("wire", [PLAIN, CHUNKED])
def test_phases_of_a_plain_answer(wire: bytes) -> None:
    for phase in ("mid_event", "terminal"):
        offset = locate(wire, phase, 2)
        assert offset is not None
        assert not read(wire[:offset]).done
        assert read(wire[:offset]).status == 200
    assert locate(wire, "idle", 2) == len(wire)


@pytest.mark.parametrize("wire", [STREAM, PLAIN, CHUNKED])
@pytest.mark.parametrize("phase", PHASES)
def test_a_phase_is_found_no_matter_how_the_bytes_come(wire: bytes, phase: Phase) -> None:
    whole = locate(wire, phase, 2)
    first = next(found for end in range(len(wire) + 1) if (found := locate(wire[:end], phase, 2)) is not None)
    assert whole == first


def test_bytes_put_into_a_body_show_only_in_chunks() -> None:
    assert Fault("garbage", "mid_event").shows(CHUNKED)
    assert not Fault("garbage", "mid_event").shows(PLAIN)
    assert Fault("garbage", "headers").shows(PLAIN)
    assert Fault("rst", "mid_event").shows(PLAIN)


# -- scripts


@pytest.mark.parametrize("framing", ["length", "chunked"])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("slice_bytes", [0, 1, 7])
def test_a_good_script_reads_as_its_app_bytes(framing: str, stream: bool, slice_bytes: int) -> None:
    made = script(Wish(framing=framing, slice=slice_bytes), b"id", stream, True)  # type: ignore[arg-type]
    parser = read(b"".join(made.pieces))
    assert parser.done
    assert parser.body == made.app
    assert parser.rest == b""


@pytest.mark.parametrize("at", ["body", "event", "mid", "terminal"])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("framing", ["length", "chunked"])
def test_a_broken_script_reads_as_a_part_of_the_whole(at: str, stream: bool, framing: str) -> None:
    whole = script(Wish(framing=framing), b"id", stream, False)  # type: ignore[arg-type]
    cut = script(Wish(do="fin", at=at, k=1, framing=framing), b"id", stream, False)  # type: ignore[arg-type]
    parser = read(b"".join(cut.pieces))
    assert parser.body == cut.app
    assert whole.app.startswith(cut.app)
    if stream or at != "event":  # a plain answer is one part: behind it there is nothing to lose
        assert not parser.done
        assert len(cut.app) < len(whole.app)


@pytest.mark.parametrize("do", ["long", "short"])
@pytest.mark.parametrize("at", ["mid", "terminal"])
def test_a_wrong_chunk_size_breaks_the_framing(do: str, at: str) -> None:
    made = script(Wish(do=do, at=at, k=2), b"id", True, False)  # type: ignore[arg-type]
    parser = ResponseParser()
    try:
        done = parser.feed(b"".join(made.pieces))
    except BadResponseError:
        done = False
    assert not done
    assert parser.body == made.app


def test_an_early_end_is_whole_in_framing_only() -> None:
    made = script(Wish(do="end", at="mid", k=2), b"id", True, False)
    parser = read(b"".join(made.pieces))
    assert parser.done
    assert parser.body == made.app
    assert DONE not in parser.body


def test_garbage_and_extra_bytes_are_no_framing() -> None:
    for junk in (GARBAGE, EXTRA):
        with pytest.raises(BadResponseError):
            read(STREAM.replace(LAST_CHUNK, junk + LAST_CHUNK))
        with pytest.raises(BadResponseError):
            read(junk + PLAIN)


# -- the client's parser


@pytest.mark.parametrize("wire", [STREAM, PLAIN, CHUNKED, b"HTTP/1.1 100 Continue\r\n\r\n" + PLAIN])
@pytest.mark.parametrize("step", [1, 3, 1000])
def test_answers_are_read_the_same_in_any_pieces(wire: bytes, step: int) -> None:
    parser = read(wire, step)
    assert parser.done
    assert parser.body == app(wire)


def test_what_follows_an_answer_is_kept_for_the_next() -> None:
    assert read(PLAIN + STREAM).rest == STREAM


@pytest.mark.parametrize(
    "wire",
    [
        b"HTTP/1.0 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5;x\r\nabcde\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nabcde\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
    ],
)
def test_what_breaks_http_is_refused(wire: bytes) -> None:
    with pytest.raises(BadResponseError):
        read(wire)


# -- what is sent


def test_requests_are_json_and_carry_id_and_wish() -> None:
    one = request("a-1", "m", True, Wish(do="rst", at="event", k=2), pad=500)
    body = json.loads(one.body)
    assert body["messages"][0]["content"].startswith("id=a-1; ")
    assert Wish(**body["x_fault"]) == one.wish
    assert len(one.body) > 500


def test_the_matrix_has_every_fault_and_every_phase() -> None:
    matrix = cells()
    assert len(FAULTS) == 16
    assert {cell.fault for cell in matrix} == set(FAULTS)
    assert {cell.phase for cell in matrix} == set(PHASES)
    assert {(cell.stream, cell.backends) for cell in matrix} == {(s, b) for s in (True, False) for b in (1, 3)}
    assert len({cell.name for cell in matrix}) == len(matrix) == 352


def test_a_seed_draws_the_same_requests_again() -> None:
    one, other = ([draw(Random(7), f"s{i}", "m") for i in range(200)] for _ in range(2))
    assert one == other


def test_every_wish_drawn_has_right_ends_and_a_script() -> None:
    rng = Random(1)
    drawn = [draw(rng, f"s{i}", "m") for i in range(3000)]
    assert all(wished(one.wish, one.stream) for one in drawn)
    assert {one.wish.do for one in drawn} >= {"none", "rst", "fin", "end", "hang", "garbage", "flood", "error_first"}
    assert {one.plan.leave for one in drawn} >= {"", "connect", "head", "upload", "sent", "first", "mid", "stalled"}
    for one in drawn:
        script(one.wish, one.id.encode(), one.stream, True)
    assert {fault.phase for fault in network_faults()} == set(PHASES)
