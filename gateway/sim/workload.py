"""The requests of one simulated run: when they arrive, how long they are, what the gateway is told about them.

Arrivals are drawn as gaps of mean 1 and then scaled to the rate, so that runs with one seed differ in nothing but the
rate; a trace's window is scaled the same way. Told lengths are true x (1 + N(0, error)) within [0.1, 5], as in
Astrolabe's noise model. Pure; the random source is made from the seed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from gateway.sim.traces import TraceRow
from predictor.request import LengthEstimate

ERROR_MIN, ERROR_MAX = 0.1, 5.0
Z90 = 1.2816


@dataclass(frozen=True, slots=True)
class WorkloadSpec:
    """What to draw. Raises ValueError naming the key that is wrong.

    `arrivals`: "poisson", "gamma" (`shape` below 1 is bursty) or "trace" (the trace's own gaps, `batch_s` = how far its
    stamps are spread). `starts`: the trace's first row for seed 0, 1, ... `unrecognised`: share of requests whose
    prefix the gateway does not see. `hot_share` of requests begin with one common prefix of `hot_tokens`.
    """

    arrivals: str = "poisson"
    rate_per_s: float = 1.0
    shape: float = 1.0
    requests: int = 1000
    lengths: str = ""
    trace: str = ""
    format: str = ""
    starts: tuple[int, ...] = (0,)
    batch_s: float = 0.0
    length_error: float = 0.25
    unrecognised: float = 0.0
    hot_share: float = 0.0
    hot_tokens: int = 0

    def __post_init__(self) -> None:
        if self.arrivals not in ("poisson", "gamma", "trace"):
            raise ValueError(f"arrivals: {self.arrivals!r} is none of poisson, gamma, trace")
        for key in ("rate_per_s", "shape", "requests"):
            if not getattr(self, key) > 0:
                raise ValueError(f"{key}: must be above 0")
        for key in ("unrecognised", "hot_share"):
            if not 0 <= getattr(self, key) <= 1:
                raise ValueError(f"{key}: must lie between 0 and 1")
        if self.length_error < 0 or self.batch_s < 0:
            raise ValueError("length_error, batch_s: must not be negative")
        if not self.starts:
            raise ValueError("starts: needs one row at least")
        if bool(self.lengths) == bool(self.trace):
            raise ValueError("lengths, trace: exactly one of them names a file")
        if self.trace and not self.format:
            raise ValueError("format: says how to read the trace")
        if self.arrivals == "trace" and not self.trace:
            raise ValueError("trace: arrivals as in a trace need one")


@dataclass(frozen=True, slots=True)
class SimRequest:
    """One request: the truth, and what the gateway is told: `lengths`, `seen_prefix`, `seen_tokens` of the prompt (0: as
    many as there are), until when its first token is promised."""

    id: str
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    lengths: LengthEstimate
    prefix: tuple[int, ...] = ()
    seen_prefix: tuple[int, ...] = ()
    session: str = ""
    seen_tokens: int = 0
    deadline_s: float = float("inf")


def draw(spec: WorkloadSpec, rows: Sequence[TraceRow], block_size: int, max_tokens: int, seed: int) -> list[SimRequest]:
    """The requests of the run with this seed, in order of arrival.

    `rows` is the trace or the table of lengths, `block_size` the engines' KV block; prompts are cut so that prompt and
    answer fit `max_tokens`.
    """
    rng = Random(f"workload {seed}")
    if spec.trace:
        start = spec.starts[seed % len(spec.starts)]
        chosen = [rows[(start + i) % len(rows)] for i in range(spec.requests)]
    else:
        chosen = [rows[i] for i in rng.sample(range(len(rows)), min(spec.requests, len(rows)))]
        chosen += [rows[int(rng.random() * len(rows))] for _ in range(spec.requests - len(chosen))]
    arrivals_s, chosen = _arrivals(spec, rows, chosen, rng)
    chain = _Chain(block_size, spec.hot_tokens)
    return [
        _request(spec, i, at_s, row, chain, max_tokens, rng)
        for i, (at_s, row) in enumerate(zip(arrivals_s, chosen, strict=True))
    ]


def _arrivals(
    spec: WorkloadSpec, rows: Sequence[TraceRow], chosen: list[TraceRow], rng: Random
) -> tuple[list[float], list[TraceRow]]:
    count = len(chosen)
    if spec.arrivals != "trace":
        shape = spec.shape if spec.arrivals == "gamma" else 1.0
        at_s, instants = 0.0, []
        for _ in range(count):
            at_s += rng.gammavariate(shape, 1.0 / (shape * spec.rate_per_s))
            instants.append(at_s)
        return instants, chosen
    span_s = rows[-1].at_s + max(spec.batch_s, 1e-3)
    rounds, last_s = 0, chosen[0].at_s
    spread: list[tuple[float, int, TraceRow]] = []
    for row in chosen:
        rounds += row.at_s < last_s
        last_s = row.at_s
        spread.append((row.at_s + rounds * span_s + rng.random() * spec.batch_s, len(spread), row))
    spread.sort(key=lambda item: item[:2])
    first_s = spread[0][0]
    scale = count / spec.rate_per_s / max(spread[-1][0] - first_s, 1e-9)
    return [(at_s - first_s) * scale for at_s, _, _ in spread], [row for _, _, row in spread]


def _request(
    spec: WorkloadSpec, index: int, at_s: float, row: TraceRow, chain: "_Chain", max_tokens: int, rng: Random
) -> SimRequest:
    output = min(row.output_tokens, max_tokens // 2)
    prompt = min(row.prompt_tokens, max_tokens - output)
    hot = spec.hot_share > 0 and rng.random() < spec.hot_share
    prefix = chain.prefix(row, prompt, hot)
    seen = prefix if spec.unrecognised <= 0 or rng.random() >= spec.unrecognised else ()
    return SimRequest(str(index), at_s, prompt, output, told(output, spec.length_error, rng), prefix, seen, row.session)


def told(output_tokens: int, error: float, rng: Random) -> LengthEstimate:
    """What a predictor with this relative error (one standard deviation) says of a true length."""
    if error <= 0:
        return LengthEstimate(output_tokens, output_tokens, output_tokens, "oracle")
    factor = min(max(1.0 + rng.gauss(0.0, error), ERROR_MIN), ERROR_MAX)
    median = max(1, int(output_tokens * factor))
    low = max(1, int(median / (1.0 + Z90 * error)))
    high = max(median, int(median / max(1.0 - Z90 * error, 0.2)))
    return LengthEstimate(low, median, high, f"simulated error {error:g}")


class _Chain:
    """Prefix hashes at the engines' block size: each distinct beginning gets its own number, whatever the trace hashed."""

    def __init__(self, block_size: int, hot_tokens: int) -> None:
        self._size = block_size
        self._hot_blocks = hot_tokens // block_size
        self._ids: dict[tuple[int, int], int] = {}

    def prefix(self, row: TraceRow, prompt_tokens: int, hot: bool) -> tuple[int, ...]:
        """The hashes of the full blocks of a prompt cut to `prompt_tokens`."""
        if not row.blocks:
            return ()
        blocks = self._blocks(row)[: prompt_tokens // self._size]
        if hot:
            for i in range(min(self._hot_blocks, len(blocks))):
                blocks[i] = -1 - i
        parent = -1
        hashes = []
        for block in blocks:
            parent = self._ids.setdefault((parent, block), len(self._ids))
            hashes.append(parent)
        return tuple(hashes)

    def _blocks(self, row: TraceRow) -> list[int]:
        ratio, rest = divmod(row.block_tokens, self._size)
        if ratio and not rest:
            return [block * ratio + i for block in row.blocks for i in range(ratio)]
        ratio, rest = divmod(self._size, row.block_tokens)
        if rest:
            raise ValueError(f"blocks of {row.block_tokens} tokens do not divide the engine's block size {self._size}")
        return [hash(row.blocks[i : i + ratio]) for i in range(0, len(row.blocks) - ratio + 1, ratio)]
