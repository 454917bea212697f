"""`gateway tagger`: train, judge, export and look at the encoder that foretells lengths. Loads torch only when it must."""

import json
import sys
from dataclasses import asdict
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from gateway.tagger.tree_command import train_trees

if TYPE_CHECKING:
    from gateway.tagger.records import Wanted
    from gateway.tagger.scoring import Trained

tagger_cli = typer.Typer(help="The length encoder: train, eval, export, inspect.", no_args_is_help=True, rich_markup_mode=None)
tagger_cli.command("train-trees")(train_trees)
Files = Annotated[list[Path], typer.Argument(help="Parquet or jsonl files, the gateway's length log, or a folder of them.")]
Source = Annotated[list[str] | None, typer.Option(help="Only this source (repeatable).")]
Model = Annotated[list[str] | None, typer.Option(help="Only answers of this model (repeatable).")]
Exclude = Annotated[Path | None, typer.Option(help="A file of prompt ids to leave out, one a line.")]
Restricted = Annotated[
    bool,
    typer.Option("--restricted", help="A folder's restricted prompts too. For research: such weights must not be passed on."),
]
TRAIN_NEEDS = ("torch", "transformers", "tokenizers")
ASK_NEEDS = ("onnxruntime", "tokenizers", "numpy")


class Architecture(StrEnum):
    """Bodies that can be made from scratch."""

    roberta = "roberta"
    bert = "bert"
    modernbert = "modernbert"


class Baseline(StrEnum):
    """`paper`: one output in tokens, squared error, from the first turn of the user alone."""

    none = "none"
    paper = "paper"


def _fail(message: str) -> NoReturn:
    print(message, file=sys.stderr)
    raise typer.Exit(1)


def _need(*modules: str) -> None:
    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        extra = "tagger" if set(missing) <= set(ASK_NEEDS) else "train"
        words = f"missing: {', '.join(missing)}. Install them by: pip install 'leeway-gateway[{extra}]'"
        if "torch" in missing:
            words += "\n(for torch without GPU libraries add --extra-index-url of PyTorch's CPU packages)"
        _fail(words)


def _need_for(files: list[Path], *modules: str) -> None:
    _need(*modules, *(["pyarrow"] if any(path.is_dir() or path.suffix == ".parquet" for path in files) else []))


@tagger_cli.command()
def train(
    files: Files,
    out: Annotated[Path, typer.Option(help="The folder to write; a run that was stopped goes on from what it holds.")],
    architecture: Annotated[Architecture, typer.Option(help="Of a network from scratch.")] = Architecture.roberta,
    layers: Annotated[int, typer.Option(min=1)] = 4,
    width: Annotated[int, typer.Option(min=16)] = 256,
    heads: Annotated[int, typer.Option(min=1)] = 4,
    vocabulary: Annotated[int, typer.Option(min=600, help="Entries of the own byte-level BPE.")] = 12_000,
    start: Annotated[Path | None, typer.Option(help="Start from this local checkpoint folder instead.")] = None,
    teacher: Annotated[
        Path | None, typer.Option(help="A sentence encoder (BERT kind) whose vectors are learnt beside.")
    ] = None,
    epochs: Annotated[float, typer.Option(min=0.01)] = 4.0,
    batch: Annotated[int, typer.Option(min=1)] = 64,
    learning_rate: Annotated[float, typer.Option(min=0.0)] = 7e-4,
    length_weight: Annotated[float, typer.Option(min=0.0, help="0: learn from the teacher alone.")] = 1.0,
    meaning_weight: Annotated[float, typer.Option(min=0.0, help="Of the teacher's vectors.")] = 0.5,
    test_share: Annotated[float, typer.Option(min=0.0, max=0.9, help="Share of prompt groups kept for the scores.")] = 0.1,
    limit: Annotated[int, typer.Option(min=0, help="Learn from so many prompts only; 0: all.")] = 0,
    source: Source = None,
    model: Model = None,
    exclude: Exclude = None,
    restricted: Restricted = False,
    by_model: Annotated[bool, typer.Option("--by-model", help="Read which model answers, too.")] = False,
    baseline: Annotated[Baseline, typer.Option(help="Train a named baseline instead.")] = Baseline.none,
    seed: Annotated[int, typer.Option()] = 1,
    threads: Annotated[int, typer.Option(min=1)] = 2,
) -> None:
    """Train an encoder on prompts and lengths of their answers."""
    _need_for(files, *TRAIN_NEEDS)
    import torch

    from gateway.tagger import run
    from gateway.tagger.network import Shape
    from gateway.tagger.records import DataError
    from gateway.tagger.training import Plan

    torch.set_num_threads(threads)
    shape = Shape(architecture.value, layers, width, heads, vocabulary, point=baseline is Baseline.paper)
    plan = Plan(epochs, batch, learning_rate, length_weight=length_weight, meaning_weight=meaning_weight, seed=seed)
    try:
        wanted = _wanted(source, model, exclude, restricted)
        outcome = run.train(run.Job(tuple(files), out, wanted, shape, plan, start, teacher, test_share, limit, by_model), _say)
    except (DataError, OSError, ValueError) as error:
        _fail(str(error))
    _show(outcome)


@tagger_cli.command("eval")
def evaluate(
    files: Files,
    folder: Annotated[
        Path | None, typer.Option("--model-folder", help="An exported model; default: the one that comes with it.")
    ] = None,
    held_out: Annotated[bool, typer.Option("--held-out", help="Only the sources that no shipped weights have seen.")] = False,
    source: Source = None,
    model: Model = None,
    exclude: Exclude = None,
    restricted: Restricted = False,
    test_share: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Only the share of prompt groups that `train` kept.")
    ] = 1.0,
    seed: Annotated[int, typer.Option()] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="One line of JSON.")] = False,
) -> None:
    """Judge an exported encoder on lengths: cold, and after 30 answers of each source and model."""
    _need_for(files, *ASK_NEEDS)
    from gateway.tagger import scoring
    from gateway.tagger.records import HELD_OUT, DataError, read
    from gateway.tagger.shipped import HOME, Shipped
    from gateway.tagger.targets import is_test

    try:
        wanted = _wanted(source or (list(HELD_OUT) if held_out else None), model, exclude, restricted, held_out)
        rows = read(files, wanted)
        rows = [row for row in rows if held_out or is_test(row.group, test_share)]
        found = Shipped(folder or HOME).of_rows(rows)
    except (DataError, OSError, ValueError) as error:
        _fail(str(error))
    outcome = scoring.scored(rows, found, {}, seed)
    if as_json:
        print(json.dumps(asdict(outcome)))
    else:
        _show(outcome)


@tagger_cli.command()
def export(
    folder: Annotated[Path, typer.Argument(help="What `train` wrote.")],
    out: Annotated[Path, typer.Option(help="The folder to write lengths.onnx and tokenizer.json to.")],
    fp32: Annotated[bool, typer.Option("--fp32", help="Leave the matrices in fp32.")] = False,
) -> None:
    """Write ONNX in int8, checked against fp32, as the gateway runs it."""
    _need(*TRAIN_NEEDS, "onnx", "onnxruntime", "onnxscript")
    from gateway.tagger import export as exporting

    try:
        made = exporting.export(folder, out, exporting.probes_of(folder, PROBES), not fp32)
    except (OSError, ValueError, exporting.ExportError) as error:
        _fail(str(error))
    if json.loads((folder / "about.json").read_text(encoding="utf-8"))["restricted"]:
        print("trained on restricted prompts: for research only, do not pass these weights on", file=sys.stderr)
    print(f"{out}: model {made.model_bytes / 1e6:.1f} MB, tokenizer {made.tokenizer_bytes / 1e6:.1f} MB")
    print(f"int8 against fp32, log tokens: mean {made.mean_difference:.4f}, most {made.most_difference:.4f}")


@tagger_cli.command()
def inspect(
    folder: Annotated[
        Path | None, typer.Option("--model-folder", help="An exported model; default: the one that comes with it.")
    ] = None,
    prompt: Annotated[list[str] | None, typer.Option(help="Foretell the answer to this (repeatable).")] = None,
    model: Annotated[str, typer.Option(help="... by this model, where the encoder reads which.")] = "",
    control: Annotated[
        str, typer.Option(help="Base URL of a running gateway's control listener: which layers it uses, and why.")
    ] = "",
    admin_key: Annotated[str, typer.Option(envvar="LEEWAY_ADMIN_KEY", help="The admin key.")] = "",
) -> None:
    """Size, inputs, outputs and speed of an exported encoder, and what it says of prompts; or, by --control, how a running
    gateway foretells lengths: each model's layers, which are on, how far each is off."""
    if control:
        _show_live(control, admin_key)
        return
    _need(*ASK_NEEDS)
    import math

    from gateway.tagger.shipped import HOME, Shipped

    try:
        shipped = Shipped(folder or HOME)
    except (OSError, ValueError) as error:
        _fail(str(error))
    facts = shipped.facts()
    print(f"model {facts.model_bytes / 1e6:.1f} MB, tokenizer {facts.tokenizer_bytes / 1e6:.1f} MB, {facts.vocabulary} entries")
    reads = "the prompt and which model answers" if facts.models else "the prompt"
    print(f"inputs {', '.join(facts.inputs)}; outputs {', '.join(facts.outputs)}; reads {reads}")
    if facts.models:
        print(f"knows {len(facts.models)} models (others are read as none): {', '.join(facts.models)}")
    print(f"64 tokens on one thread: p50 {facts.p50_ms:.2f} ms, p99 {facts.p99_ms:.2f} ms")
    for text in prompt or ():
        count, quantiles = shipped.of_prompt(text, model)
        q10, q50, q90 = (math.exp(q) for q in quantiles)
        print(f"{q10:6.0f} {q50:6.0f} {q90:6.0f} tokens (read {count})  {text[:80]!r}")


def _show_live(control: str, admin_key: str) -> None:
    from gateway.backend_table import NotReachableError, fetch
    from gateway.length_views import lines

    try:
        print(*lines(fetch(control, admin_key, "/admin/lengths")), sep="\n")
    except NotReachableError as error:
        _fail(str(error))


PROBES = (
    "",
    "hello",
    "What is 2 + 2?",
    "Write an essay of 500 words about the sea.",
    "\u8bf7\u5199\u4e00\u7bc7\u5173\u4e8e\u6625\u5929\u7684\u6587\u7ae0",
    "Answer with yes or no: is water wet?",
    "def add(a, b):\n    return a + b\n\nExplain this function step by step.",
    "List 20 ideas for a birthday party, with one sentence for each.\n" * 8,
)


def _wanted(
    source: list[str] | None, model: list[str] | None, exclude: Path | None, restricted: bool, held_out: bool = False
) -> "Wanted":
    from gateway.tagger.records import HELD_OUT, Wanted

    pids = frozenset(exclude.read_text(encoding="utf-8").split()) if exclude else frozenset()
    # held out unless named for research: weights that are passed on never see them
    out: frozenset[str] = frozenset() if held_out else frozenset(HELD_OUT) - frozenset((source or ()) if restricted else ())
    return Wanted(out, pids, frozenset(source or ()), frozenset(model or ()), restricted)


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


def _show(outcome: "Trained") -> None:
    from gateway.tagger import scoring

    print("cold:", *scoring.table(outcome.cold), sep="\n")
    print("after 30 answers of each source and model:", *scoring.table(outcome.calibrated), sep="\n")
