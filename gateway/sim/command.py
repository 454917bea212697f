"""`gateway simulate`: reads a scenario, runs it with a progress bar, prints a table, writes JSON and HTML if asked."""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from gateway.sim import html, present
from gateway.sim.capacity import Capacity, capacity
from gateway.sim.runner import Key, Result, keys, run_all, run_one, spread
from gateway.sim.scenario import Scenario, load
from gateway.sim.tables import TableError
from gateway.sim.traces import TraceError


def simulate(path: str, seeds: int | None, jobs: int, requests: int | None, json_path: str, html_path: str, quiet: bool) -> str:
    """Run a scenario file. Returns what is wrong, or nothing."""
    try:
        scenario = shortened(load(Path(path), data_folder()), seeds, requests)
        with _bar(quiet) as bar:
            results = _runs(scenario, jobs, bar)
            capacities = _capacities(scenario, jobs, bar)
    except (TableError, TraceError) as error:
        return str(error)
    console = Console()
    console.print(present.terminal_table(scenario, results, capacities, console.width))
    if json_path:
        Path(json_path).write_text(json.dumps(present.as_json(scenario, results, capacities), indent=1) + "\n")
    if html_path:
        rows = present.rows(results)
        Path(html_path).write_text(
            html.page(scenario.name, scenario.note, present.headings(), rows, present.plots(results)), encoding="utf-8"
        )
    return ""


def data_folder() -> Path | None:
    """The folder of large or restricted data, from the environment."""
    named = os.environ.get("LEEWAY_DATA")
    return Path(named) if named else None


def shortened(scenario: Scenario, seeds: int | None, requests: int | None) -> Scenario:
    """The scenario with fewer (or more) seeds and requests."""
    if seeds is not None:
        scenario = replace(scenario, seeds=tuple(range(max(seeds, 1))))
    if requests is not None:
        scenario = replace(scenario, workload=replace(scenario.workload, requests=max(requests, 1)))
    return scenario


def _bar(quiet: bool) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=Console(file=sys.stderr), transient=True, disable=quiet)


def _runs(scenario: Scenario, jobs: int, bar: Progress) -> list[Result]:
    wanted = keys(scenario)
    if jobs > 1:
        task = bar.add_task("runs", total=len(wanted))
        results = []
        for result in run_all(scenario, wanted, jobs):
            results.append(result)
            bar.update(task, completed=len(results), description=_name(result.key))
        return results
    task = bar.add_task("runs", total=len(wanted))
    done = []
    for number, key in enumerate(wanted):
        bar.update(task, description=_name(key))
        done.append(run_one(scenario, key, partial(_advance, bar, task, number)))
    return done


def _advance(bar: Progress, task: TaskID, done: int, share: float) -> None:
    bar.update(task, completed=done + share)


def _name(key: Key) -> str:
    return f"{key.label} at {key.rate_per_s:g}/s, seed {key.seed}"


def _search(job: tuple[Scenario, str, int]) -> Capacity:
    return capacity(*job)


def _capacities(scenario: Scenario, jobs: int, bar: Progress) -> Sequence[Capacity]:
    if scenario.capacity is None:
        return ()
    wanted = [(scenario, policy.label, seed) for policy in scenario.policies for seed in scenario.seeds]
    task = bar.add_task("capacity", total=len(wanted))
    found = []
    for one in spread(_search, wanted, jobs):
        found.append(one)
        bar.update(task, completed=len(found), description=f"capacity of {one.label}")
    return found
