"""What the rounds of the overhead bench amount to: medians, ratios, the table and the JSON line.

Pure: takes `Round` records, returns numbers and text; never measures, prints or reads a file.
A figure is a ratio of medians over the rounds (Leeway / rival), so lower is better and a machine that others
use too moves both sides alike.  What was not measured is None, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

OURS = "leeway"
OURS_DEFAULT = "leeway-default"
DIRECT = "direct"
RUST_ROUTERS = ("vllm-router", "sglang-router", "smg")

Medians = Mapping[str, Mapping[str, float | None]]
"""metric name -> peer name -> median over that peer's rounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One round of one peer.

    `*_us` of CPU (`unary`, `body16k`, `body220k`, `event`, `event_user`) are microseconds of the gateway's whole
    process tree per request or per streamed event; `latency_us`, `first_event_us` and `relay_us` are wall-clock
    medians as the client saw them, the direct path's share included.  `direct` has no gateway, so only these three.
    Memory is the proportional set size in MiB.  `errors` counts failed requests and lost or doubled events.
    """

    latency_us: float
    first_event_us: float
    relay_us: float
    errors: int
    unary_us: float | None = None
    body16k_us: float | None = None
    body220k_us: float | None = None
    event_us: float | None = None
    event_user_us: float | None = None
    streams: int | None = None
    utilisation: float | None = None
    mem_idle_mib: float | None = None
    mem1000_mib: float | None = None
    start_s: float | None = None


MEASURED = (
    "unary_us",
    "body16k_us",
    "body220k_us",
    "event_us",
    "event_user_us",
    "streams",
    "utilisation",
    "latency_us",
    "first_event_us",
    "relay_us",
    "mem_idle_mib",
    "mem1000_mib",
    "start_s",
)
"""Fields of `Round` of which medians are taken."""


def median_of(rounds: Sequence[Round], metric: str) -> float | None:
    """The median of one metric over the rounds that have it; None if none has."""
    values = [value for value in (getattr(one, metric) for one in rounds) if value is not None]
    return median(values) if values else None


def medians(results: Mapping[str, Sequence[Round]]) -> Medians:
    """All medians of all peers."""
    return {metric: {peer: median_of(rounds, metric) for peer, rounds in results.items()} for metric in MEASURED}


def added(table: Medians, metric: str, peer: str) -> float | None:
    """What the gateway adds to a wall-clock median: the peer's minus that of `direct`."""
    return minus(table[metric].get(peer), table[metric].get(DIRECT))


def minus(left: float | None, right: float | None) -> float | None:
    """left - right, None if either is unknown."""
    return None if left is None or right is None else left - right


def ratio(ours: float | None, theirs: float | None) -> float | None:
    """ours / theirs, None if either is unknown or the rival's figure is no measure (zero or below)."""
    return None if ours is None or theirs is None or theirs <= 0 else ours / theirs


def rust_median(events: Mapping[str, float | None]) -> float | None:
    """The median CPU per event of those Rust routers that were measured."""
    measured = [value for value in map(events.get, RUST_ROUTERS) if value is not None]
    return median(measured) if measured else None


def figures(table: Medians) -> dict[str, float | None]:
    """The bench's figures; all but `start_s` (seconds) are ratios, lower is better."""

    def against(metric: str, rival: str) -> float | None:
        return ratio(table[metric].get(OURS), table[metric].get(rival))

    return {
        "unary_vs_vllm_router": against("unary_us", "vllm-router"),
        "body220k_vs_vllm_router": against("body220k_us", "vllm-router"),
        "event_vs_rust_median": ratio(table["event_us"].get(OURS), rust_median(table["event_us"])),
        "event_vs_nginx": against("event_us", "nginx"),
        "mem1000_vs_smg": against("mem1000_mib", "smg"),
        "first_event_vs_vllm_router": ratio(
            added(table, "first_event_us", OURS), added(table, "first_event_us", "vllm-router")
        ),
        "start_s": table["start_s"].get(OURS),
        "default_vs_vllm_router": ratio(table["unary_us"].get(OURS_DEFAULT), table["unary_us"].get("vllm-router")),
    }


def summary(
    results: Mapping[str, Sequence[Round]],
    failures: Mapping[str, str],
    reference_loop_ms: float,
    settings: Mapping[str, object],
) -> dict[str, object]:
    """The JSON line: figures, raw medians per peer, what failed, and the settings that differ from run to run."""
    table = medians(results)
    measured = {
        "start_by_peer_s" if metric == "start_s" else metric: known(rounded_map(per_peer)) for metric, per_peer in table.items()
    }
    return {
        "bench": "overhead",
        **rounded_map(figures(table)),
        **measured,
        "first_event_added_us": known(
            rounded_map({peer: added(table, "first_event_us", peer) for peer in results if peer != DIRECT})
        ),
        "rust_routers": [peer for peer in RUST_ROUTERS if table["event_us"].get(peer) is not None],
        "rounds": {peer: len(rounds) for peer, rounds in results.items()},
        "errors": error_counts(results),
        "failed": dict(failures),
        "reference_loop_ms": round(reference_loop_ms, 3),
        **settings,
    }


def rounded_map(values: Mapping[str, float | None]) -> dict[str, float | None]:
    """Four decimals: enough for seconds and ratios, and a line that can be read."""
    return {key: None if value is None else round(value, 4) for key, value in values.items()}


def known(values: Mapping[str, float | None]) -> dict[str, float]:
    """The peers of which there is a number."""
    return {key: value for key, value in values.items() if value is not None}


def bad_answers(done: int, errors: int, events: int, events_each: int) -> int:
    """Failed requests, or else events that are missing or doubled.

    A stream of events_each > 0 owes its events and [DONE]. Where requests failed, what their streams still
    delivered is unknown, so that events are not counted on top.
    """
    return errors or (abs(events - done * (events_each + 1)) if events_each else 0)


def error_counts(results: Mapping[str, Sequence[Round]]) -> dict[str, int]:
    """Errors of each peer, over all its rounds."""
    return {peer: sum(one.errors for one in rounds) for peer, rounds in results.items()}


def exit_code(wanted: Sequence[str], results: Mapping[str, Sequence[Round]], failures: Mapping[str, str]) -> int:
    """1 if our gateway was asked for and was not measured, failed a round or answered wrongly; rivals may fail."""
    if OURS not in wanted:
        return 0
    sound = bool(results.get(OURS)) and OURS not in failures and not error_counts(results)[OURS]
    return 0 if sound else 1


COLUMNS = (
    ("µs/request 0.6 KB", "unary_us", 1),
    ("µs 16 KB", "body16k_us", 1),
    ("µs 220 KB", "body220k_us", 1),
    ("µs/event paced", "event_us", 2),
    ("of it user", "event_user_us", 2),
    ("streams", "streams", 0),
    ("core busy", "utilisation", 2),
    ("+latency p50 µs", "latency_us", 0),
    ("+first event p50 µs", "first_event_us", 0),
    ("+relay p50 µs", "relay_us", 0),
    ("MiB idle", "mem_idle_mib", 1),
    ("MiB 1,000 streams", "mem1000_mib", 1),
    ("start s", "start_s", 3),
)
"""Heading, metric and decimals of each column; those headed "+" are differences to `direct`."""


def markdown(results: Mapping[str, Sequence[Round]], failures: Mapping[str, str]) -> str:
    """The table of medians, one row per peer; `direct` shows its own wall-clock medians in brackets."""
    table, errors = medians(results), error_counts(results)
    lines = [
        "| gateway | " + " | ".join(heading for heading, _, _ in COLUMNS) + " | rounds | errors |",
        "|---" * (len(COLUMNS) + 3) + "|",
    ]
    for peer, rounds in results.items():
        if rounds:
            cells = [cell(table, peer, *column) for column in COLUMNS]
            lines.append("| " + " | ".join([peer, *cells, str(len(rounds)), str(errors[peer])]) + " |")
    lines += [f"\n{peer} failed: {reason}" for peer, reason in failures.items()]
    return "\n".join(lines)


def cell(table: Medians, peer: str, heading: str, metric: str, decimals: int) -> str:
    """One number of the table as text; empty where there is none."""
    as_difference = heading.startswith("+") and peer != DIRECT
    value = added(table, metric, peer) if as_difference else table[metric].get(peer)
    if value is None:
        return ""
    text = f"{value:,.{decimals}f}"
    return f"({text})" if peer == DIRECT else text
