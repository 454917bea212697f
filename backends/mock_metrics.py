"""vLLM's Prometheus metrics for the simulated engine, in a registry of its own.

Gauges are read from the core when scraped; counters and histograms are fed by it (an `Observer`).
"""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from backends.mock_config import MockConfig
from backends.mock_core import EngineCore, Track

_SECONDS_SHORT = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
_BUCKETS_TTFT = (*_SECONDS_SHORT, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0)
_BUCKETS_ITL = (*_SECONDS_SHORT, 20.0, 40.0, 80.0)
_BUCKETS_STEP = (1, *(2**power for power in range(3, 15)))
_BUCKETS_REQUEST = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
                    480.0, 960.0, 1920.0, 7680.0)  # fmt: skip
_LABELS = ("model_name", "engine")


class Metrics:
    """One engine's metrics. `bind` connects the gauges once the core exists."""

    def __init__(self, config: MockConfig) -> None:
        self._registry = CollectorRegistry()
        self._values = (config.models[0], "0")
        self._caches = config.enable_prefix_caching
        self._preemptions = self._counter("num_preemptions", "Sequences that lost their KV blocks.")
        self._prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of admitted sequences.")
        self._generation_tokens = self._counter("generation_tokens", "Tokens produced.")
        self._prefix_queries = self._counter("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.")
        self._prefix_hits = self._counter("prefix_cache_hits", "Prompt tokens found in the prefix cache.")
        self._success = Counter(
            "vllm:request_success",
            "Ended sequences by finish reason.",
            (*_LABELS, "finished_reason"),
            registry=self._registry,
        )
        self._ttft_s = self._histogram("time_to_first_token_seconds", _BUCKETS_TTFT)
        self._itl_s = self._histogram("inter_token_latency_seconds", _BUCKETS_ITL)
        self._tpot_s = self._histogram("request_time_per_output_token_seconds", _BUCKETS_ITL)
        self._e2e_s = self._histogram("e2e_request_latency_seconds", _BUCKETS_REQUEST)
        self._queue_s = self._histogram("request_queue_time_seconds", _BUCKETS_REQUEST)
        self._step_tokens = self._histogram("iteration_tokens_total", _BUCKETS_STEP)
        self._cache_config(config)
        for reason in ("stop", "length", "abort"):
            self._success.labels(*self._values, reason)

    def bind(self, core: EngineCore) -> None:
        """Let the gauges read from the core."""
        self._gauge("num_requests_running", "Sequences in the batch.").set_function(lambda: core.running)
        self._gauge("num_requests_waiting", "Sequences in the queue.").set_function(lambda: core.waiting)
        self._gauge("kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1.").set_function(lambda: core.instance.kv_usage)

    def text(self) -> bytes:
        """The exposition."""
        return generate_latest(self._registry)

    def admitted(self, track: Track) -> None:
        """A sequence left the queue for the first time."""
        assert track.admitted_s is not None
        self._queue_s.observe(track.admitted_s - track.request.arrival_s)
        self._prompt_tokens.inc(track.request.prompt_tokens)
        if self._caches:
            self._prefix_queries.inc(track.request.prompt_tokens)
            self._prefix_hits.inc(track.cached_tokens)

    def token(self, track: Track, gap_s: float | None) -> None:
        """A token came; the first one has no gap."""
        self._generation_tokens.inc()
        if gap_s is not None:
            self._itl_s.observe(gap_s)
        elif (ttft_s := track.timeline.ttft_s) is not None:
            self._ttft_s.observe(ttft_s)

    def stepped(self, tokens: int) -> None:
        """A step with so many tokens ended."""
        self._step_tokens.observe(tokens)

    def preempted(self) -> None:
        """A sequence lost its blocks."""
        self._preemptions.inc()

    def ended(self, track: Track) -> None:
        """A sequence ended or was aborted."""
        assert track.ended is not None
        self._success.labels(*self._values, track.ended).inc()
        timeline = track.timeline
        if timeline.e2e_s is not None:
            self._e2e_s.observe(timeline.e2e_s)
        if timeline.tpot_s is not None:
            self._tpot_s.observe(timeline.tpot_s)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(f"vllm:{name}", text, _LABELS, registry=self._registry).labels(*self._values)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"vllm:{name}", text, _LABELS, registry=self._registry).labels(*self._values)

    def _histogram(self, name: str, buckets: tuple[float, ...]) -> Histogram:
        text = f"{name.replace('_', ' ').capitalize()}."
        return Histogram(f"vllm:{name}", text, _LABELS, buckets=buckets, registry=self._registry).labels(*self._values)

    def _cache_config(self, config: MockConfig) -> None:
        limits = config.limits
        labels = {
            "engine": "0",
            "block_size": str(limits.block_size),
            "num_gpu_blocks": str(limits.kv_blocks),
            "cache_dtype": "auto",
            "enable_prefix_caching": str(config.enable_prefix_caching),
        }
        Gauge(
            "vllm:cache_config_info", "Settings of the KV cache.", tuple(labels), registry=self._registry
        ).labels(**labels).set(1)  # fmt: skip
