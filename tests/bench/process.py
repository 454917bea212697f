"""Processes of the bench: start them on a core, read what they cost, end them for sure.

CPU time is user + system time of the whole process tree, exited children included; the kernel samples the split
into user and system but measures the sum.  Memory is the proportional set size (PSS) of the tree.
Nothing here outlives the caller: each process is a group of its own that is killed at the end, and the kernel kills
it if the bench itself dies (parent-death signal).
"""

from __future__ import annotations

import os
import resource
import select
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
GRACE_S = 2.0
OPEN_FILES = 20_000
POLL_S = 0.005

ASK = b"""POST /v1/chat/completions HTTP/1.1\r
Host: 127.0.0.1\r
Authorization: Bearer sk-1234\r
Content-Type: application/json\r
Connection: close\r
Content-Length: %d\r
\r
%b"""
SMALL = b'{"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":2}'


@dataclass(frozen=True, slots=True)
class CpuTime:
    """Seconds of CPU time."""

    user_s: float
    system_s: float

    def since(self, before: CpuTime) -> CpuTime:
        return CpuTime(self.user_s - before.user_s, self.system_s - before.system_s)

    @property
    def total_s(self) -> float:
        return self.user_s + self.system_s


def stat_fields(pid: int | str) -> list[str]:
    """/proc/PID/stat from the state on (field 3 of proc(5) is index 0); empty if the process is gone."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return []


def tree(root: int) -> list[int]:
    """The process and all its descendants that are alive."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        fields = stat_fields(name) if name.isdigit() else []
        if fields:
            children.setdefault(int(fields[1]), []).append(int(name))
    found, todo = [], [root]
    while todo:
        pid = todo.pop()
        found.append(pid)
        todo += children.get(pid, [])
    return found


def cpu(root: int) -> CpuTime:
    """CPU time of the tree so far; what exited members used is counted by the parent that reaped them."""
    alive = [fields for fields in map(stat_fields, tree(root)) if fields]
    user_ticks = sum(int(fields[11]) + int(fields[13]) for fields in alive)
    system_ticks = sum(int(fields[12]) + int(fields[14]) for fields in alive)
    return CpuTime(user_ticks / TICKS_PER_S, system_ticks / TICKS_PER_S)


def pss_mib(root: int) -> float:
    """Proportional set size of the tree in MiB, swapped pages included."""
    kib = 0
    for pid in tree(root):
        with suppress(OSError):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            kib += sum(int(line.split()[1]) for line in lines if line.startswith(("Pss:", "SwapPss:")))
    return kib / 1024


def ends_within(process: subprocess.Popen[bytes], limit_s: float) -> bool:
    """Waits for the end of the process, at most limit_s; does not reap it, so its group can still be signalled."""
    if process.returncode is not None:
        return True
    handle = os.pidfd_open(process.pid)
    try:
        poller = select.poll()
        poller.register(handle, select.POLLIN)
        return bool(poller.poll(limit_s * 1000))
    finally:
        os.close(handle)


def stop(process: subprocess.Popen[bytes]) -> None:
    """Asks the group to end, kills what is left of it after GRACE_S, and reaps the leader."""
    if process.returncode is None:
        os.killpg(process.pid, signal.SIGTERM)
        ends_within(process, GRACE_S)
        os.killpg(process.pid, signal.SIGKILL)  # the leader is at worst a zombie, so the group is still ours
        process.wait()
    for stream in (process.stdout, process.stderr):
        if stream:
            stream.close()


@contextmanager
def running(
    command: Sequence[str],
    *,
    core: int,
    output: IO[bytes] | int = subprocess.DEVNULL,
    errors: IO[bytes] | int = subprocess.DEVNULL,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """The command on one core for as long as the block runs. Raises OSError if it cannot be started."""
    guarded = [shutil.which("setpriv") or "/usr/bin/setpriv", "--pdeathsig", "KILL", *command]
    home = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})  # inherited by the child: pinned from its first instruction on
    try:
        process = subprocess.Popen(
            guarded, stdout=output, stderr=errors, stdin=subprocess.DEVNULL, env=env, cwd=cwd, start_new_session=True
        )
    finally:
        os.sched_setaffinity(0, home)
    try:
        yield process
    finally:
        stop(process)


def first_in_line() -> bool:
    """Let this process run before all others whenever it has something to do: for what measures and what is measured
    with, on a machine that others use too. Children do not inherit it. False if the system does not allow it."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    except OSError:
        return False
    return True


def ahead_of_others(pid: int) -> None:
    """The same for the session of a process that is measured, as far as the system allows it. Its nice value alone counts
    only within its session where the kernel groups processes by sessions (autogroup)."""
    with suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text("-20")


def answers(port: int, limit_s: float = 2.0) -> bool:
    """Whether a small chat request on a new connection is answered with 200."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=limit_s) as connection:
            connection.sendall(ASK % (len(SMALL), SMALL))
            head = b""
            while len(head) < 12 and (piece := connection.recv(64)):
                head += piece
            return head[9:12] == b"200"
    except OSError:
        return False


def first_answer_s(process: subprocess.Popen[bytes], port: int, started_s: float, limit_s: float) -> float | None:
    """Seconds from started_s (time.monotonic) to the first good answer, asked every POLL_S.

    None if the process ended first or limit_s passed.
    """
    while (now_s := time.monotonic()) - started_s < limit_s:
        if answers(port):
            return time.monotonic() - started_s
        if ends_within(process, max(0.0, POLL_S - (time.monotonic() - now_s))):
            return None
    return None


def is_open(port: int) -> bool:
    """Whether something listens on the loopback port."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def end_on_signals() -> None:
    """SIGINT and SIGTERM end the run through the usual clean-up; further ones do not disturb it."""

    def end(number: int, _frame: object) -> None:
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_IGN)
        raise SystemExit(128 + number)

    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, end)


def allow_many_files() -> None:
    """1,000 streams are 2,000 sockets in a gateway; children inherit the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < OPEN_FILES:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(OPEN_FILES, hard), hard))
