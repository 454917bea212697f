"""What one access line costs: rendered by structlog's chain, and directly as logs.py does. Thread CPU time, one JSON line."""

import json
import os
import sys
import time
from collections.abc import Callable

import orjson
import structlog

from gateway.access_line import access_fields
from gateway.accounts import Account
from gateway.config import Log
from gateway.logs import LineWriter, Logs

LINES = 50_000
ROUNDS = 7


def _account() -> Account:
    account = Account(1.0)
    account.request_id, account.route, account.model, account.backend = "0123456789ab-1f", "chat", "m", "a"
    account.status, account.end, account.attempts, account.finished_s = 200, "complete", 1, 1.25
    return account


def _fields(account: Account) -> dict[str, object]:
    """The same fields as logs.py writes, but for those that the chain adds."""
    fields = access_fields(account, "")
    del fields["time"], fields["level"], fields["event"]
    return fields


def _us_per_line(write: Callable[[], object]) -> float:
    begun = time.thread_time()
    for _ in range(LINES):
        write()
    return (time.thread_time() - begun) / LINES * 1e6


def main() -> None:
    """Print the medians."""
    writer = LineWriter(os.open(os.devnull, os.O_WRONLY), LINES * 2)
    logs, account = Logs(Log(), writer), _account()
    chain = structlog.wrap_logger(
        writer,
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(serializer=orjson.dumps),
        ],
        wrapper_class=structlog.BoundLogger,
    ).bind()
    direct, by_chain = [], []
    for _ in range(ROUNDS):
        direct.append(_us_per_line(lambda: logs.access(account)))
        by_chain.append(_us_per_line(lambda: chain.info("request", **_fields(account))))
    writer.close()
    middle = ROUNDS // 2
    figures = {"direct_us": sorted(direct)[middle], "structlog_us": sorted(by_chain)[middle]}
    figures["ratio"] = figures["structlog_us"] / figures["direct_us"]
    json.dump({name: round(value, 2) for name, value in figures.items()}, sys.stdout)
    print()


if __name__ == "__main__":
    main()
