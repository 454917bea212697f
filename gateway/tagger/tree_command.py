"""`gateway tagger train-trees`: boosted trees from length logs or other jsonl, or from a folder of public answers."""

import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.tagger.tree_rows import TreeRow
    from gateway.tagger.trees import Grown, TreeOptions

NEEDS = ("lightgbm", "scipy", "onnx", "numpy", "pyarrow")
SENTENCES_NEED = ("onnxruntime", "tokenizers")


def train_trees(
    files: Annotated[list[Path], typer.Argument(help="Length logs (or other jsonl), or one folder of public answers.")],
    out: Annotated[Path, typer.Option(help="The ONNX file to write; the serving process reads trees.onnx in tagger.models.")],
    model: Annotated[list[str] | None, typer.Option(help="Only answers of this model (repeatable).")] = None,
    ranks: Annotated[
        bool, typer.Option("--ranks", help="Grow on the lengths' ranks: better for agents and long talks.")
    ] = False,
    sentences: Annotated[
        Path | None,
        typer.Option(
            help="A local sentence encoder's folder (ONNX, as all-MiniLM-L6-v2): lengths.onnx and tokenizer.json, too."
        ),
    ] = None,
    seed: Annotated[int, typer.Option()] = 0,
) -> None:
    """Train the trees. Logs: words count (and pairs of words, where text was logged), levels are the traffic's own. A folder:
    permissive rows only, and for use elsewhere: no words, and of the workloads' levels a part."""
    missing = [name for name in (*NEEDS, *(SENTENCES_NEED if sentences else ())) if find_spec(name) is None]
    if missing:
        _fail(f"missing: {', '.join(missing)}. Install them by: pip install 'leeway-gateway[train]'")
    if sentences is not None and out.name != "trees.onnx":
        _fail(f"{out}: what is trained with --sentences is read beside a file named trees.onnx")
    from gateway.tagger.tree_rows import of_folder, of_log, with_text
    from gateway.tagger.trees import ELSEWHERE, RANKS, TreeOptions, grow

    try:
        if len(files) == 1 and files[0].is_dir():
            rows, lost, options = of_folder(files[0]), 0, ELSEWHERE
        else:
            rows, lost = of_log(files)
            options = replace(RANKS if ranks else TreeOptions(), seed=seed)
        rows = with_text([row for row in rows if not model or row.model in model])
        grown = grow(rows, options)
        if sentences is not None:
            _with_sentences(rows, grown, options, sentences, out.parent)
        out.write_bytes(grown.data)
    except (OSError, ValueError) as error:
        _fail(str(error))
    text = "with text" if rows[0].grams is not None else "without text"
    print(f"{out}: {len(grown.data)} bytes from {len(rows)} answers {text}; {lost} lines could not be used")


def _with_sentences(rows: "Sequence[TreeRow]", grown: "Grown", options: "TreeOptions", checkpoint: Path, folder: Path) -> None:
    """Raises OSError, ValueError."""
    from gateway.tagger import sentences

    if rows[0].grams is None:
        raise ValueError("a sentence encoder needs answers whose prompts are known: a length log with log_text = true")
    data = sentences.train(rows, grown, options, checkpoint, {}, lambda words: print(words, file=sys.stderr, flush=True))
    sentences.write(data, checkpoint, folder)
    print(f"{folder / sentences.LENGTHS}: {len(data)} bytes")


def _fail(message: str) -> None:
    print(message, file=sys.stderr)
    raise typer.Exit(1)
