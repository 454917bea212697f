"""Programs of ours and all that they start: ended when told to, when their parent is gone, and when they end themselves."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import uvloop

from backends import child as child_module
from backends.child import Child
from tests.wire.kit import until

ROOT = Path(__file__).parents[2]
# What it starts goes into a session of its own, as daemons do; `--stubborn`: neither heeds SIGTERM.
PROGRAM = """
import signal, subprocess, sys
stubborn = "--stubborn" in sys.argv
code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); signal.pause()"
helper = subprocess.Popen([sys.executable, "-c", code], start_new_session=True, stdout=subprocess.PIPE)
helper.stdout.readline()
if stubborn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("helper", helper.pid, flush=True)
if "--brief" in sys.argv:
    sys.exit(7)
signal.pause()
"""
PARENT = """
import asyncio, os, sys
from pathlib import Path
from backends import child, guardian
async def main():
    program = child.Child(Path(sys.argv[1]))
    await program.start((sys.executable, "-c", sys.argv[2], "--stubborn"), os.environ)
    print(program.pid, flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was killed has longer to go: a busy machine is no driver that hangs."""
    monkeypatch.setattr(child_module, "_KILL_S", 60.0)


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def helper_of(log: Path) -> int:
    return int(log.read_text().split("helper ")[1].split()[0])


async def started(log: Path, *args: str) -> Child:
    """A child whose program has started its helper."""
    child = Child(log)
    await child.start((sys.executable, "-c", PROGRAM, *args), os.environ)
    await until(lambda: log.exists() and log.read_text().endswith("\n"), 60.0)
    return child


@pytest.mark.parametrize(("args", "code"), [((), 143), (("--stubborn",), 137)], ids=["polite", "stubborn"])
def test_all_that_it_started_ends_with_it(tmp_path: Path, args: tuple[str, ...], code: int) -> None:
    async def run() -> None:
        child = await started(tmp_path / "log", *args)
        helper = helper_of(tmp_path / "log")
        assert not gone(helper)
        assert await child.stop(grace_s=30.0 if code == 143 else 0.2)
        assert not child.running
        assert child.code == code
        assert gone(helper)  # at once: the guardian has waited for it

    asyncio.run(run())


def test_what_it_leaves_behind_when_it_ends_is_ended_too(tmp_path: Path) -> None:
    async def run() -> None:
        child = await started(tmp_path / "log", "--brief")
        assert await child.ends_within(60.0)
        assert (child.code, child.running) == (7, False)
        assert gone(helper_of(tmp_path / "log"))
        assert await child.stop(0.0)  # nothing to do

    asyncio.run(run())


def test_a_killed_guardian_takes_the_program_along(tmp_path: Path) -> None:
    async def run() -> None:
        child = Child(tmp_path / "log")
        code = "import os, signal; print('helper', os.getpid(), flush=True); signal.pause()"
        await child.start((sys.executable, "-c", code), os.environ)
        await until(lambda: (tmp_path / "log").read_text().endswith("\n"), 60.0)
        os.kill(child.pid, signal.SIGKILL)
        assert await child.ends_within(60.0)
        await until(lambda: gone(helper_of(tmp_path / "log")))

    asyncio.run(run())


def test_a_parent_that_is_killed_leaves_nothing_even_of_a_stubborn_program(tmp_path: Path) -> None:
    code = PARENT.replace("    program =", "    child._GUARDIAN = (sys.executable, '-c', sys.argv[3])\n    program =")
    guardian = (ROOT / "backends" / "guardian.py").read_text().replace("ORPHAN_S = 10.0", "ORPHAN_S = 0.3")
    log = tmp_path / "log"
    command = [sys.executable, "-c", code, str(log), PROGRAM, guardian]

    async def run(parent: "subprocess.Popen[str]") -> None:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        await until(lambda: log.exists() and log.read_text().endswith("\n"), 60.0)
        parent.send_signal(signal.SIGKILL)
        await until(lambda: gone(pid) and gone(helper_of(log)))

    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True) as parent:
        asyncio.run(run(parent))


def test_a_program_that_is_not_there_says_so(tmp_path: Path) -> None:
    async def run() -> None:
        child = Child(tmp_path / "log")
        await child.start(("/nowhere/engine",), os.environ)
        assert await child.ends_within(60.0)
        assert child.code == 127
        assert child.tail() == "cannot start /nowhere/engine: No such file or directory\n"
        with pytest.raises(FileNotFoundError):
            await child.start(("true",), os.environ, tmp_path / "nowhere")

    asyncio.run(run())


def test_the_log_is_appended_to_until_it_is_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_module, "LOG_BYTES", 10)
    log = tmp_path / "log"

    async def run() -> None:
        child = Child(log)
        for word in ("one", "two", "three", "four"):
            await child.start((sys.executable, "-c", f"print({word!r})"), os.environ)
            assert await child.ends_within(60.0)
            assert child.tail() == f"{word}\n"  # of this run alone

    asyncio.run(run())
    assert (tmp_path / "log.1").read_text() == "one\ntwo\nthree\n"
    assert log.read_text() == "four\n"


def test_what_does_not_end_though_it_was_killed_counts_as_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_module, "_KILL_S", 0.2)

    async def run() -> None:
        child = await started(tmp_path / "log")
        helper = helper_of(tmp_path / "log")
        os.kill(child.pid, signal.SIGSTOP)  # as if it waited for a driver
        assert not await child.stop(grace_s=0.1)
        assert (child.running, gone(helper)) == (True, False)
        os.kill(child.pid, signal.SIGCONT)
        assert await child.ends_within(60.0)
        assert gone(helper)

    asyncio.run(run())


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_a_start_that_is_cancelled_leaves_nothing_that_is_nobodys(
    tmp_path: Path, loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    async def run() -> None:
        for ticks in range(6):
            child = Child(tmp_path / "log")
            start = asyncio.create_task(child.start((sys.executable, "-c", PROGRAM), os.environ))
            for _ in range(ticks):
                await asyncio.sleep(0)
            start.cancel()
            await asyncio.gather(start, return_exceptions=True)
            assert (child.running, start.cancelled()) == (ticks > 0, True)
            assert await child.kill()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(run())


@pytest.mark.parametrize("how", ["cut", "renamed", "removed"])
def test_last_words_whatever_becomes_of_the_log(tmp_path: Path, how: str) -> None:
    log = tmp_path / "log"
    log.write_text("of another run\n" * 100)

    async def run() -> None:
        child = Child(log)
        code = "import signal; print('ready', flush=True); signal.pause()"
        await child.start((sys.executable, "-c", code), os.environ)
        await until(lambda: log.read_text().endswith("ready\n"), 60.0)
        if how == "cut":
            os.truncate(log, 0)
            with log.open("a") as file:
                file.write("a bad kernel\n")
        elif how == "renamed":
            with log.replace(tmp_path / "log.1").open("a") as file:
                file.write("a bad kernel\n")
            log.write_text("of another program\n")
        elif how == "removed":
            log.unlink()
        words = {"cut": "a bad kernel\n", "renamed": "ready\na bad kernel\n", "removed": "ready\n"}
        assert child.tail() == words[how]
        assert await child.kill()

    asyncio.run(run())


FLOOD = """
import os, sys, time
words = b"".join(b"line %d of many\\n" % i for i in range(100))
end = time.monotonic() + 30.0
while not os.path.exists(sys.argv[1]) and time.monotonic() < end:
    os.write(1, words)
os.write(1, b"a bad kernel\\n")
"""


@pytest.mark.parametrize("named", [True, False], ids=["a log file", "no log file"])
def test_a_program_that_floods_its_log_fills_no_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: bool) -> None:
    monkeypatch.setattr(child_module, "LOG_BYTES", 100_000)
    monkeypatch.setattr(child_module, "LOOK_S", 0.01)
    log, stop = tmp_path / "log", tmp_path / "stop"

    async def run() -> None:
        child = Child(log if named else None)
        await child.start((sys.executable, "-c", FLOOD, str(stop)), os.environ)
        await until(lambda: child._cut != b"", 60.0)
        assert len(child.tail()) == child_module.TAIL_BYTES, "also just after it was cut"
        monkeypatch.setattr(child_module, "LOG_BYTES", 1 << 40)
        await until(lambda: not child._cutting)
        stop.touch()
        assert await child.ends_within(60.0)
        assert child.tail().endswith("of many\na bad kernel\n")
        assert await child.stop(0.0)
        child.forget()

    asyncio.run(run())
    kept = sorted(path.name for path in tmp_path.iterdir())
    assert kept == (["log", "log.1", "stop"] if named else ["stop"])
    if named:
        assert b"line 99 of many\n" in (tmp_path / "log.1").read_bytes()


def test_a_log_that_somebody_else_renames_is_theirs_to_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_module, "LOG_BYTES", 100)
    log = tmp_path / "log"
    log.write_text("x" * 50)

    async def run() -> None:
        child = Child(log)
        await child.start((sys.executable, "-c", "import signal; print('ready' * 99, flush=True); signal.pause()"), os.environ)
        await until(lambda: log.read_text().endswith("ready\n"), 60.0)
        log.replace(tmp_path / "log.1")
        assert child._tail is not None
        child._shorten(os.dup(child._tail.fileno()))
        assert (tmp_path / "log.1").read_text() == "x" * 50 + "ready" * 99 + "\n"
        assert await child.kill()
        child.forget()

    asyncio.run(run())


def test_a_log_whose_older_part_cannot_be_kept_is_cut_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_module, "LOG_BYTES", 100)
    monkeypatch.setattr(child_module, "LOOK_S", 0.01)
    log = tmp_path / "log"
    (tmp_path / "log.1").symlink_to("/dev/full")

    async def run() -> None:
        child = Child(log)
        await child.start((sys.executable, "-c", "import signal; print('ready' * 99, flush=True); signal.pause()"), os.environ)
        await until(lambda: child._cut != b"", 60.0)
        assert (log.read_bytes(), child.tail()) == (b"", "ready" * 99 + "\n")
        assert await child.kill()
        child.forget()

    asyncio.run(run())
    assert not (tmp_path / "log.1").exists()
