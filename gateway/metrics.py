"""What /metrics on the control listener tells: plain counts kept per request, put into families when scraped. Shell.

prometheus-client does names, types and text; the counting is plain Python because its locked children cost four times
as much per request. Label values that clients can name are bounded: models beyond the limit count as "other".
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from gateway import __version__
from gateway.accounts import Account

if TYPE_CHECKING:
    from gateway.server import DataPlane

REMOVED = "removed"  # the label of backends that are no more
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
STATES = ("starting", "ready", "draining", "asleep", "swapping", "down")


class Histogram:
    """Counts by upper bound, and the sum; seconds."""

    __slots__ = ("counts", "total_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(SECONDS) + 1)
        self.total_s = 0.0

    def observe(self, value_s: float) -> None:
        """Count one value."""
        self.counts[bisect_left(SECONDS, value_s)] += 1
        self.total_s += value_s

    def add(self, other: "Histogram") -> None:
        """What another one has counted, too."""
        self.counts = [one + more for one, more in zip(self.counts, other.counts, strict=True)]
        self.total_s += other.total_s

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative, as the text format wants them."""
        out, running = [], 0
        for bound, count in zip((*map(str, SECONDS), "+Inf"), self.counts, strict=True):
            running += count
            out.append((bound, float(running)))
        return out


class Cell:
    """The counts of one (route, model, backend)."""

    __slots__ = ("duration", "ends", "events", "output_tokens", "prompt_tokens", "queue", "retries", "ttft")

    def __init__(self) -> None:
        self.ends: dict[tuple[int, str], int] = {}
        self.duration = Histogram()
        self.ttft = Histogram()
        self.queue = Histogram()
        self.prompt_tokens = 0
        self.output_tokens = 0
        self.events = 0
        self.retries = 0

    def add(self, other: "Cell") -> None:
        """What another one has counted, too."""
        for end, count in other.ends.items():
            self.ends[end] = self.ends.get(end, 0) + count
        self.duration.add(other.duration)
        self.ttft.add(other.ttft)
        self.queue.add(other.queue)
        self.prompt_tokens += other.prompt_tokens
        self.output_tokens += other.output_tokens
        self.events += other.events
        self.retries += other.retries


class RequestMetrics:
    """All cells. `record` is the hot path."""

    def __init__(self, model_labels: int) -> None:
        self._cells: dict[tuple[str, str, str], Cell] = {}
        self._models: set[str] = set()
        self._model_labels = model_labels

    def record(self, account: Account) -> None:
        """Count one settled request."""
        cell = self._cells.get((account.route, account.model, account.backend))
        if cell is None:
            cell = self._cell(account)
        end = (account.status, account.end)
        cell.ends[end] = cell.ends.get(end, 0) + 1
        arrived_s, first_byte_s, dispatched_s = account.arrived_s, account.first_byte_s, account.dispatched_s
        cell.duration.observe(account.finished_s - arrived_s)
        if first_byte_s >= 0:
            cell.ttft.observe(first_byte_s - arrived_s)
        if dispatched_s >= 0:
            cell.queue.observe(dispatched_s - account.accepted_s)
        if account.prompt_tokens > 0:
            cell.prompt_tokens += account.prompt_tokens
        if account.output_tokens > 0:
            cell.output_tokens += account.output_tokens
        cell.events += account.events
        if account.attempts > 1:
            cell.retries += account.attempts - 1

    def forget(self, backend: str) -> None:
        """A backend was removed: its counts go on as those of `removed`, since backends that come and go under ever new
        names would leave their series behind, and sums must not fall."""
        for route, model, name in [key for key in self._cells if key[2] == backend]:
            cell = self._cells.pop((route, model, name))
            self._cells.setdefault((route, model, REMOVED), Cell()).add(cell)

    def _cell(self, account: Account) -> Cell:
        model = account.model
        if model and model not in self._models:
            if len(self._models) >= self._model_labels:
                model = "other"
            else:
                self._models.add(model)
        return self._cells.setdefault((account.route, model or "none", account.backend or "none"), Cell())

    def families(self) -> Iterator[Metric]:
        """The families of requests as seen by clients."""
        labels = ["route", "model", "backend"]
        requests = CounterMetricFamily("leeway_requests", "Requests by how they ended.", labels=[*labels, "code", "end"])
        prompt = CounterMetricFamily("leeway_prompt_tokens", "Prompt tokens, as engines counted them.", labels=labels)
        output = CounterMetricFamily("leeway_output_tokens", "Output tokens, as engines counted them.", labels=labels)
        events = CounterMetricFamily("leeway_stream_events", "Server-sent events relayed.", labels=labels)
        retries = CounterMetricFamily("leeway_retries", "Further attempts of requests that had not run.", labels=labels)
        duration = HistogramMetricFamily("leeway_request_duration_seconds", "Arrival to end.", labels=labels)
        ttft = HistogramMetricFamily("leeway_time_to_first_byte_seconds", "Arrival to the first byte relayed.", labels=labels)
        queue = HistogramMetricFamily("leeway_queue_seconds", "Body read to dispatch.", labels=labels)
        for key, cell in self._cells.items():
            for (status, end), count in cell.ends.items():
                requests.add_metric([*key, str(status), end], count)
            prompt.add_metric(key, cell.prompt_tokens)
            output.add_metric(key, cell.output_tokens)
            events.add_metric(key, cell.events)
            retries.add_metric(key, cell.retries)
            for family, histogram in ((duration, cell.duration), (ttft, cell.ttft), (queue, cell.queue)):
                family.add_metric(key, buckets=histogram.buckets(), sum_value=histogram.total_s)
        yield from (requests, prompt, output, events, retries, duration, ttft, queue)


class GatewayCollector(Collector):
    """Everything the gateway exports, read when scraped."""

    def __init__(self, plane: "DataPlane", beside: Iterable[Metric] = ()) -> None:
        self._plane = plane
        self._beside = beside

    def collect(self) -> Iterable[Metric]:
        """One scrape."""
        plane = self._plane
        yield from plane.books.families()
        yield from self._fleet()
        yield from self._predictions()
        yield from plane.desks.tagging.families(plane.desks)
        yield from self._beside
        simple = (
            ("leeway_queue_depth", "Requests waiting for a backend.", plane.held),
            ("leeway_client_connections", "Open client connections.", plane.connections),
            ("leeway_held_body_bytes", "Request body bytes held now.", plane.held_bytes),
            ("leeway_loop_lag_seconds", "Worst event-loop lag since the last scrape.", plane.deadlines.take_worst_lag_s()),
            ("leeway_config_generation", "Configurations applied since the start.", plane.generation),
        )
        for name, text, value in simple:
            yield GaugeMetricFamily(name, text, value=value)
        yield CounterMetricFamily("leeway_log_lines_dropped", "Log lines lost to a full queue.", value=plane.logs.dropped)
        info = GaugeMetricFamily("leeway_build_info", "The running version.", labels=["version"])
        info.add_metric([__version__], 1)
        yield info

    def _fleet(self) -> Iterator[Metric]:
        state = GaugeMetricFamily("leeway_backend_state", "1 for the state a backend is in.", labels=["backend", "state"])
        flight = GaugeMetricFamily("leeway_backend_in_flight", "Requests at a backend.", labels=["backend"])
        total = CounterMetricFamily("leeway_backend_dispatches", "Requests sent to a backend.", labels=["backend"])
        failed = CounterMetricFamily("leeway_backend_failures", "Failures that count against a backend.", labels=["backend"])
        for replica in self._plane.fleet:
            for name in STATES:
                state.add_metric([replica.name, name], float(replica.state == name))
            flight.add_metric([replica.name], replica.in_flight)
            total.add_metric([replica.name], replica.dispatched_total)
            failed.add_metric([replica.name], replica.failed_total)
        yield from (state, flight, total, failed)

    def _predictions(self) -> Iterator[Metric]:
        desks, now_s = self._plane.desks, self._plane.now()
        fell = CounterMetricFamily(
            "leeway_prediction_fallbacks",
            "Choices made without a prediction, by what was wrong with it.",
            labels=["model", "cause"],
        )
        held = CounterMetricFamily("leeway_held", "Requests that waited for the right backend.", labels=["model"])
        for model, desk in desks:
            for cause, count in desk.ladder.counts.items():
                fell.add_metric([model, cause], count)
            held.add_metric([model], desk.held_total)
        yield from (fell, held)
        yield CounterMetricFamily(
            "leeway_predicted_hit_tokens", "Prompt tokens expected in a prefix cache.", value=desks.hit_tokens
        )
        yield CounterMetricFamily(
            "leeway_sidecar_notes_lost", "Reservations and late lengths that no sidecar could be told.", value=desks.notes_lost
        )
        yield CounterMetricFamily("leeway_estimated_prompt_tokens", "Prompt tokens, as estimated.", value=desks.prompt_tokens)
        stale = GaugeMetricFamily("leeway_backend_staleness_seconds", "Since a busy backend was heard of.", labels=["backend"])
        pace = GaugeMetricFamily("leeway_backend_pace", "Observed over believed step time.", labels=["backend"])
        error = GaugeMetricFamily(
            "leeway_backend_prediction_error",
            "Mean |log(observed / predicted)| of first tokens, each with 0.1 s added.",
            labels=["backend"],
        )
        pending = GaugeMetricFamily("leeway_backend_pending_tokens", "Prompt tokens sent and not computed.", labels=["backend"])
        for replica in self._plane.fleet:
            mirror = replica.mirror
            if mirror is not None:
                mirror.look(now_s)
                stale.add_metric([replica.name], mirror.staleness_s(now_s))
                pace.add_metric([replica.name], mirror.pace)
                error.add_metric([replica.name], mirror.error)
                pending.add_metric([replica.name], mirror.pending_tokens)
        yield from (stale, pace, error, pending)
        yield from self._kv()

    def _kv(self) -> Iterator[Metric]:
        """Of engines that publish what their KV holds."""
        held = GaugeMetricFamily("leeway_backend_kv_tokens", "Tokens in its KV cache, by its own events.", labels=["backend"])
        joined = CounterMetricFamily("leeway_backend_kv_joined", "Prompts matched with its KV blocks.", labels=["backend"])
        lost = CounterMetricFamily("leeway_backend_kv_lost", "Times that what its KV holds was forgotten.", labels=["backend"])
        for name, view in self._plane.desks.engines.views.items():
            held.add_metric([name], view.tokens)
            joined.add_metric([name], view.joined)
            lost.add_metric([name], view.forgotten)
        yield from (held, joined, lost)


def exposition(plane: "DataPlane", beside: Iterable[Metric] = ()) -> bytes:
    """The text that /metrics answers, with what others tell `beside` it."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(GatewayCollector(plane, beside))
    return generate_latest(registry)
