"""`make paper-cascade`: runs the set-ups, writes docs/papers/cascade.md, prints one line of JSON.

Results are kept under `--kept` and used again as long as the sources that decide are the same, so it can be stopped
and taken up again. `--seeds` and `--requests` shorten it; the report says what was run.
"""

from pathlib import Path

from cascade_bench import DECIDING, SetUps
from cascade_loads import LOADS_PARTS
from cascade_parts import PARTS

from gateway.sim.campaign import hash_of
from gateway.sim.paper import Paper, run

ROOT = Path(__file__).parents[3]
HEAD = """# CASCADE: what the simulator gives

Everything here is **simulation** ([sim]): a model of engines with the step times of tabulated profiles, not hardware, and
of our reading of a system whose paper was known to us by a summary only. **Its SLOs, class mix, tier sizes and speeds, reuse
of prefixes, guard and reserved share are not in that summary: all of them are ours**, stated in
`examples/papers/cascade/*.toml` and fixed before the runs shown. The truth differs from what the predictor believes: each
engine's steps are up to 15 % slower or faster, 1 % of the steps stall by 200 ms, told output lengths are 25 % off; and answers
end when they end. Runs are paired by seed; ± is half of the two-sided 80 % interval over seeds.

Every variant composes each step's tokens in its own order, so a long prompt once begun does not block those behind it unless
the order says so; engines and chunk size are the same for all. *FCFS* restores prefixes in the background where feasible;
*FCFS sync* always, stalling the step, as a plain connector does. *LRB* is CASCADE's rule (least remaining budget first, tier 2
behind it with 10 %), its budget counting those before it in tier 1; *LRB, own* without that. *MH* is ours: Moore-Hodgson
tiers, alpha 0.5, tier 2 with 2 %; who is late only by the guard stays in tier 1 if that makes nobody late. For all, the guard
is learned from observed service times by class and size, and work is planned at the pace that the engine's steps have shown,
stalls apart.

Repeat with `make paper-cascade` (arguments in `PAPER_ARGS`); it reads the traces in the folder that `LEEWAY_DATA` names."""
PAPER = Paper("cascade", HEAD, {**LOADS_PARTS, **PARTS}, SetUps, hash_of(ROOT, DECIDING))

if __name__ == "__main__":
    run(PAPER, ROOT, __doc__)
