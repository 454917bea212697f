"""What a request body tells of the prompt without a tokenizer: about how many tokens, and hashes of its beginning. Pure.

Engines put tools before the system's text before the messages, wherever these stand in the body, so they are hashed in
that order. A hash stands for all text up to the end of its block of `BLOCK_CHARS`, the length that about
PREFIX_BLOCK_TOKENS tokens have; what is left of a part after its whole blocks goes into the hash of the next one.
Cheap: nothing for bodies of one block, no search for parts that are not there, and no more than `PREFIX_CHARS_MAX` of
large ones: about half a microsecond a block. A checksum, not Python's own hash, which differs from process to process:
several gateways and a sidecar must mean the same. One in 100,000 lookups may take one text for another; that, or a forged
one, is a wrong prediction and no more.
"""

from collections.abc import Sequence
from zlib import crc32

from gateway.jobs import PREFIX_BLOCK_TOKENS

CHARS_PER_TOKEN = 4
BLOCK_CHARS = CHARS_PER_TOKEN * PREFIX_BLOCK_TOKENS
PREFIX_CHARS_MAX = 524_288
_MESSAGES = (b'"messages":', b'"prompt":', b'"input":')


def prompt_tokens(body_bytes: int) -> int:
    """About how many tokens the prompt of a body has, at least 1."""
    return max(1, body_bytes // CHARS_PER_TOKEN)


def prefix_hashes(body: bytes, parts: Sequence[str] = ()) -> tuple[int, ...]:
    """Hashes of the prompt's full blocks, in order; empty for a body of one block or none. `parts` are members of the
    body that stand before its messages in the prompt, in their order there."""
    if len(body) <= BLOCK_CHARS:
        return ()
    starts = [at for part in parts if (at := body.find(b'"%b":' % part.encode())) >= 0]
    for name in _MESSAGES:
        at = body.find(name)
        if at >= 0:
            starts.append(at)
            break
    hashes: list[int] = []
    chain = 0
    left = PREFIX_CHARS_MAX
    for start in starts:
        end = min([other for other in starts if other > start], default=len(body))
        end = min(end, start + left)
        left -= end - start
        at = start
        while at + BLOCK_CHARS <= end:
            chain = crc32(body[at : at + BLOCK_CHARS], chain)
            hashes.append(chain)
            at += BLOCK_CHARS
        chain = crc32(body[at:end], chain)
    return tuple(hashes)
