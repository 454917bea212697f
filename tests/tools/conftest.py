"""Fixtures of the tests with other programs."""

import signal
from collections.abc import Generator
from pathlib import Path

import pytest

TAIL_CHARS = 2000


def pytest_configure() -> None:
    """A run that is told to end (a time limit, a cancelled job) must still stop its programs: treat it as ctrl-C."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the end of every program's output beside a failure."""
    report = yield
    folder = getattr(item, "funcargs", {}).get("tmp_path")
    if report.failed and isinstance(folder, Path):
        for path in sorted(folder.glob("**/*.log")):
            report.sections.append((f"end of {path.name}", path.read_text(errors="replace")[-TAIL_CHARS:]))
    return report
