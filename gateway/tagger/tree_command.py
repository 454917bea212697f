"""`gateway tagger train-trees`: boosted trees from length logs or other jsonl, or from a folder of public answers."""

import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

NEEDS = ("lightgbm", "scipy", "onnx", "numpy", "pyarrow")


def train_trees(
    files: Annotated[list[Path], typer.Argument(help="Length logs (or other jsonl), or one folder of public answers.")],
    out: Annotated[Path, typer.Option(help="The ONNX file to write; the serving process reads trees.onnx in tagger.models.")],
    model: Annotated[list[str] | None, typer.Option(help="Only answers of this model (repeatable).")] = None,
    ranks: Annotated[
        bool, typer.Option("--ranks", help="Grow on the lengths' ranks: better for agents and long talks.")
    ] = False,
    seed: Annotated[int, typer.Option()] = 0,
) -> None:
    """Train the trees. Logs: words count (and pairs of words, where text was logged), levels are the traffic's own. A folder:
    permissive rows only, and for use elsewhere: no words, and of the workloads' levels a part."""
    missing = [name for name in NEEDS if find_spec(name) is None]
    if missing:
        _fail(f"missing: {', '.join(missing)}. Install them by: pip install 'leeway-gateway[train]'")
    from gateway.tagger.tree_rows import of_folder, of_log, with_text
    from gateway.tagger.trees import ELSEWHERE, RANKS, TooFewRowsError, TreeOptions, train

    try:
        if len(files) == 1 and files[0].is_dir():
            rows, lost, options = of_folder(files[0]), 0, ELSEWHERE
        else:
            rows, lost = of_log(files)
            options = replace(RANKS if ranks else TreeOptions(), seed=seed)
        rows = with_text([row for row in rows if not model or row.model in model])
        data = train(rows, options)
        out.write_bytes(data)
    except (OSError, TooFewRowsError) as error:
        _fail(str(error))
    text = "with text" if rows[0].grams is not None else "without text"
    print(f"{out}: {len(data)} bytes from {len(rows)} answers {text}; {lost} lines could not be used")


def _fail(message: str) -> None:
    print(message, file=sys.stderr)
    raise typer.Exit(1)
