"""What the tagger exports: layers used, skips, misses, errors, coverage, changed decisions. Counters; no decisions.

All label values come from fixed sets (layers, causes, models of the tagger), so their number is bounded.
"""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from gateway.hindsight import Hindsight
from predictor.length import Report, Tag

MISSES = ("late", "starting", "down", "busy", "nan", "negative", "garbage")
ANSWER_S = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.05, 0.1, 1.0)
FACTORS = (1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0)
_BOUNDS = tuple(math.log(factor) for factor in FACTORS)


class Histogram:
    """Counts by upper bound, and the sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...] = ANSWER_S) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative, as the text format wants them."""
        out, running = [], 0
        for bound, count in zip((*(f"{bound:.4g}" for bound in self.bounds), "+Inf"), self.counts, strict=True):
            running += count
            out.append((bound, float(running)))
        return out


class Residuals:
    """|ln(observed / predicted)|, and how often the answer was within q90."""

    __slots__ = ("answers", "covered", "errors")

    def __init__(self) -> None:
        self.errors = Histogram(_BOUNDS)
        self.answers = 0
        self.covered = 0

    def observe(self, tag: Tag, output_tokens: int) -> None:
        """One answer that was seen to its end."""
        self.errors.observe(abs(math.log(output_tokens / max(1, tag.estimate.q50))))
        self.answers += 1
        self.covered += output_tokens <= tag.estimate.q90


class TagCounts:
    """See the module's words."""

    def __init__(self) -> None:
        self.layers: Counter[str] = Counter()
        self.skips: Counter[str] = Counter()
        self.misses: Counter[str] = Counter()
        self.cache_hits = 0
        self.late_used = 0
        self.without_encoder = 0
        self.answers = Histogram()
        self.residuals: dict[str, Residuals] = {}

    def observe(self, tag: Tag, output_tokens: int, truncated: bool) -> None:
        """An answer ended."""
        if output_tokens > 0 and not truncated:
            self.residuals.setdefault(tag.layer, Residuals()).observe(tag, output_tokens)

    def families(
        self, state: str, restarts: int, dropped: int, hindsights: Sequence[tuple[str, Hindsight]]
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
            "leeway_tagger_late_used", "Late answers that still served a job in the line or in an engine.", value=self.late_used
        )
        yield CounterMetricFamily(
            "leeway_tagger_without_encoder", "Questions that the encoder was spared: it is off.", value=self.without_encoder
        )
        yield CounterMetricFamily("leeway_tagger_restarts", "Starts of the tagger's process after the first.", value=restarts)
        yield CounterMetricFamily("leeway_length_log_dropped", "Rows of the length log that were lost.", value=dropped)
        took = HistogramMetricFamily("leeway_tagger_answer_seconds", "Question to the models' whole answer, if in time.")
        took.add_metric([], buckets=self.answers.buckets(), sum_value=self.answers.total)
        yield took
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
            error.add_metric([layer], buckets=residuals.errors.buckets(), sum_value=residuals.errors.total)
            answers.add_metric([layer], residuals.answers)
            covered.add_metric([layer], residuals.covered)
        yield from (error, answers, covered)


def _hindsight(hindsights: Sequence[tuple[str, Hindsight]]) -> Iterator[Metric]:
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


def layer_families(reports: Sequence[Report]) -> Iterator[Metric]:
    """Which layers speak for each model, and how far each is off."""
    weight = GaugeMetricFamily("leeway_length_layer_weight", "A layer's say in predictions.", labels=["model", "layer"])
    error = GaugeMetricFamily(
        "leeway_length_layer_error", "Recent mean |ln(observed / predicted)| of each layer alone.", labels=["model", "layer"]
    )
    on = GaugeMetricFamily("leeway_length_layer_on", "1 for a layer that counts for a model.", labels=["model", "layer"])
    coverage = GaugeMetricFamily("leeway_length_coverage", "Recent share of answers within q90.", labels=["model"])
    for report in reports:
        for layer in report.layers:
            weight.add_metric([report.model, layer.name], layer.weight)
            error.add_metric([report.model, layer.name], layer.error)
            on.add_metric([report.model, layer.name], float(layer.on))
        coverage.add_metric([report.model], report.coverage_q90)
    yield from (weight, error, on, coverage)
