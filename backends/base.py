"""What the gateway asks of an engine adapter, and the errors that adapters speak in. Pure.

Foreign exceptions are mapped to ProbeFailedError once, at the boundary (control_http.py). The relay moves the bytes of
requests itself; adapters only identify and probe; what moves models is a mover (moves.py).
"""

from dataclasses import dataclass, replace
from typing import Literal, Protocol

import orjson

Kind = Literal["unknown", "generate", "pooling"]
CANNOT = (501, 505)  # about the request: the server works, but has no such route or makes no tokens, or speaks no such HTTP


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much an engine says that it holds and computes at once, in vLLM's words; 0: it does not say."""

    kv_blocks: int = 0
    block_size: int = 0
    max_num_seqs: int = 0
    max_num_batched_tokens: int = 0


UNSAID = Sizes()


@dataclass(frozen=True, slots=True)
class Identity:
    """What probing found out about a backend. `max_model_len` in tokens, 0 when unknown; `scheduling` is how it orders its
    queue, as config.Scheduling has it, "" when it does not say. `body_session`: its KV events name the `session_id` of a
    request's body, and it keeps nothing else by that. `recall`: the member of a generation's body by whose value it can be
    told that nobody wants the answer any more; "": none. `instance` is the mark of a Leeway gateway that stands there."""

    engine: str
    version: str = ""
    models: tuple[str, ...] = ()
    kind: Kind = "unknown"
    max_model_len: int = 0
    scheduling: str = ""
    sizes: Sizes = UNSAID
    body_session: bool = False
    recall: str = ""
    instance: str = ""

    def completed(self, before: "Identity") -> "Identity":
        """With what the same process said `before` where it says nothing now: a busy one may be late with an answer."""
        if before.engine != self.engine:
            return self
        return replace(
            self,
            version=self.version or before.version,
            scheduling=self.scheduling or before.scheduling,
            sizes=before.sizes if self.sizes == UNSAID else self.sizes,
            body_session=self.body_session or (self.sizes == UNSAID and before.body_session),
        )


@dataclass(frozen=True, slots=True)
class EngineReport:
    """What an engine's /metrics tell of it: requests running and waiting (-1: not said), share of the KV in use (-1: not
    said), KV blocks and tokens in each (0: not said); its steps by their tokens, as (bound, steps up to it) from its start;
    `waiting` of the requests do (-1: not said)."""

    requests: int = -1
    kv_usage: float = -1.0
    kv_blocks: int = 0
    block_size: int = 0
    steps: tuple[tuple[float, float], ...] = ()
    waiting: int = -1


class ProbeFailedError(Exception):
    """A control request failed; the message may be shown to an operator, never to a client."""


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer on the control path; `body` is bounded by the caller's limit."""

    status: int
    body: bytes

    def json(self) -> dict[str, object]:
        """The body as a JSON object. Raises ProbeFailedError."""
        try:
            parsed = orjson.loads(self.body)
        except orjson.JSONDecodeError:
            raise ProbeFailedError("the answer is not JSON") from None
        if not isinstance(parsed, dict):
            raise ProbeFailedError("the answer is not a JSON object")
        return parsed


class ControlHttp(Protocol):
    """Control requests to one backend. Raises ProbeFailedError on anything but an HTTP answer."""

    async def get(self, path: str) -> Reply: ...
    async def post(self, path: str, body: dict[str, object]) -> Reply: ...


class Adapter(Protocol):
    """One kind of engine."""

    async def identify(self, http: ControlHttp) -> Identity: ...
    async def check(self, http: ControlHttp) -> None: ...
    async def generates(self, http: ControlHttp, model: str) -> bool: ...
    async def report(self, http: ControlHttp) -> EngineReport | None: ...
    async def recall(self, http: ControlHttp, engine_id: str) -> None: ...
