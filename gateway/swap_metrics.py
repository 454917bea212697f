"""What /metrics tells of models that share devices: swaps by how they ended, who lies where, expected starts. Pure.

There only where devices are configured; labels are the models and devices of the configuration, so that they are bounded.
"""

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gateway.lodging import Lodging
from gateway.moving import Moved


def prediction_errors(history: Iterable[Moved]) -> dict[str, float]:
    """Mean |predicted - taken| / taken of the last steps that were done, by model."""
    found: dict[str, list[float]] = {}
    for moved in history:
        if moved.outcome == "done" and moved.took_s > 0:
            error = abs(moved.predicted_s - moved.took_s) / moved.took_s
            found.setdefault(moved.model or ",".join(moved.leaves), []).append(error)
    return {model: sum(errors) / len(errors) for model, errors in found.items()}


def swap_families(
    lodging: Lodging,
    counts: Mapping[tuple[str, str], int],
    moved_s: Mapping[str, float],
    history: Iterable[Moved],
    now_s: float,
) -> Iterator[Metric]:
    """For one scrape: `counts` of steps by model and outcome, seconds of moves by model, and the last steps."""
    swaps = CounterMetricFamily("leeway_swaps", "Steps of swap plans, by how they ended.", labels=["model", "outcome"])
    for (model, outcome), count in counts.items():
        swaps.add_metric([model, outcome], count)
    seconds = CounterMetricFamily("leeway_swap_seconds", "Seconds that models' weights were moved.", labels=["model"])
    for model, value_s in moved_s.items():
        seconds.add_metric([model], value_s)
    error = GaugeMetricFamily(
        "leeway_swap_prediction_error", "Mean |predicted - taken| / taken of the last swaps.", labels=["model"]
    )
    for model, value in prediction_errors(history).items():
        error.add_metric([model], value)
    yield from (swaps, seconds, error)
    yield from _models(lodging, now_s)


def _models(lodging: Lodging, now_s: float) -> Iterator[Metric]:
    resident = GaugeMetricFamily("leeway_model_resident", "1 where a model lies on a device.", labels=["model", "device"])
    load = GaugeMetricFamily(
        "leeway_model_load_seconds", "Predicted seconds of bringing a model onto a device.", labels=["model", "device"]
    )
    start = GaugeMetricFamily(
        "leeway_model_expected_start_seconds", "Until a model is on a device; 0: it is on one.", labels=["model"]
    )
    for lodger in lodging.lodgers.values():
        resident.add_metric([lodger.model, lodger.device], float(lodger.phase in ("in", "leaving")))
        if lodger.moves:
            load.add_metric([lodger.model, lodger.device], lodging.load_s(lodger))
    for model in sorted({lodger.model for lodger in lodging.lodgers.values()}):
        expected_s = lodging.expected_s(model, now_s)
        if expected_s is not None:
            start.add_metric([model], expected_s)
    yield from (resident, load, start)
