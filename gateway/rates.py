"""Requests and tokens per minute of one key, by the library `limits`: a sliding window counted in two halves. Pure.

The windows are kept here, on the clock of whoever asks (a wall clock that jumps must not open or close them). Nothing is
asked of them but what any storage of the library with sliding windows does, so that one for several gateways (Redis) fits
in their place; it would have to be asked off the loop. Only loaded when a key has such a limit: the library holds about
3 MiB. Of tokens the prompt is counted when the request comes, and the rest when it has ended.
The limit holds on the average; one minute that follows a burst may see up to twice of it, as with all such counters.
"""

from math import floor

from limits import RateLimitItem, RateLimitItemPerMinute
from limits.storage import SlidingWindowCounterSupport, Storage
from limits.strategies import SlidingWindowCounterRateLimiter

from gateway.config import KeyLimits

MINUTE_S = 60
UNLIMITED = 1 << 48


class Windows(Storage, SlidingWindowCounterSupport):
    """Counts of this window and the last one, by key. `now_s` is set by whoever asks."""

    STORAGE_SCHEME = None

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self._counts: dict[str, tuple[int, int, int]] = {}  # window number, count in it, count in the one before

    @property
    def base_exceptions(self) -> type[Exception]:
        """What a storage behind a network may raise."""
        return OSError

    def _of(self, key: str, expiry: int) -> tuple[int, int, int]:
        number = int(self.now_s // expiry)
        known = self._counts.get(key)
        if known is None or known[0] < number - 1:
            return number, 0, 0
        return known if known[0] == number else (number, 0, known[1])

    def get_sliding_window(self, key: str, expiry: int) -> tuple[int, float, int, float]:
        """(count before, how long that still matters, count now, how long that will matter)."""
        number, count, before = self._of(key, expiry)
        left_s = (number + 1) * expiry - self.now_s
        return before, left_s, count, left_s + expiry

    def acquire_sliding_window_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        """Count so many if they fit."""
        before, left_s, count, _ = self.get_sliding_window(key, expiry)
        if int(before * left_s / expiry + count) + amount > limit:
            return False
        self.incr(key, expiry, amount)
        return True

    def incr(self, key: str, expiry: int, amount: int = 1) -> int:
        """Count so many, whether they fit or not."""
        number, count, before = self._of(key, expiry)
        self._counts[key] = (number, count + amount, before)
        return count + amount

    def get(self, key: str) -> int:
        """The count of the window."""
        return self._counts.get(key, (0, 0, 0))[1]

    def get_expiry(self, key: str) -> float:
        """When that window ends."""
        return (self._counts.get(key, (0, 0, 0))[0] + 1.0) * MINUTE_S

    def check(self) -> bool:
        """It is there."""
        return True

    def reset(self) -> int | None:
        """Forget everything."""
        count = len(self._counts)
        self._counts.clear()
        return count

    def clear(self, key: str) -> None:
        """Forget one key."""
        self._counts.pop(key, None)

    def clear_sliding_window(self, key: str, expiry: int) -> None:
        """The same."""
        self.clear(key)


class Rates:
    """The limits of one key; under the name `owner` in a `storage` that others use as well, else in windows of its own."""

    def __init__(self, limits: KeyLimits, owner: str = "", storage: Storage | None = None) -> None:
        self._own = Windows()
        windows = self._own if storage is None else storage
        assert isinstance(windows, SlidingWindowCounterSupport), "a storage without sliding windows"
        self._windows: SlidingWindowCounterSupport = windows
        self._limiter = SlidingWindowCounterRateLimiter(windows)
        self._owner = owner
        self._requests = RateLimitItemPerMinute(limits.requests_per_min) if limits.requests_per_min else None
        self._tokens = RateLimitItemPerMinute(limits.tokens_per_min) if limits.tokens_per_min else None

    def admit(self, tokens: int, now_s: float) -> tuple[str, int] | None:
        """Count a request with a prompt of so many tokens; or ("requests" or "tokens", seconds until one such fits)."""
        self._own.now_s = now_s
        if self._tokens is not None and not self._limiter.test(self._tokens, self._owner, "tokens", cost=tokens):
            return "tokens", self._wait_s(self._tokens, "tokens", tokens)
        if self._requests is not None and not self._limiter.hit(self._requests, self._owner, "requests"):
            return "requests", self._wait_s(self._requests, "requests", 1)
        if self._tokens is not None:
            self._limiter.hit(self._tokens, self._owner, "tokens", cost=tokens)
        return None

    def settle(self, tokens: int, now_s: float) -> None:
        """So many more tokens than were counted, or fewer, which then stay counted."""
        if self._tokens is not None and tokens > 0:
            self._own.now_s = now_s
            self._windows.acquire_sliding_window_entry(self._key(self._tokens, "tokens"), UNLIMITED, MINUTE_S, tokens)

    def _key(self, item: RateLimitItem, name: str) -> str:
        return item.key_for(self._owner, name)

    def _wait_s(self, item: RateLimitItem, name: str, cost: int) -> int:
        """Seconds until so much fits: while the last window fades, or when this one has become the last."""
        before, left_s, count, matters_s = self._windows.get_sliding_window(self._key(item, name), MINUTE_S)
        room = item.amount - cost
        if room < 0:
            return MINUTE_S  # never; the message says so
        if count <= room and before:
            wait_s = left_s - (room - count + 1) * MINUTE_S / before
        else:
            wait_s = matters_s - MINUTE_S * (room + 1) / max(count, room + 1)
        # What is counted is cut off to whole ones: an instant later than this, by clocks that tell milliseconds.
        return max(1, floor(wait_s + 0.002) + 1)
