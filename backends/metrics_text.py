"""A few values out of Prometheus text, without parsing the rest: 50 KB of it come for five numbers. Pure."""

import math
import re
from functools import cache

TEXT_MAX = 4_194_304


@cache
def _line(name: str) -> re.Pattern[bytes]:
    return re.compile(rb"^" + re.escape(name.encode()) + rb"(\{[^\n]{0,8192}\})? +([^ \n]{1,64})", re.MULTILINE)


def samples(text: bytes, name: str) -> list[float]:
    """The finite values of all samples of that name."""
    out = []
    for found in _line(name).finditer(text[:TEXT_MAX]):
        try:
            value = float(found[2])
        except ValueError:
            continue
        if math.isfinite(value):
            out.append(value)
    return out


def labels_of(text: bytes, name: str, label: str) -> str:
    """The value of a label of the first sample of that name; "" without."""
    found = _line(name).search(text[:TEXT_MAX])
    if found is None or found[1] is None:
        return ""
    value = re.search(rb"[{,]\s*" + re.escape(label.encode()) + rb'="([^"\\\n]{0,256})"', found[1])
    return value[1].decode(errors="replace") if value else ""


def histogram(text: bytes, name: str) -> tuple[tuple[float, float], ...]:
    """(upper bound, count up to it) of a histogram, ascending, its series added up; empty where it is not there."""
    counts: dict[float, float] = {}
    for found in _line(f"{name}_bucket").finditer(text[:TEXT_MAX]):
        bound = re.search(rb'[{,]\s*le="([^"\\\n]{0,64})"', found[1] or b"")
        try:
            upper, count = float(bound[1]) if bound else math.nan, float(found[2])
        except ValueError:
            continue
        if not math.isnan(upper) and math.isfinite(count):
            counts[upper] = counts.get(upper, 0.0) + count
    return tuple(sorted(counts.items()))
