"""`gateway plan`: models that share devices, the plan for them with its reasons, and the last swaps, as tables. Shell."""

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlencode

from gateway.backend_table import fetch

LAST = 10  # swaps that are shown

Row = tuple[str, ...]


def as_json(control: str, admin_key: str) -> str:
    """All that is shown, as the admin API tells it. Raises NotReachableError."""
    return json.dumps({**fetch(control, admin_key, "/admin/plan"), **fetch(control, admin_key, "/admin/models")}, indent=2)


def answer(control: str, admin_key: str, model: str, fraction: float, prompt_tokens: int, as_json: bool) -> str:
    """What is known of one model, in lines or as JSON. Raises NotReachableError."""
    asked = urlencode({"fraction": fraction, "prompt_tokens": prompt_tokens})
    found = fetch(control, admin_key, f"/admin/plan/{quote(model, safe='')}?{asked}")
    return json.dumps(found, indent=2) + "\n" if as_json else "".join(f"{line}\n" for line in answered(found))


def answered(found: dict[str, Any]) -> Iterator[str]:
    """The lines of an answer of GET /admin/plan/{model}."""
    decode, ttft_s = found["decode_tokens_per_s"], found["ttft_s"]
    prompt = f" with a prompt of {found['prompt_tokens']} tokens" if found["prompt_tokens"] else ""
    yield f"{found['model']}, {found['fraction']:.0%} of its layers on the device{prompt}:"
    yield f"  decodes {decode:.3g} tokens per second" if decode is not None else "  decodes at a rate that is not configured"
    yield f"  first token after {ttft_s:.3g} s" if ttft_s is not None else "  first token: rates of prompts are not configured"
    for place in found["devices"]:
        fits = "fits now" if place["fits"] else "fits once others leave" if place["could_fit"] else "does not fit"
        most = f"; most that fits now: {place['largest_fraction']:.0%}" if not place["fits"] else ""
        yield f"  {place['device']}: needs {place['needs_gb']:.3g} GB of {place['free_gb']:.3g} free: {fits}{most}"
        cost = place["preempt"]
        if cost is not None:
            drain_s = cost["drain_s"]
            wait = "stay inside" if cost["keeps"] else "end first" + ("" if drain_s is None else f", in {drain_s:.3g} s")
            yield f"  {place['device']}: off and back again takes {_interval(cost)}; its {cost['running']} requests {wait}"


def show(control: str, admin_key: str) -> None:
    """Print the tables. Raises NotReachableError."""
    plan, models = fetch(control, admin_key, "/admin/plan"), fetch(control, admin_key, "/admin/models")
    from rich.console import Console
    from rich.table import Table

    console = Console(markup=False)  # reasons may hold brackets
    for title, head, rows in tables(plan, models["models"]):
        table = Table(*head, title=title, title_justify="left")
        for row in rows:
            table.add_row(*row)
        console.print(table)
    console.print(verdict(plan))


def tables(plan: dict[str, Any], models: list[dict[str, Any]]) -> Iterator[tuple[str, Row, list[Row]]]:
    """(title, head, rows) of each table that has something to tell, from what the admin API says."""
    yield "devices", ("device", "memory", "free", "who lies there"), [_device(device) for device in plan["devices"]]
    head = ("model", "GB", "where", "waiting", "per s", "expected in", "comes in", "leaves in", "seen")
    yield "models", head, [_model(model, lodger) for model in models for lodger in model["lodgers"]]
    actions = plan["plan"]["actions"]
    if actions:
        yield "plan", ("in", "what", "model", "device", "takes", "why"), [_action(action) for action in actions]
    history = plan["history"][:LAST]
    if history:
        head = ("ago", "model", "device", "made leave", "outcome", "waited", "took", "predicted", "why")
        yield "last swaps", head, [_moved(moved) for moved in history]


def verdict(plan: dict[str, Any]) -> str:
    """The plan in a sentence."""
    found = plan["plan"]
    dry = " Nothing moves but by hand (swaps.mode)." if plan["mode"] == "dry" else ""
    if not found["steps"]:
        return f"Nothing is to be moved.{dry}"
    return (
        f"Expected cost {found['cost_s']:.1f} s of lateness, {found['idle_cost_s']:.1f} s if nothing were moved"
        f" (planned {plan['age_s']:.1f} s ago).{dry}"
    )


def _device(device: dict[str, Any]) -> Row:
    there = ", ".join(
        f"{one['model']} ({one['memory_gb']:.3g} GB{_part(one['fraction'])}{_phase(one['phase'])})"
        for one in device["residents"]
    )
    return device["name"], f"{device['memory_gb']:.3g} GB", f"{device['free_gb']:.3g} GB", there or "nobody"


def _phase(phase: str) -> str:
    return "" if phase == "in" else ", half way" if phase == "out" else f", {phase}"


def _part(fraction: float) -> str:
    return "" if fraction >= 1 else f", {fraction:.0%} of its layers"


def _model(model: dict[str, Any], lodger: dict[str, Any]) -> Row:
    where = lodger["device"] if lodger["phase"] == "in" else f"{lodger['phase']} ({lodger['place']}), {lodger['device']}"
    if model["pinned"]:
        where += ", pinned"
    if lodger["barred_s"]:
        where += f", barred for {lodger['barred_s']:.0f} s: {lodger['why_barred']}"
    into, out = lodger["into"], lodger["out"]
    expected_s = model["expected_start_s"]
    return (
        model["model"],
        f"{model['footprint']['whole_gb']:.3g}",
        where,
        str(model["waiting"]),
        f"{model['rate_per_s']:.3g}",
        "" if not expected_s else f"{expected_s:.1f} s",
        _interval(into),
        _interval(out),
        "" if into is None else str(into["seen"]),
    )


def _interval(cost: dict[str, Any] | None) -> str:
    return "never" if cost is None else f"{cost['mean_s']:.3g} s ({cost['low_s']:.3g} to {cost['high_s']:.3g})"


def _action(action: dict[str, Any]) -> Row:
    at = "later" if action["at_s"] is None else f"{action['at_s']:.1f} s"
    what = action["kind"] + ("" if action["fraction"] >= 1 else f" {action['fraction']:.0%}")
    return at, what, action["model"], action["device"], f"{action['seconds']:.1f} s", action["reason"]


def _moved(moved: dict[str, Any]) -> Row:
    why = moved["why"] if not moved["reason"] else f"{moved['why']}; {moved['reason']}"
    return (
        f"{moved['ago_s']:.0f} s",
        moved["model"],
        moved["device"],
        ", ".join(moved["leaves"]),
        moved["outcome"],
        f"{moved['drained_s']:.1f} s",
        f"{moved['took_s']:.1f} s",
        f"{moved['predicted_s']:.1f} s",
        why,
    )
