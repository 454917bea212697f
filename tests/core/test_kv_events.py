"""The ledger of KV events: in order, once each; what was missed makes it forget, unless it is said again."""

from collections.abc import Iterable, Sequence

import msgspec
import pytest

from backends.kv_events import Hash, Ledger, check_endpoint


def stored(session: str | None, hashes: list[Hash], parent: Hash | None, size: int = 16, **more: object) -> dict[str, object]:
    """As vLLM writes it: a map with a tag, fields that are not read included."""
    return {
        "type": "BlockStored",
        "block_hashes": hashes,
        "parent_block_hash": parent,
        "token_ids": [1] * size * len(hashes),
        "block_size": size,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "session_id": session,
        **more,
    }


def removed(*hashes: Hash, **more: object) -> dict[str, object]:
    return {"type": "BlockRemoved", "block_hashes": list(hashes), "medium": "GPU", **more}


CLEARED = {"type": "AllBlocksCleared"}


def frames(number: int, *events: dict[str, object], ts: float = 0.0) -> tuple[bytes, bytes, bytes]:
    return b"", number.to_bytes(8, "big"), msgspec.msgpack.encode([ts or float(number), list(events), 0])


class Told:
    """A sink that writes down what it is told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def stored(self, session: str, hashes: Sequence[Hash], parent: Hash | None, block_tokens: int) -> None:
        self.lines.append(f"stored {session} {list(hashes)} after {parent} of {block_tokens}")

    def removed(self, hashes: Iterable[Hash]) -> None:
        self.lines.append(f"removed {list(hashes)}")

    def cleared(self) -> None:
        self.lines.append("cleared")

    def lost(self) -> None:
        self.lines.append("lost")


def ledger() -> tuple[Ledger, Told]:
    told = Told()
    return Ledger(told), told


def test_events_are_told_in_order() -> None:
    made, told = ledger()
    assert made.take(frames(0, stored("s", [1, b"two"], None), removed(9), CLEARED)) == "taken"
    assert told.lines == ["stored s [1, b'two'] after None of 16", "removed [9]", "cleared"]
    assert (made.batches, made.events, made.wanted) == (1, 3, 1)


def test_other_memory_and_further_cache_groups_do_not_count() -> None:
    made, told = ledger()
    made.take(
        frames(0, stored("s", [1], None, medium="CPU"), removed(1, medium="STORAGE"), stored("s", [1], None, group_idx=1))
    )
    assert told.lines == []
    made.take(frames(1, stored(None, [1], None, group_idx=0), removed(1, medium=None)))
    assert told.lines == ["stored  [1] after None of 16", "removed [1]"]


def test_who_comes_late_begins_there() -> None:
    made, told = ledger()
    assert made.take(frames(70, removed(1))) == "taken"
    assert (told.lines, made.wanted) == (["removed [1]"], 71)


def test_a_hole_is_noticed_and_nothing_is_taken_until_it_is_filled_or_given_up() -> None:
    made, told = ledger()
    made.take(frames(0))
    assert made.take(frames(3, removed(3))) == "gap"
    assert [made.take(frames(number, removed(number))) for number in (1, 2, 3)] == ["taken"] * 3
    assert (told.lines, made.gaps) == (["removed [1]", "removed [2]", "removed [3]"], 0)
    late = frames(9, removed(9))
    assert made.take(late) == "gap"
    made.skip(late)
    assert made.take(late) == "taken"
    assert (told.lines[3:], made.gaps) == (["lost", "removed [9]"], 1)


def test_what_is_repeated_is_old() -> None:
    made, told = ledger()
    made.take(frames(4, removed(4)))
    assert made.take(frames(4, removed(4))) == made.take(frames(2, removed(2))) == "old"
    assert told.lines == ["removed [4]"]


def test_after_a_new_connection_the_last_batch_shows_whether_it_is_the_same_process() -> None:
    made, told = ledger()
    made.take(frames(5, ts=111.0))
    made.connected()
    assert made.wanted == 5
    assert made.take(frames(5, ts=111.0)) == "old"
    assert made.take(frames(6)) == "taken"
    assert (told.lines, made.restarts) == ([], 0)
    made.connected()
    assert made.take(frames(6, ts=999.0)) == "gap", "another process has another batch of that number"
    assert (told.lines, made.restarts, made.wanted) == (["lost"], 1, 0)


def test_a_new_process_that_begins_at_0_is_followed_at_once() -> None:
    made, told = ledger()
    made.take(frames(5))
    made.connected()
    assert made.take(frames(0, removed(1), ts=7.0)) == "taken"
    assert told.lines == ["lost", "removed [1]"]


@pytest.mark.parametrize(
    "bad",
    [
        (b"",),
        (b"", b"short", b"x"),
        (b"", (1).to_bytes(8, "big"), b"\xc1"),
        (b"", (1).to_bytes(8, "big"), msgspec.msgpack.encode([1.0, [{"type": "Unheard"}]])),
        (b"", (1).to_bytes(8, "big"), msgspec.msgpack.encode([1.0, [{"type": "BlockRemoved", "block_hashes": ["text"]}]])),
    ],
)
def test_what_cannot_be_read_makes_it_forget(bad: tuple[bytes, ...]) -> None:
    made, told = ledger()
    made.take(frames(0))
    assert made.take(bad) == "malformed"
    assert (told.lines, made.malformed) == (["lost"], 1)


def test_endpoints() -> None:
    assert check_endpoint("tcp://127.0.0.1:5557") == "tcp://127.0.0.1:5557"
    assert check_endpoint("ipc:///run/kv") == "ipc:///run/kv"
    for text in (
        "tcp://*:5557",
        "tcp://host",
        "tcp://host:0",
        "tcp://host:99999",
        "udp://h:1",
        "ipc://kv",
        "host:1",
        "tcp://:5",
    ):
        with pytest.raises(ValueError, match=r"tcp://HOST|its host"):
            check_endpoint(text)
