"""What one finished request leaves behind: a record for the access log and the metrics. Pure.

The end kinds are those of the reliability goal: each accepted request has exactly one.
"""

from typing import Literal

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
    hit_tokens: int = 0  # of the prompt, expected in the engine's cache
    predicted_s: float = -1.0  # seconds from dispatch to the first token, as predicted
    truncated: bool = False  # the answer was cut off at a limit, as its engine says
    accepted_s: float = -1.0
    dispatched_s: float = -1.0
    sent_s: float = -1.0
    first_byte_s: float = -1.0
    finished_s: float = 0.0

    def __init__(self, arrived_s: float) -> None:
        self.arrived_s = arrived_s

    def __repr__(self) -> str:
        return f"<Account {self.request_id} {self.route} {self.model} {self.status} {self.end}>"

    @property
    def ttft_s(self) -> float:
        """Arrival to the first byte relayed; -1 when there was none."""
        return self.first_byte_s - self.arrived_s if self.first_byte_s >= 0 else -1.0

    @property
    def queue_s(self) -> float:
        """Body read to dispatch; -1 when never dispatched."""
        return self.dispatched_s - self.accepted_s if self.dispatched_s >= 0 else -1.0
