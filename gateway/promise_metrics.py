"""What /metrics tells of promises: kept and broken by class, budget burnt by stage, fairness between sizes and tenants.

Counted per settled request that was promised something, put into families when scraped. Jain's index is that of the
shares of requests whose promise was kept, over size classes of prompts or over tenants, fading with HALF_LIFE requests:
1 when all fare alike, 1/n when one of n takes all. Label values are bounded: what comes too late counts as "other".
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gateway.accounts import Account
from gateway.spending import STAGES, kept, stages

SIZES = (256, 1024, 4096, 16384)  # prompt tokens
LABELS_MAX = 64
HALF_LIFE = 1000.0


class ClassCount:
    """Of one class."""

    __slots__ = ("broken", "good", "judged", "spent_s", "tiers")

    def __init__(self) -> None:
        self.judged = self.good = 0
        self.broken = {"ttft": 0, "tpot": 0, "e2e": 0}
        self.tiers = [0, 0]
        self.spent_s = dict.fromkeys(STAGES, 0.0)


class Shares:
    """How often the promise was kept, for each of a bounded set of groups; lately."""

    def __init__(self) -> None:
        self._groups: dict[str, list[float]] = {}
        self._weight = 1.0

    def saw(self, group: str, good: bool) -> None:
        """One request of that group."""
        counts = self._groups.get(group)
        if counts is None:
            group = group if len(self._groups) < LABELS_MAX else "other"
            counts = self._groups.setdefault(group, [0.0, 0.0])
        counts[0] += self._weight
        counts[1] += self._weight if good else 0.0
        self._weight *= 2.0 ** (1.0 / HALF_LIFE)
        if self._weight > 1e12:
            for each in self._groups.values():
                each[0] /= self._weight
                each[1] /= self._weight
            self._weight = 1.0

    def shares(self) -> list[float]:
        """Of each group that lately had requests."""
        return [good / all_ for all_, good in self._groups.values() if all_ > 1e-3 * self._weight]


def jain(values: Iterable[float]) -> float:
    """Jain's index: 1 for equal values, and for none."""
    listed = list(values)
    squares = len(listed) * sum(value * value for value in listed)
    return sum(listed) ** 2 / squares if squares > 0 else 1.0


def size_class(prompt_tokens: int) -> str:
    """The class of prompts of about that many tokens."""
    at = bisect_left(SIZES, prompt_tokens)
    return f"<={SIZES[at]}" if at < len(SIZES) else f">{SIZES[-1]}"


class PromiseMetrics:
    """See the module's words."""

    def __init__(self) -> None:
        self._classes: dict[str, ClassCount] = {}
        self.by_size, self.by_tenant = Shares(), Shares()

    def record(self, account: Account) -> None:
        """One settled request that was promised something."""
        assert account.promise is not None
        count = self._of(account.promise.class_name)
        for stage, spent_s in stages(account):
            count.spent_s[stage] += spent_s
        judged = kept(account)
        if not judged.judged:
            return
        count.judged += 1
        count.good += judged.good
        count.tiers[account.tier - 1] += 1
        count.broken["ttft"] += not judged.ttft
        count.broken["tpot"] += not judged.tpot
        count.broken["e2e"] += not judged.e2e
        tokens = account.prompt_tokens if account.prompt_tokens > 0 else account.counted_tokens
        self.by_size.saw(size_class(tokens), judged.good)
        self.by_tenant.saw(account.tenant or account.key, judged.good)

    def _of(self, name: str) -> ClassCount:
        known = self._classes.get(name)
        if known is None:
            known = self._classes.setdefault(name if len(self._classes) < LABELS_MAX else "other", ClassCount())
        return known

    def families(self) -> Iterator[Metric]:
        """For one scrape."""
        all_ = CounterMetricFamily("leeway_slo_requests", "Requests with a promise that could be judged.", labels=["class"])
        good = CounterMetricFamily("leeway_slo_good", "... whose whole promise was kept (goodput).", labels=["class"])
        broken = CounterMetricFamily("leeway_slo_violations", "Targets that were missed.", labels=["class", "target"])
        tiers = CounterMetricFamily("leeway_slo_dispatches", "... by the tier that they were in.", labels=["class", "tier"])
        spent = CounterMetricFamily(
            "leeway_slo_spent_seconds", "Where the time of requests with a promise went.", labels=["class", "stage"]
        )
        for name, count in self._classes.items():
            all_.add_metric([name], count.judged)
            good.add_metric([name], count.good)
            for target, missed in count.broken.items():
                broken.add_metric([name, target], missed)
            for tier, number in enumerate(count.tiers, 1):
                tiers.add_metric([name, str(tier)], number)
            for stage, spent_s in count.spent_s.items():
                spent.add_metric([name, stage], spent_s)
        fair = GaugeMetricFamily("leeway_slo_jain", "Jain's index of promises kept, lately.", labels=["by"])
        fair.add_metric(["size"], jain(self.by_size.shares()))
        fair.add_metric(["tenant"], jain(self.by_tenant.shares()))
        yield from (all_, good, broken, tiers, spent, fair)
