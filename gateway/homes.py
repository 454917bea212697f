"""Which backend made which stored response, and for whom: bounded, oldest forgotten first. Pure.

State of one process: with several gateways a response is found only where it was made (said in the README).
"""

import re
from collections import OrderedDict

_RESPONSE_ID = re.compile(rb'"id"\s*:\s*"(resp_[A-Za-z0-9_-]{1,200})"')


class ResponseHomes:
    """Response id -> (backend, owner). `owner` is the digest of the key that asked, "" on an open gateway."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._homes: OrderedDict[str, tuple[str, str]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._homes)

    def remember(self, first_bytes: bytes, backend: str, owner: str) -> None:
        """Take the id out of a response's first bytes, if one is there."""
        found = _RESPONSE_ID.search(first_bytes, 0, 65536)
        if found is None:
            return
        self._homes[found[1].decode()] = (backend, owner)
        if len(self._homes) > self._size:
            self._homes.popitem(last=False)

    def find(self, response_id: str, owner: str) -> str | None:
        """The backend that holds it, for its owner only."""
        home = self._homes.get(response_id)
        return home[0] if home is not None and home[1] == owner else None
