"""A peer that sends the head it sent before, apart from the digits of Content-Length, need not be parsed again. Pure.

Clients and engines repeat their heads byte for byte on a connection. A head that llhttp and our own checks accepted
once is remembered as the bytes before and behind the length's digits; the next message is recognised by two prefix
comparisons. Same bytes, same meaning: only the digits differ, and those are checked here. A head without a length, that of a
stream, is remembered whole: nothing behind its bytes, and only those very bytes are it again.
"""

import re
from typing import Generic, TypeVar

Head = TypeVar("Head")
_LENGTH = re.compile(rb"\r\ncontent-length: ?(\d{1,18})\r\n", re.IGNORECASE)
_MISSES_MAX = 8
HEAD_BYTES_MAX = 8192  # larger heads are rare, and HeadStore.SIZE of them would be much memory


class HeadStore(Generic[Head]):
    """Heads that many connections repeat, kept once for all of them; forgotten together when there are too many.

    New ones are on probation: a head that names its request (x-request-id, traceparent) never comes again, and such heads
    would only fill the store and push out the others.
    """

    __slots__ = ("_heads", "_new", "common")
    SIZE = 1024
    NEW_SIZE = 64

    def __init__(self) -> None:
        self._heads: dict[tuple[bytes, bytes], tuple[bytes, bytes, Head]] = {}
        self._new: dict[tuple[bytes, bytes], tuple[bytes, bytes, Head]] = {}
        self.common: tuple[bytes, bytes, Head] | None = None  # the one learnt last: what a fresh connection may well send

    def shared(self, prefix: bytes, suffix: bytes, head: Head) -> tuple[bytes, bytes, Head]:
        """The one copy of a head with these bytes."""
        key = (prefix, suffix)
        kept = self._heads.get(key)
        if kept is not None:
            return kept
        kept = self._new.pop(key, None)
        if kept is None:
            if len(self._new) >= self.NEW_SIZE:
                self._new.clear()
            return self._new.setdefault(key, (prefix, suffix, head))
        if len(self._heads) >= self.SIZE:
            self._heads.clear()
        self._heads[key] = self.common = kept
        return kept


class HeadMemo(Generic[Head]):
    """The last head of one connection, as (bytes before the digits, bytes behind them, what it parsed to); at its start the
    one that others had in common lately."""

    __slots__ = ("_head", "_misses", "_prefix", "_store", "_suffix")

    def __init__(self, store: HeadStore[Head]) -> None:
        self._store = store
        self._prefix = b""
        self._suffix = b""
        self._head: Head | None = None
        if store.common is not None:
            self._prefix, self._suffix, self._head = store.common
        self._misses = 0

    def match(self, data: bytes) -> tuple[Head, int, int] | None:
        """(head, where the body starts, Content-Length) when `data` starts with the remembered head."""
        head = self._head
        if head is None or not self._suffix or not data.startswith(self._prefix):
            return None
        start = len(self._prefix)
        end = data.find(b"\r", start, start + 19)
        digits = data[start:end]
        if end < 0 or not digits.isdigit() or not data.startswith(self._suffix, end):
            return None
        return head, end + len(self._suffix), int(digits)

    def learn(self, data: bytes, head: Head) -> None:
        """Remember the head at the start of `data`, if it is framed by exactly one plain Content-Length and not large.

        A peer whose heads keep changing is not followed for ever.
        """
        if self._misses > _MISSES_MAX:
            return
        self._misses += 1
        end = data.find(b"\r\n\r\n", 0, HEAD_BYTES_MAX) + 4
        found = _LENGTH.search(data, 0, end)
        if end < 4 or found is None or len(_LENGTH.findall(data[:end])) != 1:
            self._head = None
            return
        self._prefix, self._suffix, self._head = self._store.shared(data[: found.start(1)], data[found.end(1) : end], head)

    def match_whole(self, data: bytes) -> tuple[Head, bytes] | None:
        """(head, its bytes) when `data` starts with the remembered head, and that has no length."""
        head = self._head
        if head is None or self._suffix or not data.startswith(self._prefix):
            return None
        return head, self._prefix

    def learn_whole(self, data: bytes, head: Head) -> None:
        """Remember the head at the start of `data`, which has no length, if it is not large."""
        if self._misses > _MISSES_MAX:
            return
        self._misses += 1
        end = data.find(b"\r\n\r\n", 0, HEAD_BYTES_MAX) + 4
        if end < 4:
            self._head = None
            return
        self._prefix, self._suffix, self._head = self._store.shared(data[:end], b"", head)

    def hit(self) -> None:
        """The remembered head came again."""
        self._misses = 0
