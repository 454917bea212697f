"""`make paper-astrolabe`: runs the experiments, writes docs/papers/astrolabe.md, prints one line of JSON.

Results are kept under `--kept` and used again as long as the sources that decide are the same, so it can be stopped
and taken up again. `--seeds` and `--requests` shorten it; the report says what was run.
"""

from pathlib import Path

from cpu import e4
from experiments import EXPERIMENTS, Scenarios
from peers import peers
from stack import e15

from gateway.sim.campaign import sources_hash
from gateway.sim.paper import Paper, run

ROOT = Path(__file__).parents[3]
HEAD = """# Astrolabe: what the simulator gives

Everything but E4 (CPU time) and E15 (real time) is **simulation** ([sim]): a model of the paper's cluster, not hardware.
One constant (1 ms of engine overhead a step) was fitted to one published capacity, so levels are fitted and only
differences are predictions.
Published figures come from one run each; its authors state +-0.3 per s for capacities. ± is half of the two-sided 80 %
interval over seeds; runs are paired by seed. Constants of our policy stand in `examples/papers/astrolabe/*.toml`.

Repeat with `make paper-astrolabe` (arguments in `PAPER_ARGS`)."""
PAPER = Paper("astrolabe", HEAD, {**EXPERIMENTS, "e4": e4, "e15": e15, "peers": peers}, Scenarios, sources_hash(ROOT))

if __name__ == "__main__":
    run(PAPER, ROOT, __doc__)
