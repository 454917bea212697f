"""How long models of three sizes take to load, fitted on two, foretold for the third. `make bench-swap-times`

Random-weight checkpoints are loaded and unloaded as the gateway does it (a managed vLLM process on the CPU, from the start
of the process until it answers), in rounds through all sizes, each with its files in the page cache and without them.
What is in the cache apart from weights (the engine's own files, say) stays there, so a cold load is cold in its weights
alone; and a disk that a machine shares, or that has a cache of its own, may give them faster than it would on the next day.

The last line is JSON: per way (disk, cache) the medians with their spread, and per size the seconds that SwapCosts, which
the gateway plans with, foretells of it after it has seen the other two and nothing else, with the relative error. `error`
is that of the middle size, `error_worst` the worst of the three, which also foretells beyond what was seen; `least` is the
same of each size's quickest load alone, for a machine where others work (they make loads longer, never shorter). `reading_s`
is what the engine itself says that reading the weights took, `line` the errors of a plain straight line through medians.
"""

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import linear_regression, median

from backends.control_http import BackendControl, ControlSession
from backends.managed import ManagedProcess
from backends.moves import MoverSpec, SwapSpec
from backends.vllm_local import VllmLaunch, find_engine
from predictor.cost import Place, SwapCosts
from predictor.hosts import host_profiles
from tests.tools.programs import free_port

HOST = "generic"
START_S = 600.0
READING = re.compile(r"Loading weights took ([0-9.]+) seconds")
WAYS: tuple[Place, ...] = ("disk", "cache")
Times = dict[tuple[Place, str], list[float]]


def forget(folder: Path) -> None:
    """Take the weights out of the page cache."""
    for path in folder.glob("*.safetensors"):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(handle)


def size_of(folder: Path) -> float:
    """Bytes of its weights."""
    return float(sum(path.stat().st_size for path in folder.glob("*.safetensors")))


def mover(python: Path, folder: Path, port: int, log: Path, http: BackendControl) -> ManagedProcess:
    """Of a process that serves that checkpoint."""
    launch = VllmLaunch(python, folder, folder.name, port)
    swap = SwapSpec(way="process", command=launch.command(), log=str(log), start_s=START_S)
    spec = MoverSpec(swap, launch.url, folder.name)
    return ManagedProcess(spec, http, launch.environment(os.environ))


async def measure(python: Path, folders: Sequence[Path], rounds: int, place: Path) -> tuple[Times, Times]:
    """Seconds of each load, and what the engine said of reading, by way and checkpoint."""
    loads: Times = {}
    reading: Times = {}
    ports = [free_port() for _ in folders]
    session = ControlSession(lambda address: True)
    try:
        for _ in range(rounds):
            for number, folder in enumerate(folders):
                port, log = ports[number], place / f"{folder.name}.log"
                url = f"http://127.0.0.1:{port}"
                made = mover(python, folder, port, log, BackendControl(session, url, "", START_S + 5))
                for way in WAYS:
                    if way == "disk":
                        forget(folder)
                    log.unlink(missing_ok=True)
                    began_s = time.monotonic()
                    try:
                        await made.into(1.0)
                        took_s = time.monotonic() - began_s
                    finally:
                        await made.close()
                    loads.setdefault((way, folder.name), []).append(took_s)
                    said = READING.findall(log.read_text(errors="replace"))
                    reading.setdefault((way, folder.name), []).append(float(said[-1]) if said else 0.0)
                    sys.stderr.write(f"{folder.name} from {way}: {took_s:.1f} s, reading {said[-1:]}\n")
    finally:
        await session.close()
    return loads, reading


def foretold(sizes: Mapping[str, float], loads: Times, way: Place, third: str) -> tuple[float, float]:
    """Seconds for the third, from the loads of the other two: by what the gateway plans with, and by a straight line."""
    costs = SwapCosts(host_profiles())
    others = [name for name in sizes if name != third]
    for pair in zip(*(loads[way, name] for name in others), strict=True):
        for name, took_s in zip(others, pair, strict=True):
            costs.observe(name, sizes[name], HOST, way, "gpu", took_s)
    line = linear_regression([sizes[name] for name in others], [median(loads[way, name]) for name in others])
    return costs.predict(third, sizes[third], HOST, way, "gpu").mean_s, line.intercept + line.slope * sizes[third]


def least_errors(sizes: Mapping[str, float], loads: Times, way: Place) -> dict[str, float]:
    """Relative errors where each size has its quickest load alone."""
    quickest = {key: [min(times)] for key, times in loads.items()}
    return {name: foretold(sizes, quickest, way, name)[0] / quickest[way, name][0] - 1 for name in sizes}


def figures(sizes: Mapping[str, float], loads: Times, reading: Times) -> dict[str, object]:
    """What the last line says."""
    found: dict[str, object] = {"gb": {name: round(size / 1e9, 3) for name, size in sizes.items()}}
    middle = sorted(sizes, key=lambda name: sizes[name])[1]
    for way in WAYS:
        by_size, errors, straight = {}, {}, {}
        for name in sizes:
            seen_s = median(loads[way, name])
            told_s, line_s = foretold(sizes, loads, way, name)
            errors[name], straight[name] = told_s / seen_s - 1, line_s / seen_s - 1
            by_size[name] = {
                "seen_s": round(seen_s, 2),
                "low_s": round(min(loads[way, name]), 2),
                "high_s": round(max(loads[way, name]), 2),
                "reading_s": round(median(reading[way, name]), 2),
                "foretold_s": round(told_s, 2),
                "error": round(errors[name], 4),
            }
        worst = max(abs(error) for error in errors.values())
        least = {name: round(error, 4) for name, error in least_errors(sizes, loads, way).items()}
        line = {name: round(error, 4) for name, error in straight.items()}
        found[way] = {
            "sizes": by_size,
            "error": round(abs(errors[middle]), 4),
            "error_worst": round(worst, 4),
            "least": least,
            "line": line,
        }
    return found


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--sizes", nargs=3, default=["0.3", "1.5", "4"], help="GB of weights (default: 0.3 1.5 4)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where the checkpoints are kept (default: a temporary folder)")
    asked = parser.parse_args()
    models = Path(os.environ["LEEWAY_ENGINE_MODELS"])
    python, tiny = find_engine(Path(os.environ["LEEWAY_ENGINE"]), models, "tiny")
    with tempfile.TemporaryDirectory() as temporary:
        root = asked.folder or Path(temporary)
        root.mkdir(parents=True, exist_ok=True)
        script = Path(__file__).with_name("swap_models.py")
        made = subprocess.run([python, script, tiny, root, *asked.sizes], check=True, capture_output=True, text=True)
        folders = [Path(line) for line in made.stdout.split()]
        begun = os.getloadavg()[0]
        loads, reading = asyncio.run(measure(python, folders, asked.rounds, Path(temporary)))
        found = figures({folder.name: size_of(folder) for folder in folders}, loads, reading)
    conditions = {"cores": os.cpu_count(), "load_before": round(begun, 2), "rounds": asked.rounds}
    sys.stdout.write(json.dumps({**found, "conditions": conditions}) + "\n")


if __name__ == "__main__":
    main()
