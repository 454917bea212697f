"""What the encoder learns from rows: each prompt once, its answers' log lengths with their model's own length taken off. Pure.

A model's offset is how much longer (in log tokens) its answers are than the prompt's middle answer, shrunk towards zero;
where a source has one model only, nothing tells the two apart and the offset is zero. Splits are by group and by hash,
so that they stay the same when data is added.
"""

import math
import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from statistics import median

from gateway.tagger.records import Row
from predictor.model_names import known_name
from predictor.tagger_text import EncoderText

SHRINK_ROWS = 20.0
ROUNDS = 6
NAMELESS = 0.2
NAME_ROWS_MIN, NAMES_MAX = 20, 256


@dataclass(frozen=True, slots=True)
class Example:
    """One prompt. `logs`: log tokens of its answers, offsets removed; `cut`: which of them are only lower bounds."""

    pid: str
    source: str
    group: str
    text: EncoderText
    first_turn: str
    logs: tuple[float, ...]
    cut: tuple[bool, ...]
    model: str = ""  # "": whichever it is


def offsets(rows: Sequence[Row]) -> dict[str, float]:
    """By model: its answers' mean log length over the prompts' middle answers, shrunk."""
    by_pid: dict[str, list[tuple[str, float]]] = defaultdict(list)
    for row in rows:
        by_pid[row.pid].append((row.model, math.log(row.output_tokens)))
    found: dict[str, float] = {}
    shared = [answers for answers in by_pid.values() if len({model for model, _ in answers}) > 1]
    for _ in range(ROUNDS):
        sums: dict[str, float] = defaultdict(float)
        counts: dict[str, int] = defaultdict(int)
        for answers in shared:
            middle = median([length - found.get(model, 0.0) for model, length in answers])
            for model, length in answers:
                sums[model] += length - middle
                counts[model] += 1
        found = {model: total / (counts[model] + SHRINK_ROWS) for model, total in sums.items()}
    return found


def examples(rows: Sequence[Row], known: dict[str, float], answers_max: int, rng: random.Random) -> list[Example]:
    """One for each prompt, with at most so many of its answers, drawn at random."""
    return [_of(answers, known) for answers in _drawn(rows, answers_max, rng)]


def examples_by_model(rows: Sequence[Row], known: dict[str, float], answers_max: int, rng: random.Random) -> list[Example]:
    """One for each answer, with its model, whose own length then is a part of what is learnt; of some the model is left out
    (and its offset taken off), so that one never seen is foretold well, too."""
    drawn, read = [answer for answers in _drawn(rows, answers_max, rng) for answer in answers], set(names(rows))
    named = [known_name(row.model) in read and rng.random() >= NAMELESS for row in drawn]
    return [replace(_of([row], {}), model=row.model) if by else _of([row], known) for row, by in zip(drawn, named, strict=True)]


def names(rows: Sequence[Row]) -> tuple[str, ...]:
    """Of models with answers enough to learn their ways from, as `known_name` has them; of very many the most frequent."""
    counts = Counter([name for row in rows if (name := known_name(row.model))])
    return tuple(sorted([name for name, count in counts.most_common(NAMES_MAX) if count >= NAME_ROWS_MIN]))


def _drawn(rows: Sequence[Row], answers_max: int, rng: random.Random) -> Iterator[list[Row]]:
    by_pid: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_pid[row.pid].append(row)
    for pid in sorted(by_pid):
        answers = by_pid[pid]
        yield rng.sample(answers, answers_max) if len(answers) > answers_max else answers


def _of(answers: Sequence[Row], known: dict[str, float]) -> Example:
    logs = tuple([math.log(row.output_tokens) - known.get(row.model, 0.0) for row in answers])
    cut = tuple([row.truncated for row in answers])
    first = answers[0]
    return Example(first.pid, first.source, first.group, first.text, first.first_turn, logs, cut)


def is_test(group: str, share: float) -> bool:
    """Whether a group is on the test side: a fixed share of them, by hash."""
    digest = blake2b(group.encode("utf-8", "surrogatepass"), digest_size=4, salt=b"lengths").digest()
    return int.from_bytes(digest, "big") < share * 2**32
