"""Runs cases inside the engine's environment: each asserts; the last line is the JSON list of those that held."""

import json
import sys
import traceback
from collections.abc import Callable, Sequence


def run_cases(cases: Sequence[Callable[[], None]], only: Sequence[str] = ()) -> None:
    """Run them (or those named), each whatever becomes of the others."""
    held = []
    for case in cases:
        if only and case.__name__ not in only:
            continue
        try:
            case()
        except AssertionError:
            print(f"--- {case.__name__}", file=sys.stderr)
            traceback.print_exc()
        else:
            held.append(case.__name__)
    print(json.dumps(held))
