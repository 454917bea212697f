"""The soak in short: the same program, a few thousand requests with a fault always on, and its last line judged."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [
    sys.executable,
    "tests/faults/soak.py",
    "--per-cell",
    "0",
    "--requests",
    "3000",
    "--warm-up",
    "1000",
    "--epoch",
    "1500",
]


def test_nothing_is_lost_duplicated_or_changed_under_faults() -> None:
    done = subprocess.run(COMMAND, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    figures = json.loads(done.stdout.splitlines()[-1])
    assert (figures["lost"], figures["duplicated"], figures["changed"], figures["wrong_end"]) == (0, 0, 0, 0)
    assert figures["requests"] >= 4000
    assert figures["amplification"] <= 1.10
    assert figures["fds_end"] <= figures["fds_base"] + 4
    assert figures["faults_armed"] >= 2
    assert min(figures["ends"][kind] for kind in ("complete", "error", "stream_error", "gone")) > 0
