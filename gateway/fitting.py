"""Which engines would refuse a request for its length, where those of one model take different lengths. Pure.

An engine answers 400 to what is longer than its context; another one of the same model might have served it. The prompt's
tokens are not known here, so they are reckoned carefully: a request that goes past a smaller engine in error is served.
"""

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.replica import Replica

BYTES_PER_TOKEN = 3  # of a body; most have more
MEDIA = (b";base64,", b'"input_audio"')


def needed_tokens(body: bytes, max_tokens: int) -> int:
    """What prompt and answer may take of an engine's context; `max_tokens` below 0: not said, so at least one. The bytes of
    pictures and sound say nothing of their tokens: of a body with such only the answer is counted."""
    prompt_tokens = 0 if any(mark in body for mark in MEDIA) else len(body) // BYTES_PER_TOKEN
    return prompt_tokens + max(1, max_tokens)


def uneven(replicas: Iterable["Replica"]) -> bool:
    """Whether some model is served by engines that take different lengths."""
    lengths: dict[str, int] = {}
    for replica in replicas:
        for model in replica.models:
            if lengths.setdefault(model, replica.identity.max_model_len) != replica.identity.max_model_len:
                return True
    return False


def too_small(replicas: Collection["Replica"], tokens: int) -> frozenset[str]:
    """Names of those that a request of so many tokens should not go to; never all of them: if none is large enough, the
    largest are left. One that does not say its length takes any."""
    lengths = [(replica.name, replica.identity.max_model_len or tokens) for replica in replicas]
    enough = min(tokens, max([length for _, length in lengths], default=0))
    return frozenset([name for name, length in lengths if length < enough])
