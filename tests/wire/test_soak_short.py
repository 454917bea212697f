"""The soak in short: the same program, a few thousand requests with a fault always on, and its last line judged."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LEAK_BYTES = 65536


def soak(requests: int, warm_up: int, epoch: int, leak_bytes: int = 0) -> dict[str, Any]:
    """The last line of one without a matrix."""
    sizes = f"--requests {requests} --warm-up {warm_up} --epoch {epoch} --leak {leak_bytes}"
    command = [sys.executable, "tests/faults/soak.py", *f"--per-cell 0 --rest 0 {sizes}".split()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def test_nothing_is_lost_duplicated_or_changed_under_faults() -> None:
    figures = soak(3000, 1000, 1500)
    assert (figures["lost"], figures["duplicated"], figures["changed"], figures["wrong_end"]) == (0, 0, 0, 0)
    assert figures["requests"] >= 4000
    assert figures["amplification"] <= 1.10
    assert figures["fds_end"] <= figures["fds_base"] + 4
    assert figures["faults_armed"] >= 2
    assert min(figures["ends"][kind] for kind in ("complete", "error", "stream_error", "gone")) > 0


def test_a_gateway_that_leaks_is_seen_to_grow() -> None:
    figures = soak(1500, 500, 300, LEAK_BYTES)
    leaked_mib = LEAK_BYTES * 100_000 / 2**20
    assert leaked_mib * 0.5 <= figures["rss_growth_mib"] <= leaked_mib * 1.5
