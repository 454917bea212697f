"""What is written down of requests that are over: later, but before anybody looks."""

import json
import os
from collections.abc import Callable
from pathlib import Path

from gateway.accounts import Account
from gateway.books import Books
from gateway.config import GatewayConfig, Log
from gateway.logs import LineWriter, Logs


def ended(name: str) -> Account:
    account = Account(1.0)
    account.request_id, account.model, account.backend, account.owner = name, "m", "a", "one"
    account.status, account.end, account.finished_s = 200, "complete", 2.0
    return account


def requests_counted(books: Books) -> dict[str, float]:
    (family,) = [family for family in books.families() if family.name == "leeway_requests"]
    return {sample.labels["backend"]: sample.value for sample in family.samples if sample.name == "leeway_requests_total"}


def test_many_are_written_at_one_time_and_whoever_looks_sees_all(tmp_path: Path) -> None:
    timers: list[Callable[[], None]] = []
    path = tmp_path / "log"
    fd = os.open(path, os.O_CREAT | os.O_WRONLY)
    writer = LineWriter(fd, 100)
    books = Books(GatewayConfig(), Logs(Log(), writer), lambda _, write: timers.append(write))
    for name in ("r1", "r2", "r3"):
        books.over(ended(name))
    assert len(timers) == 1
    assert books.find("r3", "one") is not None, "not written yet, but asked for"
    assert requests_counted(books) == {"a": 3.0}
    books.over(ended("r4"))
    books.forget("a")
    timers[0]()
    books.over(ended("r5"))
    timers[-1]()
    assert requests_counted(books) == {"removed": 4.0, "a": 1.0}
    writer.close()
    os.close(fd)
    assert [json.loads(line)["id"] for line in path.read_text().splitlines()] == ["r1", "r2", "r3", "r4", "r5"], "each once"
