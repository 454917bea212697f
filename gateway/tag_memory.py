"""What the tagger's models said of prompts, kept by what they read: the same question is put to them once. Pure.

Trees read no model's name and most encoders none, so that what was said of a prompt serves all models: the name is left
out of the body. Where the encoder reads which model answers, each has answers of its own. Bounded: what was of no use for
longest goes first.
"""

from collections import OrderedDict
from typing import Generic, TypeVar

from gateway.prompt_ends import Ends

Answer = TypeVar("Answer")


def key_of(ends: Ends, max_tokens: int, model: str, *, reads_model: bool) -> int:
    """Of a question. Where no model is read, the name of the one that is asked for is left out of the body's ends; one that
    is written there in another way (an alias, escapes) is not found, and costs one question more."""
    if reads_model:
        return hash((ends, max_tokens))  # the body names it
    name = b'"%s"' % model.encode("utf-8", "surrogatepass")
    head = ends.head.replace(name, b"", 1)
    tail = ends.tail if len(head) < len(ends.head) else ends.tail.replace(name, b"", 1)
    size = ends.size - (len(ends.head) + len(ends.tail) - len(head) - len(tail))
    return hash((head, tail, size, ends.tools, max_tokens))


class TagMemory(Generic[Answer]):
    """At most `entries` answers; 0: none. An answer is `whole` if the encoder was asked, too."""

    __slots__ = ("_entries", "_known")

    def __init__(self, entries: int) -> None:
        self._entries = entries
        self._known: OrderedDict[int, tuple[Answer, bool]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def find(self, key: int, *, whole: bool) -> Answer | None:
        """What was said. `whole`: without the encoder's word it does not do, since it may have been another model's question,
        for which the encoder was spared."""
        known = self._known.get(key)
        if known is None or (whole and not known[1]):
            return None
        self._known.move_to_end(key)
        return known[0]

    def keep(self, key: int, answer: Answer, *, whole: bool) -> None:
        """Remember it, in place of what was said before."""
        if self._entries:
            self._known[key] = (answer, whole)
            self._known.move_to_end(key)
            if len(self._known) > self._entries:
                self._known.popitem(last=False)
