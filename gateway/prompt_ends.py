"""The two ends of a request's body, and what they tell of its prompt: a view for the length tagger. Pure.

A body of up to two ends is read whole. Of a larger one only its first and last END_BYTES are looked at, so that 100 KB
cost what 8 KB cost: the system's text and the first turns, and the user's last words, wherever tools stand. The pieces
of JSON in them are read by their marks (roles and contents) as far as these go; what can't be read counts as absent.
Never raises, whatever the body holds.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import orjson

from predictor.prompts import PromptView, view_of

END_BYTES = 4096
MARKS_MAX = 256
_ROLE = re.compile(rb'"role"\s*:\s*"([a-z]{1,16})"')
_CONTENT = re.compile(rb'"content"\s*:\s*(["\[])')
_TEXT = re.compile(rb'"text"\s*:\s*"')
_SYSTEM = re.compile(rb'"(?:system|instructions)"\s*:\s*"')
_BROKEN = re.compile(r"\\u[0-9a-fA-F]{0,3}$")
_CONTINUED = bytes(range(0x80, 0xC0))


class Ends(NamedTuple):
    """`tail` is empty where `head` is all that is looked at; `size` is the body's, in bytes."""

    head: bytes
    tail: bytes
    size: int
    tools: bool = False


def ends_of(body: bytes, parts: Sequence[str] = ()) -> Ends:
    """The ends of a body. `parts` as in BodyFields: with tools behind its messages, these end where the tools begin."""
    tools = "tools" in parts
    if len(body) <= 2 * END_BYTES:
        return Ends(body, b"", len(body), tools)
    end = len(body)
    if tools:
        at = body.find(b'"tools":')
        if at > body.find(b'"messages":'):
            end = at
    if end <= 2 * END_BYTES:
        return Ends(body[:end], b"", len(body), tools)
    return Ends(body[:END_BYTES], body[end - END_BYTES : end], len(body), tools)


def view_of_ends(ends: Ends, max_tokens: int) -> PromptView:
    """What a prompt shows at its ends. `max_tokens` below 1: no limit."""
    if not ends.tail:
        parsed = _parsed(ends.head)
        if parsed is not None:
            return view_of(parsed, max_tokens)
    return _view_of_pieces(ends, max_tokens)


def _parsed(body: bytes) -> Mapping[str, object] | None:
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError:
        try:
            parsed = json.loads(body.decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            return None
    return parsed if isinstance(parsed, dict) else None


class _Piece(NamedTuple):
    """One turn as far as it could be read; `at` is where its text begins, `cut` that the fragment ends before it does."""

    role: str
    text: str
    at: int
    cut: bool


def _view_of_pieces(ends: Ends, max_tokens: int) -> PromptView:
    head, tail = _turns(ends.head), _turns(ends.tail)
    began = head[-1] if head and head[-1].cut else None
    text_chars = system_chars = 0
    if began is not None and began.role == "system":
        rest = len(tail[0].text) if tail and not tail[0].role else 0
        system_chars = ends.size - began.at - len(ends.tail) + rest
    if tail and not any(turn.role == "user" for turn in tail[1:]) and tail[0].role == "":
        # the user's last text begins before the tail: its own beginning may be in the head
        text = tail[0].text
        if began is not None and began.role == "user":
            text_chars = ends.size - began.at
            text = began.text + "\n" + text
            head.pop()
        tail[0] = _Piece("user", text, 0, False)
    turns = [turn for turn in (*head, *tail) if turn.role]
    system = _SYSTEM.search(ends.head)
    view = view_of(
        {
            "messages": [{"role": turn.role, "content": turn.text} for turn in turns],
            "system": _string(ends.head, system.end())[0] if system is not None else None,
            "tools": [None] * _tools(ends),
        },
        max_tokens,
    )
    return replace(
        view,
        text_chars=max(view.text_chars, text_chars),
        all_chars=max(view.all_chars, ends.size - len(ends.tail)),
        system_chars=max(view.system_chars, system_chars),
    )


def _tools(ends: Ends) -> int:
    found = ends.head.count(b'"function"') + ends.tail.count(b'"function"')
    return max(found // 2, 1) if ends.tools else 0


def _turns(fragment: bytes) -> list[_Piece]:
    """The turns in a piece of a body, in order. A first one without a role is the rest of a text that began before."""
    turns: list[_Piece] = []
    marks = list(_ROLE.finditer(fragment))[-MARKS_MAX:]
    first = fragment[:1] != b"{" and bool(fragment)
    if first:
        text, end, _ = _string(fragment, 0)
        stop = marks[0].start() if marks else len(fragment)
        if end <= stop or not marks:
            more = [_string(fragment, part.end())[0] for part in _TEXT.finditer(fragment, end, stop)]
            turns.append(_Piece("", "\n".join([text, *more]), 0, False))
    for i, mark in enumerate(marks):
        begin = marks[i - 1].end() if i else 0
        stop = marks[i + 1].start() if i + 1 < len(marks) else len(fragment)
        leads = fragment[: mark.start()].rstrip()[-1:] == b"{"
        text, at, cut = _content(fragment, mark.end(), stop) if leads else _content(fragment, begin, mark.start())
        if not i and turns and not leads and not text:  # its content stands before its role, and began before the fragment
            text = turns.pop().text
        turns.append(_Piece(mark[1].decode(), text, at, cut))
    return turns


def _content(fragment: bytes, begin: int, stop: int) -> tuple[str, int, bool]:
    """(text of a turn's content, where it begins, whether the fragment ends first)."""
    found = _CONTENT.search(fragment, begin, stop)
    if found is None:
        return "", begin, False
    if found[1] == b'"':
        text, _, cut = _string(fragment, found.end())
        return text, found.end(), cut
    texts = [_string(fragment, part.end()) for part in _TEXT.finditer(fragment, found.end(), stop)]
    return "\n".join([text for text, _, _ in texts]), found.end(), bool(texts) and texts[-1][2]


def _string(fragment: bytes, at: int) -> tuple[str, int, bool]:
    """(the JSON string whose inside begins at `at`, the index behind its quote, whether the fragment ends first)."""
    quote = fragment.find(b'"', at)
    while quote > at and _slashes(fragment, at, quote) % 2:
        quote = fragment.find(b'"', quote + 1)
    end = quote if quote >= 0 else len(fragment)
    return _unescaped(fragment[at:end]), end + 1, quote < 0


def _slashes(text: bytes, begin: int, end: int) -> int:
    """How many backslashes stand directly before `end`."""
    before = text[max(begin, end - END_BYTES) : end]
    return len(before) - len(before.rstrip(b"\\"))


def _unescaped(raw: bytes) -> str:
    text = raw.lstrip(_CONTINUED).decode("utf-8", "ignore")
    if "\\" not in text:
        return text
    broken = _BROKEN.search(text, max(0, len(text) - 6))
    text = text[: broken.start()] if broken is not None else text
    if (len(text) - len(text.rstrip("\\"))) % 2:
        text = text[:-1]
    try:
        return str(json.loads(f'"{text}"', strict=False))
    except ValueError:
        return text
