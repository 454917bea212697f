"""A disk that fills and is freed again: of log and length log only what was being written is lost, and what is lost is counted.

A limit on a file's size makes the same short write and error; it is of the whole process, so each test has one of its own.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIMIT = """
import resource, sys, threading
from gateway.config import Tagger
from gateway.length_log import LengthLog
from gateway.logs import LineWriter
from tests.wire.test_length_log import ROW

path, pause = sys.argv[1], threading.Event()
sys.setswitchinterval(60.0)  # no writer comes between the lines of a loop: they are one batch

def limited(soft):
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, resource.RLIM_INFINITY))

def lost():
    while not log.dropped:
        pause.wait(0.005)
"""
LINES = """
file = open(path, "ab", buffering=0)
log = LineWriter(file.fileno(), 10_000)
limited(1000)
for number in range(100):
    log.msg(b'{"number":%d,"text":"........"}\\n' % number)
lost()
limited(resource.RLIM_INFINITY)
for number in range(100, 103):
    log.msg(b'{"number":%d}\\n' % number)
log.close(60.0)
print(log.dropped)
"""
ROWS = """
log = LengthLog(Tagger(log=path))
limited(10_000)
for _ in range(100):
    log.add(ROW)
lost()
limited(resource.RLIM_INFINITY)
for _ in range(3):
    log.add(ROW)
log.close()
print(log.dropped)
"""


def told(path: Path, body: str) -> tuple[list[dict[str, object]], int, int]:
    """(readable lines, unreadable ones, how many are said to be lost)."""
    own = os.environ | {"PYTHONPATH": os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(ROOT)])}
    command = [sys.executable, "-c", LIMIT + body, str(path)]
    child = subprocess.run(command, capture_output=True, text=True, check=False, env=own)
    assert child.returncode == 0, child.stderr
    good, torn = [], 0
    for line in path.read_bytes().splitlines():
        try:
            good.append(json.loads(line))
        except ValueError:
            torn += 1
    return good, torn, int(child.stdout)


def test_log_lines_after_a_full_disk_are_whole(tmp_path: Path) -> None:
    good, torn, lost = told(tmp_path / "log", LINES)
    numbers = [line["number"] for line in good]
    assert numbers == [*range(103 - lost - 3), 100, 101, 102]
    assert torn == 1
    assert lost > 50


def test_rows_after_a_full_disk_are_whole(tmp_path: Path) -> None:
    good, torn, lost = told(tmp_path / "rows", ROWS)
    assert torn == 1
    assert lost == 100, "all of a batch that could not be written whole"
    assert len(good) > 3
    assert len({tuple(row) for row in good}) == 1, "rows are whole"
