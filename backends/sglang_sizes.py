"""How much an SGLang server (0.5.23) holds and computes at once, from its /server_info. Pure.

There stand its resolved arguments, each scheduler's own state and the size of the KV cache. A server with several
data-parallel ranks counts as one engine that is so many times as large. Only whole numbers within bounds are read: what
is missing, null or impossible stays unknown (0), and is never guessed from anything else. With chunked prefill switched
off, a step ends at `max_prefill_tokens`.
"""

from backends.base import Sizes

TOKENS_MAX = 1 << 31
PAGE_MAX = 65536
SEQS_MAX = 1_000_000
RANKS_MAX = 1024


def server_sizes(info: dict[str, object]) -> Sizes:
    """The sizes that /server_info tells."""
    ranks = _whole(info, "dp_size", RANKS_MAX) or 1
    kv_tokens, page = _whole(info, "max_total_num_tokens", TOKENS_MAX), _whole(info, "page_size", PAGE_MAX) or 1
    blocks = kv_tokens * ranks // page
    return Sizes(
        kv_blocks=blocks,
        block_size=page if blocks else 0,
        max_num_seqs=_running(info, ranks),
        max_num_batched_tokens=min(_step_tokens(info) * ranks, TOKENS_MAX),
    )


def rank_sizes(info: dict[str, object]) -> dict[str, int]:
    """Of one data-parallel rank, what its load snapshot does not say, by the names of SglangSizes; without the unknown."""
    told = {
        "chunk_tokens": _step_tokens(info),
        "page_tokens": _whole(info, "page_size", PAGE_MAX),
        "max_model_len": _whole(info, "context_length", TOKENS_MAX),
    }
    return {name: value for name, value in told.items() if value}


def _whole(told: dict[str, object], name: str, most: int) -> int:
    value = told.get(name)
    return value if type(value) is int and 0 < value <= most else 0


def _running(info: dict[str, object], ranks: int) -> int:
    """What each scheduler settled on; where they do not say it, what one of them was told."""
    states = info.get("internal_states")
    told = [state for state in states if isinstance(state, dict)] if isinstance(states, list) else []
    each = [_whole(state, "effective_max_running_requests_per_dp", SEQS_MAX) for state in told]
    if each and all(each):
        return min(sum(each), SEQS_MAX)
    return _whole(info, "max_running_requests", SEQS_MAX) if ranks == 1 else 0


def _step_tokens(info: dict[str, object]) -> int:
    if "chunked_prefill_size" not in info:
        return 0
    chunk = info["chunked_prefill_size"]
    if chunk is None or (type(chunk) is int and chunk <= 0):
        return _whole(info, "max_prefill_tokens", TOKENS_MAX)
    return _whole(info, "chunked_prefill_size", TOKENS_MAX)
