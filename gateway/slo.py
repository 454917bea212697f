"""What a request is promised: by its headers, its key's class, its model's or its route's. Pure.

Names that other gateways' clients send mean the same here. A target that is no number of milliseconds is refused, naming
its header, and so is a class that `x-slo-class` names and nobody has configured; a class or priority in another system's
words that fits nothing here says nothing. The client's own read time-out bounds what it is promised: a first token
after it is worth nothing. A head's `Asked` is kept with the head, so what is said in it is read once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gateway.config import DEFAULT_CLASS, ClassSpec
from gateway.signals import READ_TIMEOUT_HEADERS

NEVER = float("inf")
MS_MAX = 86_400_000.0
TTFT_HEADERS = (b"x-slo-ttft-ms", b"x-llm-d-slo-ttft-ms", b"x-dynamo-slo-ttft-ms")
TPOT_HEADERS = (b"x-slo-tpot-ms", b"x-llm-d-slo-tpot-ms", b"x-dynamo-slo-tpot-ms")
E2E_HEADERS = (b"x-slo-e2e-ms",)
CLASS_HEADER = b"x-slo-class"
CLASS_HINTS = (b"x-llm-d-inference-objective", b"x-smg-priority", b"x-dynamo-meta-policy-class")
PRIORITY_HEADERS = (
    b"x-request-priority",
    b"x-dynamo-request-priority",
    b"x-dynamo-request-strict-priority",
    b"x-vllm-priority",
)
TENANT_HEADERS = (b"x-llm-d-inference-fairness-id", b"x-tenant-id")
STRICT_HEADER = b"x-leeway-strict"
ADMIT_HEADER = b"x-leeway-admit"
WAIT_STATUS_HEADER = b"x-leeway-wait-status"
_SAYING = frozenset(
    (*TTFT_HEADERS, *TPOT_HEADERS, *E2E_HEADERS, CLASS_HEADER, *CLASS_HINTS, *PRIORITY_HEADERS)
    + (*TENANT_HEADERS, *READ_TIMEOUT_HEADERS, STRICT_HEADER, ADMIT_HEADER, WAIT_STATUS_HEADER)
)
_ON, _OFF = (b"1", b"true", b"yes"), (b"0", b"false", b"no", b"")


class SloError(ValueError):
    """A header says what cannot be meant; `header` is its name, the message is for the client."""

    def __init__(self, header: str, message: str) -> None:
        super().__init__(message)
        self.header = header


@dataclass(frozen=True, slots=True)
class Asked:
    """What one head says. Seconds; infinity: nothing. `hints` and `priority` are in other systems' words; `admit_now`:
    refuse rather than let it wait; `wait_status`: tell of the wait on the stream."""

    ttft_s: float = NEVER
    tpot_s: float = NEVER
    e2e_s: float = NEVER
    class_name: str = ""
    hints: tuple[str, ...] = ()
    priority: int | None = None
    read_s: float = NEVER
    tenant: str = ""
    strict: bool = False
    admit_now: bool = False
    wait_status: bool = False

    @property
    def targets(self) -> bool:
        """Whether it states a target itself."""
        return self.ttft_s < NEVER or self.tpot_s < NEVER or self.e2e_s < NEVER


@dataclass(frozen=True, slots=True)
class Promise:
    """What one request was promised: its class and its targets in seconds from its arrival (infinity: none)."""

    class_name: str
    ttft_s: float
    tpot_s: float
    e2e_s: float
    strict: bool = False

    @property
    def timed(self) -> bool:
        """Whether there is any target."""
        return self.ttft_s < NEVER or self.tpot_s < NEVER or self.e2e_s < NEVER


def asked(values: Mapping[bytes, bytes]) -> Asked | None:
    """What the header fields say (names in lower case); None where none of them is there. Raises SloError."""
    if _SAYING.isdisjoint(values):
        return None
    return Asked(
        ttft_s=_target_s(values, TTFT_HEADERS),
        tpot_s=_target_s(values, TPOT_HEADERS),
        e2e_s=_target_s(values, E2E_HEADERS),
        class_name=_class_name(values),
        hints=tuple([values[name][:64].decode(errors="replace").strip() for name in CLASS_HINTS if name in values]),
        priority=_priority(values),
        read_s=_read_s(values),
        tenant=_tenant(values),
        strict=_switch(values, STRICT_HEADER),
        admit_now=_one_of(values, ADMIT_HEADER, b"now"),
        wait_status=_one_of(values, WAIT_STATUS_HEADER, b"sse"),
    )


def _target_s(values: Mapping[bytes, bytes], names: Sequence[bytes]) -> float:
    """The shortest of the targets given under these names."""
    return min([_milliseconds(name, values[name]) / 1e3 for name in names if name in values], default=NEVER)


def _milliseconds(name: bytes, text: bytes) -> float:
    text = text.strip()
    if len(text) <= 16 and text.replace(b".", b"", 1).isdigit():
        value = float(text)
        if 0 < value <= MS_MAX:
            return value
    shown = text[:32].decode(errors="replace")
    raise SloError(name.decode(), f"The header {name.decode()} must be milliseconds, above 0 and at most a day, not {shown!r}.")


def _class_name(values: Mapping[bytes, bytes]) -> str:
    text = values.get(CLASS_HEADER)
    if text is None:
        return ""
    name = text.strip().decode(errors="replace")
    if not 0 < len(name) <= 64:
        raise SloError(CLASS_HEADER.decode(), f"The header {CLASS_HEADER.decode()} must name a class.")
    return name


def _tenant(values: Mapping[bytes, bytes]) -> str:
    for name in TENANT_HEADERS:
        if text := values.get(name):
            return text[:64].decode(errors="replace")
    return ""


def _priority(values: Mapping[bytes, bytes]) -> int | None:
    for name in PRIORITY_HEADERS:
        text = values.get(name, b"").strip()
        if 0 < len(text) <= 18 and text.removeprefix(b"-").isdigit():
            return int(text)
    return None


def _read_s(values: Mapping[bytes, bytes]) -> float:
    limit_s = NEVER
    for name in READ_TIMEOUT_HEADERS:
        text = values.get(name, b"")
        if text.replace(b".", b"", 1).isdigit() and len(text) < 12 and (value := float(text)) > 0:
            limit_s = min(limit_s, value)
    return limit_s


def _switch(values: Mapping[bytes, bytes], name: bytes) -> bool:
    text = values.get(name, b"").strip().lower()
    if text in _ON or text in _OFF:
        return text in _ON
    raise SloError(name.decode(), f"The header {name.decode()} must be true or false.")


def _one_of(values: Mapping[bytes, bytes], name: bytes, word: bytes) -> bool:
    text = values.get(name)
    if text is None:
        return False
    if text.strip().lower() != word:
        raise SloError(name.decode(), f"The header {name.decode()} can only be {word.decode()!r}.")
    return True


class ClassBook:
    """The configured classes, and which of them a request is in: the first of what its head names, what its priority
    selects, its key's, its model's and its route's."""

    def __init__(self, classes: Sequence[ClassSpec]) -> None:
        self._classes = {spec.name: spec for spec in classes}
        self._by_priority = {priority: spec.name for spec in classes for priority in spec.priorities}
        self._by_model = {model: spec.name for spec in classes for model in spec.models}
        self._by_route = {route: spec.name for spec in classes for route in spec.routes}

    def __len__(self) -> int:
        return len(self._classes)

    def promise(
        self, said: Asked | None, key_class: str, model: str, route: str, *, priority: int | None = None, stream: bool = True
    ) -> Promise | None:
        """What a request is promised; None when nothing is. Raises SloError when it names a class that is not there."""
        name = self._named(said, priority) or (key_class if key_class in self._classes else "")
        name = name or self._by_model.get(model, "") or self._by_route.get(route, "")
        spec = self._classes.get(name)
        if spec is None and (said is None or not said.targets):
            return None
        ttft_s, tpot_s, e2e_s = _targets(spec)
        strict = spec is not None and spec.strict
        if said is not None:
            ttft_s = said.ttft_s if said.ttft_s < NEVER else ttft_s
            tpot_s = said.tpot_s if said.tpot_s < NEVER else tpot_s
            e2e_s = said.e2e_s if said.e2e_s < NEVER else e2e_s
            strict = strict or said.strict
            if stream:
                ttft_s = min(ttft_s, said.read_s)
            else:
                e2e_s = min(e2e_s, said.read_s)  # all of a plain answer comes at its end
        return Promise(name or DEFAULT_CLASS, ttft_s, tpot_s, e2e_s, strict)

    def _named(self, said: Asked | None, priority: int | None) -> str:
        if said is not None:
            if said.class_name and said.class_name not in self._classes and said.class_name != DEFAULT_CLASS:
                known = ", ".join(sorted(self._classes)) or "none"
                raise SloError(CLASS_HEADER.decode(), f"There is no class {said.class_name!r}. Known classes: {known}.")
            if said.class_name:
                return said.class_name
            for hint in said.hints:
                if hint in self._classes:
                    return hint
            priority = priority if said.priority is None else said.priority
        return "" if priority is None else self._by_priority.get(priority, "")


def _targets(spec: ClassSpec | None) -> tuple[float, float, float]:
    if spec is None:
        return NEVER, NEVER, NEVER
    ttft_s, tpot_s, e2e_s = (value / 1e3 if value > 0 else NEVER for value in (spec.ttft_ms, spec.tpot_ms, spec.e2e_ms))
    return ttft_s, tpot_s, e2e_s
