"""What a span tells of a request that is over. Pure.

Names are those of OpenTelemetry's conventions for HTTP and GenAI; those that begin with `leeway.` are ours.
"""

from gateway.accounts import Account
from gateway.slo import NEVER
from gateway.spending import budget_left_s, stages

_OPERATIONS = {"chat": "chat", "messages": "chat", "responses": "chat", "completions": "text_completion"}
Attribute = str | int | float


def span_name(account: Account) -> str:
    """`chat NAME`, as conventions have it."""
    return f"{_OPERATIONS.get(account.route, account.route)} {account.model}".strip()


def attributes(account: Account) -> dict[str, Attribute]:
    """What is known of a request that is over. Milliseconds where a name ends in `_ms`."""
    told: dict[str, Attribute] = {
        "gen_ai.operation.name": _OPERATIONS.get(account.route, account.route),
        "gen_ai.request.model": account.model,
        "http.response.status_code": account.status,
        "leeway.request_id": account.request_id,
        "leeway.end": account.end,
        "leeway.attempts": account.attempts,
    }
    for name, tokens in (("input", account.prompt_tokens), ("output", account.output_tokens)):
        if tokens >= 0:
            told[f"gen_ai.usage.{name}_tokens"] = tokens
    texts = (("leeway.backend", account.backend), ("leeway.key", account.key), ("error.type", failure(account)))
    told |= {name: text for name, text in texts if text}
    if account.ttft_s >= 0:
        told["leeway.ttft_ms"] = _ms(account.ttft_s)
    if account.promise is not None:
        told["leeway.class"], told["leeway.tier"] = account.promise.class_name, account.tier
        first_s = account.first_byte_s if account.first_byte_s >= 0 else account.finished_s
        if account.deadline_s < NEVER:
            told["leeway.budget_left_ms"] = _ms(budget_left_s(account, first_s))
    for stage, spent_s in stages(account):
        told[f"leeway.spent.{stage}_ms"] = _ms(spent_s)
    return told


def failure(account: Account) -> str:
    """Why it failed; "" if it did not, or by its client's doing alone."""
    if account.status >= 500 or account.end in ("failed_before_first_byte", "failed_in_stream"):
        return account.reason or str(account.status)
    return ""


def _ms(value_s: float) -> float:
    return round(value_s * 1e3, 3)
