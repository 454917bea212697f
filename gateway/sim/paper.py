"""The skeleton of the commands that write docs/papers: arguments, kept results, a report of sections, a line of figures.

A report is a head and titled sections, each written by one part; `--update` replaces the sections of the parts that
were run and leaves all else as it stands, what was added by hand too. What a part measures is its own affair.
"""

import argparse
import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from gateway.sim.campaign import Campaign
from gateway.sim.present import shown
from gateway.sim.stats import interval
from gateway.sim.tables import TableError


@dataclass(frozen=True, slots=True)
class Bench:
    """What every part runs on. `data` is the folder that LEEWAY_DATA names; `seeds` and `requests`, where they are set,
    shorten what is run; `quick` runs what takes real time faster than it is meant."""

    campaign: Campaign
    data: Path | None
    seeds: int = 0
    requests: int = 0
    quick: bool = False


@dataclass(frozen=True, slots=True)
class Picture:
    """An SVG that stands below a section's words."""

    title: str
    svg: str


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the report. `figures` go into the command's line of JSON, pictures and `files` into the report's folder."""

    title: str
    lines: Sequence[str]
    figures: Mapping[str, float] = field(default_factory=dict)
    pictures: Mapping[str, Picture] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)


Home = TypeVar("Home", bound=Bench)


@dataclass(frozen=True, slots=True)
class Paper(Generic[Home]):
    """One command. `name` is that of docs/papers/NAME.md; `sources` the hash of what decides its results; a part that
    can't be run here gives no section."""

    name: str
    head: str
    parts: Mapping[str, Callable[[Home], Section | None]]
    bench: Callable[[Campaign, Path | None, int, int, bool], Home]
    sources: str


def run(paper: Paper[Home], root: Path, doc: str | None) -> None:
    """The command, in the project at `root`, told of by the first line of `doc`. Ends the process where a table is wrong."""
    given = _arguments(paper, root, doc)
    data = os.environ.get("LEEWAY_DATA")
    campaign = Campaign(given.kept, paper.sources, given.jobs, _tell)
    bench = paper.bench(campaign, Path(data) if data else None, given.seeds, given.requests, given.quick)
    try:
        sections = [section for name in given.only if (section := paper.parts[name](bench)) is not None]
    except TableError as error:
        sys.exit(str(error))
    write(given.out, given.out.read_text(encoding="utf-8") if given.update else paper.head, sections)
    figures = {name: value for section in sections for name, value in section.figures.items()}
    told = {name: None if math.isnan(value) else round(value, 4) for name, value in figures.items()}
    sys.stdout.write("\n" + json.dumps(told) + "\n")


def _arguments(paper: Paper[Home], root: Path, doc: str | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(doc or "").split("\n", maxsplit=1)[0])
    out = root / "docs" / "papers" / f"{paper.name}.md"
    parser.add_argument("--only", default=",".join(paper.parts), help="parts, comma-separated: %(default)s")
    parser.add_argument("--seeds", type=int, default=0, help="at most so many seeds")
    parser.add_argument("--requests", type=int, default=0, help="requests a run, where their number can be set")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--kept", type=Path, default=root / ".papers", help="folder of kept results")
    parser.add_argument("--out", type=Path, default=out, help="the report")
    parser.add_argument("--quick", action="store_true", help="what takes real time is run fast: a test of the command")
    parser.add_argument("--update", action="store_true", help="leave all else of the report as it is")
    given = parser.parse_args()
    given.only = given.only.split(",")
    if unknown := [name for name in given.only if name not in paper.parts]:
        parser.error(f"--only: no part {', '.join(unknown)}; there are {', '.join(paper.parts)}")
    return given


def write(out: Path, before: str, sections: Sequence[Section]) -> None:
    """The report `before` with these sections, in the places of those of the same title or at its end."""
    parts, folder = dict(parts_of(before)), out.with_suffix("")
    for section in sections:
        shows = [f"![{one.title}]({folder.name}/{name}.svg)" for name, one in section.pictures.items()]
        parts[section.title] = "\n\n".join(["\n".join(section.lines).strip(), *shows]).strip()
        beside = {**section.files, **{f"{name}.svg": one.svg + "\n" for name, one in section.pictures.items()}}
        for name, text in beside.items():
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
    out.parent.mkdir(parents=True, exist_ok=True)
    text = "\n\n".join(f"## {title}\n\n{words}" if title else words for title, words in parts.items())
    out.write_text(text + "\n", encoding="utf-8")


def parts_of(report: str) -> Iterator[tuple[str, str]]:
    """Titles and words of a report; what stands before the first title has none."""
    for part in re.split(r"^## ", report, flags=re.MULTILINE):
        title, _, words = part.partition("\n") if not part.startswith("# ") else ("", "", part)
        yield title, words.strip()


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of Markdown, with an empty one before and after."""
    return ["", "| " + " | ".join(head) + " |", "|" + "---|" * len(head), *("| " + " | ".join(row) + " |" for row in rows), ""]


def spread(values: Sequence[float], form: str) -> str:
    """Mean and half-width over seeds."""
    return shown(interval(values), form)


def _tell(text: str) -> None:
    sys.stderr.write(f"\r{text}   ")
