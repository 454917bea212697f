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
