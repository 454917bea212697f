"""Recognising a repeated head: only the very same bytes match, only plain lengths are taught, all of it is bounded."""

import weakref

import pytest

from gateway.relay.memo import HEAD_BYTES_MAX, HeadMemo, HeadStore

HEAD = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 13\r\nX-A: b\r\n\r\n"


def memo(*taught: bytes, store: HeadStore[str] | None = None) -> HeadMemo[str]:
    made = HeadMemo[str](store or HeadStore())
    for count, data in enumerate(taught):
        made.learn(data, f"head {count}")
    return made


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (HEAD, (0, 13)),
        (HEAD + b"body", (0, 13)),
        (HEAD.replace(b"13", b"0"), (-1, 0)),
        (HEAD.replace(b"13", b"0013"), (2, 13)),
        (HEAD.replace(b"13", b"123456789012345678"), (16, 123456789012345678)),
        (HEAD.replace(b"13", b"1234567890123456789"), None),
        (HEAD.replace(b"13", b""), None),
        (HEAD.replace(b"13", b"+13"), None),
        (HEAD.replace(b"13", b"1_3"), None),
        (HEAD.replace(b"13", b"13 "), None),
        (HEAD.replace(b"13", b" 13"), None),
        (HEAD.replace(b"13", "١".encode()), None),
        (HEAD[:-1], None),
        (HEAD[:20], None),
        (HEAD.replace(b"X-A: b", b"X-A: c"), None),
        (HEAD.replace(b"Host: a", b"Host: b"), None),
        (HEAD.replace(b"Content-Length", b"content-length"), None),
        (HEAD.replace(b"13\r\n", b"13\r\nX: y\r\n"), None),
        (b"\r\n" + HEAD, None),
        (b"", None),
    ],
)
def test_only_the_digits_may_differ(data: bytes, found: tuple[int, int] | None) -> None:
    known = memo(HEAD).match(data)
    if found is None:
        assert known is None
    else:
        more, length = found
        assert known == ("head 0", len(HEAD) + more, length)


@pytest.mark.parametrize(
    "data",
    [
        b"POST / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nd\r\ncontent-length: 5\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 13\r\nHost: a\r\nContent-Length: 13\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length:\t13\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 13\r\n",
        b"POST / HTTP/1.1\r\nX-A: " + b"a" * HEAD_BYTES_MAX + b"\r\nContent-Length: 13\r\n\r\n",
        b"",
    ],
    ids=lambda data: repr(data[:50]),
)
def test_other_heads_are_not_taught_and_end_what_was(data: bytes) -> None:
    taught = memo(HEAD, data)
    assert taught.match(HEAD) is None
    assert taught.match(data) is None


def test_the_newest_head_counts_and_a_restless_peer_is_given_up() -> None:
    heads = [HEAD.replace(b"b\r\n", b"%d\r\n" % count) for count in range(20)]
    taught = memo(*heads[:5])
    assert [taught.match(head) is not None for head in heads[:6]] == [False, False, False, False, True, False]
    taught = memo(*heads)
    assert [count for count, head in enumerate(heads) if taught.match(head)] == [8], "after nine misses in a row"
    patient = memo()
    for count, head in enumerate(heads):
        patient.learn(head, f"head {count}")
        assert patient.match(head) is not None
        patient.hit()


def test_connections_share_one_copy_and_a_full_store_starts_over() -> None:
    store: HeadStore[str] = HeadStore()
    assert memo(HEAD, store=store).match(HEAD) == memo(b"x" + HEAD, HEAD, store=store).match(HEAD)
    for count in range(3 * HeadStore.SIZE):
        kept = store.shared(b"a%d" % count, b"b", "head")
        assert kept[0] == b"a%d" % count
    assert store.shared(HEAD, b"", "new")[2] == "new"
    assert store.shared(HEAD, b"", "newer")[2] == "new"


def test_a_stream_s_head_is_remembered_whole_and_only_it_is_it_again() -> None:
    stream = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    taught = memo(HEAD)
    taught.learn_whole(stream + b"5\r\n", "stream")
    assert taught.match_whole(stream) == taught.match_whole(stream + b"6\r\n") == ("stream", stream)
    assert [taught.match_whole(data) for data in (b"", stream[:-1], stream.replace(b"OK", b"Ok"), b"\r\n" + stream, HEAD)] == [
        None
    ] * 5
    assert taught.match(stream) is None, "it has no length"
    assert taught.match(HEAD) is None, "the newest counts"
    taught.learn(HEAD, "sized")
    assert taught.match_whole(HEAD) is None
    assert taught.match_whole(stream) is None


@pytest.mark.parametrize("data", [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nX: " + b"a" * HEAD_BYTES_MAX + b"\r\n\r\n"])
def test_a_large_or_unfinished_head_of_a_stream_is_not_taught(data: bytes) -> None:
    taught = memo()
    taught.learn_whole(b"HTTP/1.1 200 OK\r\n\r\n", "stream")
    taught.learn_whole(data, "other")
    assert taught.match_whole(b"HTTP/1.1 200 OK\r\n\r\n") is None
    assert taught.match_whole(data) is None


def test_streams_heads_that_keep_changing_are_given_up() -> None:
    heads = [b"HTTP/1.1 200 OK\r\nDate: %d\r\n\r\n" % count for count in range(20)]
    taught = memo()
    for head in heads:
        taught.learn_whole(head, "stream")
    assert [count for count, head in enumerate(heads) if taught.match_whole(head)] == [8], "after nine misses in a row"


def test_heads_that_never_come_again_push_out_none_that_do() -> None:
    store: HeadStore[str] = HeadStore()
    for _ in range(2):
        kept = store.shared(b"often", b"", "first")
    for count in range(3 * HeadStore.SIZE):
        store.shared(b"once %d" % count, b"", "head")
    assert store.shared(b"often", b"", "later") is kept


def test_a_store_holds_a_bounded_number_of_heads() -> None:
    store: HeadStore[object] = HeadStore()
    alive: weakref.WeakSet[Marked] = weakref.WeakSet()
    for count in range(3 * HeadStore.SIZE):
        for _ in range(1 + count % 2):
            marked = Marked()
            alive.add(marked)
            store.shared(b"%d" % count, b"", marked)
    del marked
    assert len(alive) <= HeadStore.SIZE + HeadStore.NEW_SIZE


class Marked:
    """Something that can be counted while it is alive."""


def test_a_fresh_connection_knows_the_head_that_others_had_in_common() -> None:
    store = HeadStore[str]()
    memo(HEAD, store=store)
    assert memo(store=store).match(HEAD) is None  # one sight is no habit
    memo(HEAD, store=store)
    assert memo(store=store).match(HEAD) == ("head 0", len(HEAD), 13)
    other = HEAD.replace(b"Host: a", b"Host: b")
    assert memo(store=store).match(other) is None
    memo(other, other, store=store)
    assert memo(store=store).match(HEAD) is None
    assert memo(store=store).match(other) is not None
