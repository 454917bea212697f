"""`gateway tagger train` and `eval`: from files of lengths to a folder of weights with its scores. Shell."""

import random
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from tokenizers import Tokenizer
from torch import Tensor

from gateway.tagger import network, targets, vocabulary
from gateway.tagger.network import Encoder, Shape
from gateway.tagger.records import Row, Wanted, read
from gateway.tagger.scoring import Trained, scored
from gateway.tagger.targets import Example
from gateway.tagger.training import Item, Plan, Progressed, Training, predict
from predictor.tagger_text import EncoderText, Marks

ANSWERS_MAX = 8  # of a prompt, in training


@dataclass(frozen=True, slots=True)
class Job:
    """What is trained from what. `start`: a checkpoint folder, own or foreign; `teacher`: one whose vectors are learnt."""

    paths: tuple[Path, ...]
    folder: Path
    wanted: Wanted
    shape: Shape
    plan: Plan
    start: Path | None = None
    teacher: Path | None = None
    test_share: float = 0.1
    limit: int = 0  # prompts; 0: all
    by_model: bool = False  # the model that answers is read, too


@contextmanager
def _bar(words: str, total: int) -> Any:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[note]}"))
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn()) as progress:
        task = progress.add_task(words, total=total, note="")
        yield lambda done, note="": progress.update(task, completed=done, note=note)


def train(job: Job, say: Callable[[str], None]) -> Trained:
    """Train, score on the groups kept apart, and write the folder."""
    torch.manual_seed(job.plan.seed)
    rows = read(job.paths, job.wanted)
    learnt = [row for row in rows if not targets.is_test(row.group, job.test_share)]
    known = targets.offsets(learnt)
    made = targets.examples_by_model if job.by_model else targets.examples
    examples = made(learnt, known, ANSWERS_MAX, random.Random(job.plan.seed))
    if job.limit:
        examples = examples[:: max(1, len(examples) // job.limit)][: job.limit]
    if job.shape.point:
        examples = [replace(example, text=EncoderText("", example.first_turn[:2000], ())) for example in examples]
    say(f"{len(rows)} answers, {len(examples)} prompts to learn from")
    encoder, tokenizer = _made(job, examples, targets.names(learnt) if job.by_model else ())
    read_text, marks = vocabulary.reader(tokenizer)
    items = [Item(read_text(example.text, example.model), example, place) for place, example in enumerate(examples)]
    vectors = _vectors(job, examples)
    training = Training(encoder, items, vectors, job.plan, marks.pad, job.folder)
    smooth = 0.0
    with _bar("training", training.steps) as tell:

        def told(progressed: Progressed) -> None:
            nonlocal smooth
            smooth = progressed.loss if not smooth else 0.97 * smooth + 0.03 * progressed.loss
            tell(progressed.done, f"loss {smooth:.4f}")

        training.run(told)
    tested = [row for row in rows if targets.is_test(row.group, job.test_share)]
    outcome = assess(encoder, read_text, marks, tested, known, job.plan.seed)
    _write(job, encoder, tokenizer, known, outcome)
    say(f"{job.folder}: {network.parameters(encoder) / 1e6:.1f} M parameters")
    return outcome


def _made(job: Job, examples: Sequence[Example], models: Sequence[str]) -> tuple[Encoder, Tokenizer]:
    """The network and its tokenizer, as the job has them. `models`: names of those that have a sign."""
    meaning = 384 if job.teacher else 0
    if job.start is not None:
        tokenizer = vocabulary.load(job.start / "tokenizer.json", models)
        encoder = Encoder(network.body_from(job.start, tokenizer.get_vocab_size()), job.shape.point, meaning)
        network.carry_on(encoder, job.start)
        return encoder, tokenizer
    kept = job.folder / "tokenizer.json"
    if kept.exists():
        tokenizer = vocabulary.load(kept)
    else:
        texts = (f"{e.text.begin}\n{e.text.end}" for e in examples)
        tokenizer = vocabulary.train(texts, job.shape.vocabulary, models)
        job.folder.mkdir(parents=True, exist_ok=True)
        tokenizer.save(str(kept))
    _, marks = vocabulary.reader(tokenizer)
    if bool(marks.models) != job.by_model:
        raise ValueError(f"{job.folder} holds a run that {'does not know' if job.by_model else 'knows'} models")
    shape = replace(job.shape, vocabulary=tokenizer.get_vocab_size())
    encoder = Encoder(network.body_of(shape, marks), shape.point, meaning)
    if job.teacher is not None:
        from gateway.tagger.teacher import start_words

        start_words(job.teacher, tokenizer, encoder.body.get_input_embeddings().weight)
    return encoder, tokenizer


def _vectors(job: Job, examples: Sequence[Example]) -> Tensor | None:
    """The teacher's of each prompt, kept in the folder for the next run (or known from where it starts)."""
    if job.teacher is None:
        return None
    from gateway.tagger.teacher import sentence_vectors

    path, pids = job.folder / "vectors.pt", [example.pid for example in examples]
    for known in (path, job.start / path.name if job.start else path):
        if known.exists() and (kept := torch.load(known, weights_only=True))["pids"] == pids:
            vectors: Tensor = kept["vectors"]
            return vectors
    done = 0
    with _bar("teacher", len(examples)) as tell:

        def told(more: int) -> None:
            nonlocal done
            done += more
            tell(done)

        vectors = sentence_vectors(job.teacher, [example.text for example in examples], told)
    torch.save({"pids": pids, "vectors": vectors}, path)
    return vectors


def assess(
    encoder: Encoder,
    read_text: Callable[[EncoderText, str], list[int]],
    marks: Marks,
    rows: Sequence[Row],
    known: dict[str, float],
    seed: int,
) -> Trained:
    """Scores of rows that were kept apart. Where the encoder knows a row's model, its offset is no more added."""

    def asked(row: Row) -> tuple[str, str]:
        return row.pid, marks.known(row.model)

    prompts = {asked(row): row for row in rows}
    order = [Example(row.pid, row.source, row.group, row.text, "", (), (), model) for (_, model), row in prompts.items()]
    if encoder.point:
        firsts = [EncoderText("", row.first_turn[:2000], ()) for row in prompts.values()]
        order = [replace(example, text=first) for example, first in zip(order, firsts, strict=True)]
    items = [Item(read_text(example.text, example.model), example, 0) for example in order]
    found = dict(zip(prompts, predict(encoder, items, marks.pad), strict=True))
    unread = {model: offset for model, offset in known.items() if not marks.known(model)}
    return scored(rows, lambda row: found[asked(row)], unread, seed)


def _write(job: Job, encoder: Encoder, tokenizer: Tokenizer, known: dict[str, float], outcome: Trained) -> None:
    about = {
        "plan": asdict(job.plan),
        "architecture": encoder.body.config.model_type,
        "restricted": job.wanted.restricted,
        "offsets": {name: round(value, 4) for name, value in sorted(known.items())},
        "cold": {name: asdict(scores) for name, scores in outcome.cold.items()},
        "calibrated": {name: asdict(scores) for name, scores in outcome.calibrated.items()},
    }
    network.save(job.folder, encoder, about)
    tokenizer.save(str(job.folder / "tokenizer.json"))
