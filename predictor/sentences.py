"""What a sentence encoder reads of a prompt: the user's last text, without the runs of tokens that many prompts share. Pure.

Templates surround what is asked by the same words in every prompt. Those tell which workload it is, which the trees know by
then; left out, the `TOKENS_MAX` tokens that are read hold more of what is asked, and short prompts cost less.
"""

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from zlib import crc32

from predictor.grams import Spoken

TOKENS_MAX = 64  # the signs of begin and end included
END_TOKENS = 16  # kept of the end where a text does not fit
RUN = 6  # tokens in a row
RUNS_MAX = 4096  # that are left out
SHARED = 0.02  # of all texts have a run that is left out, ...
SHARED_MIN = 20  # ... and at least so many


@dataclass(frozen=True, slots=True)
class Reading:
    """The ids of the signs of begin and end, and the runs (as `runs_of` numbers them) that are left out."""

    begin: int
    end: int
    shared: frozenset[int]

    def ids(self, tokens: Sequence[int]) -> list[int]:
        """The encoder's input, of a text's tokens: at most `TOKENS_MAX`. What holds nothing of its own is read as it is."""
        left = self._own(tokens) or list(tokens)
        room = TOKENS_MAX - 2
        if len(left) > room:
            left = left[: room - END_TOKENS] + left[-END_TOKENS:]
        return [self.begin, *left, self.end]

    def _own(self, tokens: Sequence[int]) -> list[int]:
        if not self.shared:
            return list(tokens)
        kept, until = [], 0  # what stands before `until` is part of a shared run
        runs = runs_of(tokens)
        for place, token in enumerate(tokens):
            if place < len(runs) and runs[place] in self.shared:
                until = place + RUN
            if place >= until:
                kept.append(token)
        return kept


def sentence_of(spoken: Spoken) -> str:
    """The user's last text, or both ends of a long one."""
    return f"{spoken.head}\n{spoken.tail}" if spoken.tail else spoken.head


def runs_of(tokens: Sequence[int]) -> list[int]:
    """A number below 2^32 for each run of RUN tokens, by where it begins."""
    return [crc32(array("i", tokens[place : place + RUN]).tobytes()) for place in range(len(tokens) - RUN + 1)]


def shared_runs(texts: Iterable[Sequence[int]]) -> frozenset[int]:
    """Of many texts' tokens the runs that are left out. A text that comes again is counted once."""
    unlike = {tuple(tokens) for tokens in texts}
    counts: Counter[int] = Counter()
    for tokens in unlike:
        counts.update(set(runs_of(tokens)))
    least = max(SHARED_MIN, SHARED * len(unlike))
    return frozenset([run for run, count in counts.most_common(RUNS_MAX) if count >= least])
