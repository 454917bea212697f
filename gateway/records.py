"""The last finished requests, for GET /v1/requests/ID by the key that sent them; bounded. Pure."""

from gateway.accounts import Account
from gateway.spending import told


class Records:
    """By id; of two requests with one id the later one is kept. The oldest goes first."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._kept: dict[str, Account] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, account: Account) -> None:
        """A request is over."""
        kept, name = self._kept, account.request_id
        if name in kept:
            del kept[name]  # so that it counts as new
        elif len(kept) >= self._size:
            if not self._size:
                return
            del kept[next(iter(kept))]
        kept[name] = account

    def resize(self, size: int) -> None:
        """From now on so many."""
        self._size = size
        for name in list(self._kept)[: max(0, len(self._kept) - size)]:
            del self._kept[name]

    def find(self, name: str, owner: str) -> dict[str, object] | None:
        """What is known of a request that this key sent."""
        account = self._kept.get(name)
        return told(account) if account is not None and account.owner == owner else None
