"""How a latest start is said to an engine that orders its queue by a number of the client's. Pure.

All budgets shrink at the same speed, so least remaining budget first is earliest latest start first, and a number that
never changes says it: unix milliseconds of the latest start, with 2^50 more in tier 2, so that what cannot be in time any
more does not run before what can. vLLM runs the smallest number first and takes its victim from the largest. SGLang runs
the largest first unless told otherwise, and preempts for a difference of 10: there the unit is a quarter of a second.
Known from runs of vLLM 0.32.0 and SGLang 0.5.23, which reads its header only with SGLANG_ENABLE_REQUEST_HEADER_OVERRIDES=1, and
for completions never: there the number is a member of the body as well.
"""

from predictor.places import TIER_2

SGLANG_UNIT_MS = 250
ORDERED = ("priority", "priority-low-first", "leeway")


_LINES = {"vllm": b"x-vllm-priority: %d\r\n", "sglang": b"x-override-priority: %d\r\n"}


def priority_number(engine: str, scheduling: str, start_unix_ms: int, tier: int) -> int | None:
    """The number for that engine's queue; None where none is known."""
    last = TIER_2 if tier == 2 else 0
    if engine == "vllm":
        return start_unix_ms + last
    if engine == "sglang":
        number = start_unix_ms // SGLANG_UNIT_MS + last
        return number if scheduling == "priority-low-first" else -number
    return None


def priority_line(engine: str, number: int) -> bytes:
    """The header line that says it to an engine for which there is a number."""
    return _LINES[engine] % number


def priority_members(engine: str, number: int) -> dict[str, object]:
    """The members of the body that say it."""
    return {"priority": number} if engine == "sglang" else {}


def vllm_scheduling(server_info: dict[str, object]) -> str:
    """How a vLLM server orders its queue, from /server_info?config_format=json (dev mode only); "" when it does not say."""
    config = server_info.get("vllm_config", server_info)
    scheduler = config.get("scheduler_config") if isinstance(config, dict) else None
    if not isinstance(scheduler, dict):
        return ""
    if "Cascade" in str(scheduler.get("scheduler_cls") or ""):
        return "leeway"
    policy = str(scheduler.get("policy") or "")
    return policy if policy in ("fcfs", "priority") else ""


def sglang_scheduling(server_info: dict[str, object]) -> str:
    """How an SGLang server orders its queue, from /server_info; "" when it does not say, or by what is in its cache."""
    enabled = server_info.get("enable_priority_scheduling")
    if not isinstance(enabled, bool):
        return ""
    if not enabled:
        return "fcfs" if server_info.get("schedule_policy", "fcfs") == "fcfs" else ""
    return "priority-low-first" if server_info.get("schedule_low_priority_values_first") is True else "priority"
