"""What one finished request leaves behind: a record for the access log and the metrics. Pure.

The end kinds are those of ARCHITECTURE.md: each accepted request has exactly one.
"""

from typing import Literal

from gateway.config import KeySpec
from gateway.jobs import Dispatch
from gateway.slo import NEVER, Promise
from gateway.trace import Trace
from predictor.mirror import Mirror

End = Literal["complete", "refused", "failed_before_first_byte", "failed_in_stream", "client_gone"]


class Account:
    """Filled while the request runs; times are loop seconds, -1 for what did not happen; tokens -1 when unknown.

    The defaults stand on the class: most requests set few fields, and each one set costs time on the hot path.
    """

    request_id: str = ""
    route: str = "other"
    model: str = ""
    key: str = ""
    backend: str = ""
    stream: bool = False
    status: int = 0
    end: End = "client_gone"
    reason: str = ""
    attempts: int = 0
    body_bytes: int = 0
    answer_bytes: int = 0
    events: int = 0
    prompt_tokens: int = -1
    output_tokens: int = -1
    truncated: bool = False  # the answer was cut off at a limit, as its engine says
    hit_tokens: int = 0  # of the prompt, expected in the engine's cache
    predicted_s: float = -1.0  # seconds from dispatch to the first token, as predicted
    accepted_s: float = -1.0
    dispatched_s: float = -1.0
    sent_s: float = -1.0
    first_byte_s: float = -1.0
    finished_s: float = 0.0
    owner: str = ""  # the SHA-256 of the key; "" of an open gateway
    weight: float = 1.0  # of the key, among those that wait
    tenant: str = ""  # whom its share in the line is counted for
    promise: Promise | None = None
    deadline_s: float = NEVER  # the instant by which the first token is promised
    tier: int = 1
    second_s: float = 0.0  # of the wait, in tier 2
    wait_told: bool = False  # the client was told of its wait, on the stream
    tag_s: float = 0.0  # of the wait, to know how long the answer may be
    swap_s: float = 0.0  # of the wait, while its model lay on no device
    probe_s: float = 0.0  # of the wait, for sidecars
    first_dispatched_s: float = -1.0  # of the first attempt
    asked_tokens: int = 0  # of the prompt, as estimated
    expected_tokens: int = 0  # of the answer
    work_s: float = -1.0  # predicted seconds to compute the prompt alone
    trace: Trace | None = None  # where spans are exported
    engine_id: str = ""  # what its engine knows it by, where it can be told that nobody wants the answer any more

    def __init__(self, arrived_s: float) -> None:
        self.arrived_s = arrived_s

    def __repr__(self) -> str:
        return f"<Account {self.request_id} {self.route} {self.model} {self.status} {self.end}>"

    def sent_by(self, key: KeySpec) -> None:
        """Whose request it is."""
        self.key, self.owner = key.name, key.sha256
        if key.weight != 1.0:
            self.weight = key.weight

    def first_token_due_s(self, decode_s: float) -> float:
        """The instant by which the first token must come, so that `decode_s` after it all of the promise is kept."""
        promise = self.promise
        assert promise is not None
        self.deadline_s = self.arrived_s + min(promise.ttft_s, promise.e2e_s - decode_s)
        return self.deadline_s

    def attempted(self) -> None:
        """An attempt that did not run is over."""
        if self.first_dispatched_s < 0:
            self.first_dispatched_s = self.dispatched_s

    def placed(self, dispatch: Dispatch, mirror: Mirror | None) -> None:
        """A desk sent it: for its budget, and for an engine that is told of that."""
        job = dispatch.job
        self.tier, self.second_s = dispatch.tier, dispatch.second_s
        self.asked_tokens, self.expected_tokens = job.prompt_tokens, job.lengths.q50
        if mirror is not None:
            self.work_s = mirror.work_s(job.prompt_tokens, min(dispatch.hit_tokens, job.prompt_tokens - 1))

    @property
    def counted_tokens(self) -> int:
        """Prompt tokens that are counted on the key when the request comes: by its size."""
        return self.body_bytes // 4

    @property
    def uncounted_tokens(self) -> int:
        """Tokens that were not counted then, once all of them are known."""
        output = self.output_tokens if self.output_tokens >= 0 else self.events
        return output + max(0, self.prompt_tokens - self.counted_tokens)

    @property
    def produced_tokens(self) -> int:
        """Output tokens of one that is over; -1 while it is not, and of a plain answer that did not tell."""
        if not self.finished_s:
            return -1
        return self.output_tokens if self.output_tokens >= 0 or not self.stream else self.events

    @property
    def begun(self) -> bool:
        """Whether its last attempt was sent: then it may have run."""
        return self.sent_s >= self.dispatched_s

    @property
    def ttft_s(self) -> float:
        """Arrival to the first byte relayed; -1 when there was none."""
        return self.first_byte_s - self.arrived_s if self.first_byte_s >= 0 else -1.0

    @property
    def queue_s(self) -> float:
        """Body read to dispatch; -1 when never dispatched."""
        return self.dispatched_s - self.accepted_s if self.dispatched_s >= 0 else -1.0
