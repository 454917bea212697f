"""`make paper-astrolabe`: runs the experiments, writes docs/papers/astrolabe.md, prints one line of JSON.

Results are kept under `--kept` and used again as long as the sources that decide are the same, so it can be stopped
and taken up again. `--seeds` and `--requests` shorten it; the report says what was run.
"""

import argparse
import json
import math
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from cpu import e4
from experiments import EXPERIMENTS, Bench
from peers import peers
from stack import e15

from gateway.sim.campaign import Campaign, sources_hash

EVERY = {**EXPERIMENTS, "e4": e4, "e15": e15, "peers": peers}
ROOT = Path(__file__).parents[3]
HEAD = """# Astrolabe: what the simulator gives

Everything but E4 (CPU time) and E15 (real time) is **simulation** ([sim]): a model of the paper's cluster, not hardware.
One constant (1 ms of engine overhead a step) was fitted to one published capacity, so levels are fitted and only
differences are predictions.
Published figures come from one run each; its authors state +-0.3 per s for capacities. ± is half of the two-sided 80 %
interval over seeds; runs are paired by seed. Constants of our policy stand in `examples/papers/astrolabe/*.toml`.

Repeat with `make paper-astrolabe` (arguments in `PAPER_ARGS`)."""


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--only", default=",".join(EVERY), help="experiments, comma-separated")
    parser.add_argument("--seeds", type=int, default=0, help="at most so many seeds")
    parser.add_argument("--requests", type=int, default=0, help="requests a run, instead of 10,000")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--kept", type=Path, default=ROOT / ".papers", help="folder of kept results")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "papers" / "astrolabe.md", help="the report")
    parser.add_argument("--quick", action="store_true", help="E15 with engines 40 times as fast: a test of the command")
    parser.add_argument("--update", action="store_true", help="leave all else of the report as it is")
    given = parser.parse_args()
    data = os.environ.get("LEEWAY_DATA")
    campaign = Campaign(given.kept, sources_hash(ROOT), given.jobs, _tell)
    bench = Bench(campaign, Path(data) if data else None, given.seeds, given.requests, given.quick)
    before = given.out.read_text(encoding="utf-8") if given.update else HEAD
    parts, figures = dict(_sections(before)), {}
    for name in given.only.split(","):
        section = EVERY[name](bench)
        parts[section.title] = "\n".join(section.lines).strip()
        figures.update(section.figures)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    text = "\n\n".join(f"## {title}\n\n{words}" if title else words for title, words in parts.items())
    given.out.write_text(text + "\n", encoding="utf-8")
    shown = {key: None if math.isnan(value) else round(value, 3) for key, value in figures.items()}
    sys.stdout.write("\n" + json.dumps(shown) + "\n")


def _sections(report: str) -> Iterator[tuple[str, str]]:
    """Titles and words of a report; what stands before the first title has none."""
    for part in re.split(r"^## ", report, flags=re.MULTILINE):
        title, _, words = part.partition("\n") if not part.startswith("# ") else ("", "", part)
        yield title, words.strip()


def _tell(text: str) -> None:
    sys.stderr.write(f"\r{text}   ")


if __name__ == "__main__":
    main()
