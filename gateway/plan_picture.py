"""Who lay on which device when, and what is planned, as SVG: a row for each model of a device, from the last swaps on. Pure.

Drawn from what the admin API tells (`GET /admin/plan`), by `gateway plan --svg`. Times are seconds from now. It must never
guess: who lay there before the first swap that is remembered is drawn only as far as later swaps show it.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Literal

from gateway.sim.html import COLOURS, opening

WIDTH, ROW, LEFT, RIGHT, TOP, BOTTOM = 860, 22, 200, 12, 30, 30
STEPS_S = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 43200, 86400)
TICKS = 10
FORTH = 0.05  # of what is shown lies ahead, at least

Kind = Literal["there", "moving", "failed", "planned"]
Place = tuple[str, str]  # device, model


@dataclass(frozen=True, slots=True)
class Bar:
    """A stretch of one model on one device."""

    place: Place
    begin_s: float
    end_s: float
    kind: Kind
    told: str


def bars(plan: Mapping[str, Any]) -> list[Bar]:
    """What is to be drawn of a situation, oldest first; what is planned reaches as far as the picture."""
    begin_s, end_s = span(plan)
    found: list[Bar] = []
    since: dict[Place, float] = {}
    for moved in reversed(plan["history"]):
        found += _moved(moved, since, begin_s)
    for device in plan["devices"]:
        for resident in device["residents"]:
            place = (device["name"], resident["model"])
            if resident["phase"] in ("in", "leaving"):
                found.append(Bar(place, since.get(place, begin_s), 0.0, "there", _part(resident["fraction"])))
    for step in plan["plan"]["steps"]:
        if step["model"]:
            place, until_s = (step["device"], step["model"]), step["until_s"]
            found.append(Bar(place, step["cut_s"], step["ready_s"], "moving", "is to come"))
            found.append(Bar(place, step["ready_s"], end_s if until_s is None else until_s, "planned", "is to be there"))
    return found


def span(plan: Mapping[str, Any]) -> tuple[float, float]:
    """The first and the last second of the picture."""
    begin_s = -max((moved["ago_s"] for moved in plan["history"]), default=60.0)
    last_s = max((step["until_s"] or step["ready_s"] for step in plan["plan"]["steps"]), default=0.0)
    return begin_s, max(last_s * 1.2, -begin_s * FORTH)


def _moved(moved: Mapping[str, Any], since: dict[Place, float], begin_s: float) -> Iterator[Bar]:
    """What one swap ended and began."""
    device, cut_s = moved["device"], -moved["ago_s"]
    left_s = cut_s + moved["drained_s"]
    come_s = min(left_s + moved["took_s"], 0.0)
    done = moved["outcome"] == "done"
    for model in moved["leaves"] if done else ():
        yield Bar((device, model), since.pop((device, model), begin_s), left_s, "there", "")
    if moved["model"]:
        place = (device, moved["model"])
        yield Bar(place, cut_s, come_s, "moving" if done else "failed", f"{moved['outcome']} {moved['reason'] or moved['why']}")
        if done:
            since[place] = come_s


def picture(plan: Mapping[str, Any]) -> str:
    """The whole SVG."""
    drawn = bars(plan)
    places = sorted({bar.place for bar in drawn})
    models = sorted({model for _, model in places})
    colours = {model: COLOURS[i % len(COLOURS)] for i, model in enumerate(models)}
    height = TOP + ROW * len(places) + BOTTOM
    begin_s, end_s = span(plan)
    scale = (WIDTH - LEFT - RIGHT) / (end_s - begin_s)
    parts = [
        opening(WIDTH, height),
        f'<text x="{LEFT}" y="16" font-weight="bold">Who lay where, and what is planned (seconds from now)</text>',
    ]
    for row, (device, model) in enumerate(places):
        y = TOP + row * ROW
        parts.append(f'<text x="{LEFT - 6}" y="{y + 14}" text-anchor="end">{escape(device)}: {escape(_short(model))}</text>')
        parts += [_rect(bar, y, colours[model], begin_s, scale) for bar in drawn if bar.place == (device, model)]
    parts += _axis(begin_s, end_s, scale, height)
    return "".join(parts) + "</svg>\n"


def _rect(bar: Bar, y: float, colour: str, begin_s: float, scale: float) -> str:
    x, width = LEFT + (bar.begin_s - begin_s) * scale, max((bar.end_s - bar.begin_s) * scale, 0.5)
    fill, opacity = {"moving": ("#bbb", 1.0), "failed": ("#000", 0.6), "planned": (colour, 0.35)}.get(bar.kind, (colour, 1.0))
    told = f"{bar.place[1]} {bar.begin_s:.0f} to {bar.end_s:.0f} s {bar.told}".strip()
    return (
        f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{ROW - 5}" fill="{fill}" opacity="{opacity}">'
        f"<title>{escape(told)}</title></rect>"
    )


def _axis(begin_s: float, end_s: float, scale: float, height: int) -> Sequence[str]:
    step_s = next((step for step in STEPS_S if (end_s - begin_s) / step <= TICKS), STEPS_S[-1])
    at_s, parts = math.ceil(begin_s / step_s) * step_s, []
    while at_s <= end_s:
        x = LEFT + (at_s - begin_s) * scale
        parts.append(f'<text x="{x:.1f}" y="{height - 8}" text-anchor="middle">{at_s:.0f}</text>')
        at_s += step_s
    x = LEFT - begin_s * scale
    return [*parts, f'<path d="M{x:.1f} {TOP - 4}V{height - BOTTOM}" stroke="#222" stroke-dasharray="3 2"/>']


def _part(fraction: float) -> str:
    return "" if fraction >= 1 else f"({fraction:.0%} of its layers)"


def _short(model: str) -> str:
    return model if len(model) <= 24 else f"...{model[-21:]}"
