"""What streams show of models whose layers may be split between GPU and CPU: a learnt offload curve for each. Pure.

A stream tells the rate of the part of the layers that lay on the device while it ran: tokens after its first byte over the
seconds from there to its end. It counts only if it ran as good as alone on the device, on a load of ours (else the part is
not known) and for long enough. The configured rates are where belief starts; other ones start it anew. It must never be
sure of what a file says: records are checked, and refused where the configuration has changed.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from gateway.accounts import Account
from gateway.swap_config import FootprintSpec
from predictor.kept import Kept, KeptError, State
from predictor.offload import OffloadCurve, OffloadFit, from_ends

FEW_TOKENS = 16
SHORT_S = 0.05
BESIDE = 0.1  # of a stream's time, in which another may have run
CONTEXT_KEPT = 50  # streams that the usual context is a mean of
CONTEXT_MAX = 1e8


@dataclass(slots=True)
class Known:
    """Of one model: rates as configured (all layers on the GPU, none), what is believed now, the usual context in tokens."""

    ends: tuple[float, float]
    fit: OffloadFit
    context_tokens: float = 0.0

    def curve(self) -> OffloadCurve:
        """As believed at the usual context."""
        return self.fit.at(self.context_tokens)

    def observe(self, fraction: float, rate_per_s: float, context_tokens: float) -> None:
        """A stream ran at that rate."""
        if self.fit.served(fraction, rate_per_s, context_tokens):
            self.context_tokens += (context_tokens - self.context_tokens) / min(self.fit.seen, CONTEXT_KEPT)


class OffloadRates:
    """See the module's words. `footprint` gives a model's, as configured now; `beside` says whether a request that is not over
    was sent to one of these backends before an instant. Nothing is kept of models without both rates."""

    def __init__(self, footprint: Callable[[str], FootprintSpec]) -> None:
        self.beside: Callable[[Collection[str], float], bool] = _nobody
        self._footprint = footprint
        self._known: dict[str, Known] = {}
        self._last_s: dict[str, float] = {}  # by device: when a request there was last over

    def of(self, model: str) -> Known | None:
        """What is believed of a model; None where it is not split."""
        spec, found = self._footprint(model), self._known.get(model)
        ends = (spec.gpu_tokens_per_s, spec.cpu_tokens_per_s)
        if min(ends) <= 0:
            return None
        if found is None or found.ends != ends:
            found = self._known[model] = Known(ends, OffloadFit(from_ends(*ends)))
        return found

    def slowdown(self, model: str, fraction: float) -> float:
        """How many times as long a token takes with that part of the layers on the device."""
        known = self.of(model) if fraction < 1 else None
        return known.curve().slowdown(fraction) if known is not None else 1.0

    def only(self, models: Collection[str], devices: Collection[str]) -> None:
        """There are no others from now on."""
        self._known = {model: known for model, known in self._known.items() if model in models}
        self._last_s = {device: last_s for device, last_s in self._last_s.items() if device in devices}

    def over(self, account: Account, device: str, fraction: float | None, since_s: float, backends: Collection[str]) -> None:
        """A request on that device is over. `fraction` of its model's layers lay there (None: nobody knows) since `since_s`;
        `backends` are all that share the device."""
        last_s = self._last_s.get(device, 0.0)
        self._last_s[device] = max(last_s, account.finished_s)
        if fraction is None or account.dispatched_s < since_s:
            return
        told = _told(account)
        known = self.of(account.model) if told is not None else None
        if told is None or known is None:
            return
        decode_s = account.finished_s - account.first_byte_s
        if last_s - account.first_byte_s <= BESIDE * decode_s and not self.beside(backends, account.finished_s):
            known.observe(fraction, *told)

    def states(self) -> Iterator[State]:
        """What is learnt, in pieces (predictor.kept)."""
        for model, known in list(self._known.items()):
            if known.fit.seen:
                yield {"model": model, "ends": known.ends, "context": known.context_tokens, **known.fit.state()}

    def restore(self, kept: Kept) -> None:
        """Take one piece over. Raises KeptError, also where the model is split no more, or has other rates now."""
        model = kept.text("model")
        known = self.of(model)
        if known is None or kept.numbers("ends", 2, 2, 0.0, 1e12) != list(known.ends):
            raise KeptError("learnt from other rates than those configured")
        fresh = Known(known.ends, OffloadFit(from_ends(*known.ends)), kept.number("context", 0.0, CONTEXT_MAX))
        fresh.fit.restore(kept)
        self._known[model] = fresh


def _nobody(_: Collection[str], __: float) -> bool:
    return False


def _told(account: Account) -> tuple[float, float] | None:
    """Tokens per second of a whole stream, and its mean context in tokens; None where it tells nothing."""
    tokens = account.produced_tokens
    decode_s = account.finished_s - account.first_byte_s
    whole = account.stream and account.end == "complete" and account.status == 200 and account.first_byte_s >= 0
    if not whole or tokens < FEW_TOKENS or decode_s < SHORT_S:
        return None
    prompt_tokens = account.prompt_tokens if account.prompt_tokens >= 0 else account.counted_tokens
    return (tokens - 1) / decode_s, min(prompt_tokens + tokens / 2, CONTEXT_MAX)
