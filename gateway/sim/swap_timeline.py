"""Who lay on which device when, as SVG: a row for each device, grey while a swap is under way. Pure."""

from collections.abc import Sequence
from html import escape

from gateway.sim.html import COLOURS, opening

WIDTH, ROW, LEFT, TOP = 860, 26, 60, 28
Span = tuple[float, float, str, str]  # swap began, model there, device, model


def timeline_svg(spans: Sequence[Span], until_s: float, title: str) -> str:
    """The picture of the first `until_s` seconds. A model is drawn until the next one comes to its device."""
    devices = sorted({span[2] for span in spans})
    colours = {model: COLOURS[i % len(COLOURS)] for i, model in enumerate(sorted({span[3] for span in spans}))}
    height = TOP + ROW * len(devices) + 40
    parts = [
        opening(WIDTH, height),
        f'<text x="{LEFT}" y="16" font-weight="bold">{escape(title)}</text>',
    ]
    for row, device in enumerate(devices):
        y = TOP + row * ROW
        parts.append(f'<text x="{LEFT - 6}" y="{y + 15}" text-anchor="end">{escape(device)}</text>')
        mine = [span for span in spans if span[2] == device and span[0] < until_s]
        ends = [span[0] for span in mine[1:]] + [until_s]
        for (begin_s, there_s, _, model), end_s in zip(mine, ends, strict=True):
            parts.append(_bar(begin_s, min(there_s, until_s), y, "#bbb", "swap", until_s))
            parts.append(_bar(there_s, min(end_s, until_s), y, colours[model], model, until_s))
    for i, (model, colour) in enumerate(colours.items()):
        x = LEFT + i * 80
        parts.append(f'<rect x="{x}" y="{height - 34}" width="10" height="10" fill="{colour}"/>')
        parts.append(f'<text x="{x + 14}" y="{height - 25}">{escape(model)}</text>')
    ticks = range(0, int(until_s) + 1, 60)
    parts.extend(f'<text x="{_x(t, until_s):.0f}" y="{height - 4}" text-anchor="middle">{t} s</text>' for t in ticks)
    return "".join(parts) + "</svg>"


def _x(at_s: float, until_s: float) -> float:
    return LEFT + at_s / until_s * (WIDTH - LEFT - 12)


def _bar(begin_s: float, end_s: float, y: float, colour: str, title: str, until_s: float) -> str:
    if end_s <= begin_s:
        return ""
    x = _x(begin_s, until_s)
    width = _x(end_s, until_s) - x
    return (
        f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{ROW - 6}" fill="{colour}">'
        f"<title>{escape(title)} {begin_s:.0f}-{end_s:.0f} s</title></rect>"
    )
