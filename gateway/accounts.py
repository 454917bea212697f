"""What one finished request leaves behind: a record for the access log and the metrics. Pure.

The end kinds are those of the reliability goal: each accepted request has exactly one.
"""

from dataclasses import dataclass
from typing import Literal

End = Literal["complete", "refused", "failed_before_first_byte", "failed_in_stream", "client_gone"]


@dataclass(slots=True)
class Account:
    """Filled while the request runs; times are loop seconds, -1 for what did not happen; tokens -1 when unknown."""

    request_id: str
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
    arrived_s: float = 0.0
    accepted_s: float = -1.0
    dispatched_s: float = -1.0
    sent_s: float = -1.0
    first_byte_s: float = -1.0
    finished_s: float = 0.0

    @property
    def ttft_s(self) -> float:
        """Arrival to the first byte relayed; -1 when there was none."""
        return self.first_byte_s - self.arrived_s if self.first_byte_s >= 0 else -1.0

    @property
    def queue_s(self) -> float:
        """Body read to dispatch; -1 when never dispatched."""
        return self.dispatched_s - self.accepted_s if self.dispatched_s >= 0 else -1.0
