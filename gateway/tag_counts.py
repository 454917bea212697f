"""What the tagger exports: layers used, skips, misses, errors, coverage, changed decisions. Counters; no decisions.

All label values come from fixed sets (layers, causes, models of the tagger), so their number is bounded.
"""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from gateway.hindsight import Hindsight
from predictor.length import Tag

MISSES = ("late", "starting", "down", "busy", "nan", "negative", "garbage")
FACTORS = (1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0)
_BOUNDS = tuple(math.log(factor) for factor in FACTORS)


class Residuals:
    """|ln(observed / predicted)| by upper bound, and how often the answer was within q90."""

    __slots__ = ("answers", "counts", "covered", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(_BOUNDS) + 1)
        self.total = 0.0
        self.answers = 0
        self.covered = 0

    def observe(self, tag: Tag, output_tokens: int) -> None:
        """One answer that was seen to its end."""
        residual = abs(math.log(output_tokens / max(1, tag.estimate.q50)))
        self.counts[bisect_left(_BOUNDS, residual)] += 1
        self.total += residual
        self.answers += 1
        self.covered += output_tokens <= tag.estimate.q90

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative, as the text format wants them."""
        out, running = [], 0
        for bound, count in zip((*(f"{bound:.4g}" for bound in _BOUNDS), "+Inf"), self.counts, strict=True):
            running += count
            out.append((bound, float(running)))
        return out


class TagCounts:
    """See the module's words."""

    def __init__(self) -> None:
        self.layers: Counter[str] = Counter()
        self.skips: Counter[str] = Counter()
        self.misses: Counter[str] = Counter()
        self.cache_hits = 0
        self.late_used = 0
        self.residuals: dict[str, Residuals] = {}

    def observe(self, tag: Tag, output_tokens: int, truncated: bool) -> None:
        """An answer ended."""
        if output_tokens > 0 and not truncated:
            self.residuals.setdefault(tag.layer, Residuals()).observe(tag, output_tokens)

    def families(
        self, state: str, restarts: int, dropped: int, hindsights: Iterator[tuple[str, Hindsight]]
    ) -> Iterator[Metric]:
        """One scrape. `hindsights` are of the desks, by model."""
        for name, text, label, counter in (
            ("leeway_length_predictions", "Lengths predicted, by the layer that said them.", "layer", self.layers),
            ("leeway_tagger_skips", "Requests whose length decided nothing, by why.", "cause", self.skips),
            ("leeway_tagger_misses", "Model answers that could not be used in time, by why.", "cause", self.misses),
        ):
            counted = CounterMetricFamily(name, text, labels=[label])
            for value, count in counter.items():
                counted.add_metric([value], count)
            yield counted
        yield CounterMetricFamily("leeway_tagger_cache_hits", "Questions answered from memory.", value=self.cache_hits)
        yield CounterMetricFamily(
            "leeway_tagger_late_used", "Late answers that still moved a waiting job.", value=self.late_used
        )
        yield CounterMetricFamily("leeway_tagger_restarts", "Starts of the tagger's process after the first.", value=restarts)
        yield CounterMetricFamily("leeway_length_log_dropped", "Rows of the length log that were lost.", value=dropped)
        yield GaugeMetricFamily("leeway_tagger_up", "1 while the tagger's process answers.", value=float(state == "up"))
        yield from self._residuals()
        yield from _hindsight(hindsights)

    def _residuals(self) -> Iterator[Metric]:
        error = HistogramMetricFamily(
            "leeway_length_error", "|ln(output tokens / predicted)| of answers seen to their end.", labels=["layer"]
        )
        answers = CounterMetricFamily("leeway_length_answers", "Answers compared with their prediction.", labels=["layer"])
        covered = CounterMetricFamily("leeway_length_covered", "... of which no longer than q90.", labels=["layer"])
        for layer, residuals in self.residuals.items():
            error.add_metric([layer], buckets=residuals.buckets(), sum_value=residuals.total)
            answers.add_metric([layer], residuals.answers)
            covered.add_metric([layer], residuals.covered)
        yield from (error, answers, covered)


def _hindsight(hindsights: Iterator[tuple[str, Hindsight]]) -> Iterator[Metric]:
    compared = CounterMetricFamily(
        "leeway_length_decisions_compared", "Decisions compared with those of a constant length.", labels=["model"]
    )
    changed = CounterMetricFamily("leeway_length_decisions_changed", "... of which the prediction changed.", labels=["model"])
    gain = GaugeMetricFamily(
        "leeway_length_gain_seconds", "What those changes save, as predicted; below 0 they cost.", labels=["model"]
    )
    for model, hindsight in hindsights:
        compared.add_metric([model], hindsight.compared)
        changed.add_metric([model], hindsight.changed)
        gain.add_metric([model], hindsight.gain_s)
    yield from (compared, changed, gain)
