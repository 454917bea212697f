"""What is written down of requests that are over: their counts, access lines and records. Shell by its timer.

They are written a moment after their end, so that nothing stands between one answer and what its client asks next, and
many at once where many end: streams end in step, and their clients ask again within a millisecond or two. Whoever looks is
shown all of them.
"""

from collections.abc import Callable, Iterator

from prometheus_client.core import Metric

from gateway.accounts import Account
from gateway.config import GatewayConfig
from gateway.logs import Logs
from gateway.metrics import RequestMetrics
from gateway.promise_metrics import PromiseMetrics
from gateway.records import Records
from gateway.trace import Tracer

LATER_S = 0.005


class Books:
    """`call_later` is the loop's; `tracer` is set where spans are exported."""

    tracer: Tracer | None = None

    def __init__(self, config: GatewayConfig, logs: Logs, call_later: Callable[[float, Callable[[], None]], object]) -> None:
        self._logs = logs
        self._later = call_later
        self._metrics = RequestMetrics(config.limits.model_labels)
        self._promises = PromiseMetrics()
        self._records = Records(config.slo.records)
        self._over: list[Account] = []

    def over(self, account: Account) -> None:
        """A request has its end; nothing about it changes any more."""
        if not self._over:
            self._later(LATER_S, self.write)
        self._over.append(account)

    def write(self) -> None:
        """Write what is not written yet."""
        over, self._over = self._over, []
        for account in over:
            self._metrics.record(account)
            self._logs.access(account)
            if account.model:
                self._records.keep(account)
            if account.promise is not None:
                self._promises.record(account)
            if account.trace is not None and self.tracer is not None:
                self.tracer.over(account)

    def families(self) -> Iterator[Metric]:
        """Of requests, and of what was promised to them."""
        self.write()
        yield from self._metrics.families()
        yield from self._promises.families()

    def find(self, name: str, owner: str) -> dict[str, object] | None:
        """What is known of a request that this key sent and that is over."""
        self.write()
        return self._records.find(name, owner)

    def forget(self, backend: str) -> None:
        """It was removed: its counts go on as those of others that were."""
        self.write()
        self._metrics.forget(backend)

    def adopt(self, config: GatewayConfig) -> None:
        """Another configuration."""
        self.write()
        self._records.resize(config.slo.records)
