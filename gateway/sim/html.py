"""Plots as SVG inside one HTML file that needs nothing else: no script, no font, no network. Pure."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 560, 320
LEFT, RIGHT, TOP, BOTTOM = 60, 12, 28, 40
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf", "#8c564b", "#e377c2", "#7f7f7f", "#bcbd22")
STYLE = (
    "body{font:14px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:75rem;padding:0 1rem;color:#222}"
    "table{border-collapse:collapse;font-variant-numeric:tabular-nums}"
    "td,th{padding:.2rem .6rem;border-bottom:1px solid #ddd;text-align:right;white-space:nowrap}"
    "td:first-child,th:first-child{text-align:left}"
    "figure{display:inline-block;margin:1rem 1rem 0 0}svg text{font:11px system-ui,sans-serif}"
)


@dataclass(frozen=True, slots=True)
class Line:
    """One series: points of x, y and the bounds of y."""

    label: str
    points: tuple[tuple[float, float, float, float], ...]


@dataclass(frozen=True, slots=True)
class Plot:
    """Lines over a common x; where every line has one point, bars instead."""

    title: str
    x_title: str
    lines: tuple[Line, ...]


def exact(label: str, points: Iterable[tuple[float, float]]) -> Line:
    """A series whose values have no bounds but themselves."""
    return Line(label, tuple((x, y, y, y) for x, y in points))


def opening(width: int, height: int) -> str:
    """The begin of a picture that brings its own font: it stands on no page of ours."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img" '
        f'font-family="system-ui,sans-serif" font-size="11">'
    )


def page(title: str, note: str, headings: Sequence[str], rows: Sequence[Sequence[str]], plots: Sequence[Plot]) -> str:
    """A whole HTML document."""
    head = "".join(f"<th>{escape(cell)}</th>" for cell in headings)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    figures = "".join(f"<figure>{svg(plot)}</figure>" for plot in plots if plot.lines)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title><style>{STYLE}</style>'
        f"<h1>{escape(title)}</h1><p>{escape(note)}</p><p>Simulation: differences are predictions, levels are not. "
        f"± is half of the two-sided 80 % interval over seeds.</p>"
        f"<table><tr>{head}</tr>{body}</table>{figures}</html>\n"
    )


def svg(plot: Plot) -> str:
    """One plot."""
    bars = all(len(line.points) == 1 for line in plot.lines)
    top = max(point[3] for line in plot.lines for point in line.points if math.isfinite(point[3]))
    ticks = nice_ticks(top)
    scale = _Scale(plot.lines, ticks[-1])
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" role="img">']
    parts.append(f'<text x="{LEFT}" y="16" font-weight="bold">{escape(plot.title)}</text>')
    for tick in ticks:
        y = scale.y(tick)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>')
    if bars:
        parts.extend(_bars(plot, scale))
    else:
        parts.append(f'<text x="{WIDTH / 2}" y="{HEIGHT - 6}" text-anchor="middle">{escape(plot.x_title)}</text>')
        for i, line in enumerate(plot.lines):
            parts.extend(_line(line, scale, COLOURS[i % len(COLOURS)], i))
        parts.extend(_x_ticks(plot, scale))
    return "".join(parts) + "</svg>"


def nice_ticks(top: float) -> list[float]:
    """From 0 to at least `top` in four to eight steps of 1, 2 or 5 times a power of ten."""
    if not top > 0:
        return [0.0, 1.0]
    power = 10.0 ** math.floor(math.log10(top / 4))
    step = next(factor * power for factor in (1, 2, 5, 10) if top / (factor * power) <= 8)
    return [i * step for i in range(math.ceil(top / step - 1e-9) + 1)]


class _Scale:
    """From data to pixels."""

    def __init__(self, lines: Sequence[Line], top: float) -> None:
        xs = [point[0] for line in lines for point in line.points]
        self._low, self._span = min(xs), (max(xs) - min(xs)) or 1.0
        self._top = top

    def x(self, value: float) -> float:
        return LEFT + 10 + (value - self._low) / self._span * (WIDTH - LEFT - RIGHT - 20)

    def y(self, value: float) -> float:
        shown = min(value, self._top) if math.isfinite(value) else self._top
        return TOP + (1 - shown / self._top) * (HEIGHT - TOP - BOTTOM)


def _line(line: Line, scale: _Scale, colour: str, index: int) -> list[str]:
    path = " ".join(f"{scale.x(x):.1f},{scale.y(y):.1f}" for x, y, _, _ in line.points)
    parts = [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.6"/>']
    for x, y, low, high in line.points:
        at = scale.x(x)
        parts.append(f'<path d="M{at:.1f} {scale.y(max(low, 0)):.1f}V{scale.y(high):.1f}" stroke="{colour}" opacity=".45"/>')
        parts.append(f'<circle cx="{at:.1f}" cy="{scale.y(y):.1f}" r="2.5" fill="{colour}"/>')
    y_text = TOP + 12 + 14 * index
    parts.append(f'<path d="M{LEFT + 8} {y_text - 4}h14" stroke="{colour}" stroke-width="2"/>')
    parts.append(f'<text x="{LEFT + 26}" y="{y_text}">{escape(line.label)}</text>')
    return parts


def _x_ticks(plot: Plot, scale: _Scale) -> list[str]:
    values = sorted({point[0] for line in plot.lines for point in line.points})
    step = -(-len(values) // 10)
    return [
        f'<text x="{scale.x(value):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{value:g}</text>'
        for value in values[::step]
    ]


def _bars(plot: Plot, scale: _Scale) -> list[str]:
    width = (WIDTH - LEFT - RIGHT) / len(plot.lines)
    parts = []
    for i, line in enumerate(plot.lines):
        _, y, low, high = line.points[0]
        x, colour = LEFT + i * width, COLOURS[i % len(COLOURS)]
        base = scale.y(0)
        parts.append(
            f'<rect x="{x + width * 0.15:.1f}" y="{scale.y(y):.1f}" width="{width * 0.7:.1f}" '
            f'height="{base - scale.y(y):.1f}" fill="{colour}"/>'
        )
        parts.append(f'<path d="M{x + width / 2:.1f} {scale.y(max(low, 0)):.1f}V{scale.y(high):.1f}" stroke="#222"/>')
        parts.append(f'<text x="{x + width / 2:.1f}" y="{base + 14:.1f}" text-anchor="middle">{escape(line.label)}</text>')
    return parts
