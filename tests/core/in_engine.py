"""A request as an engine's scheduler holds it, for whatever publishes a scheduler's queues."""

from dataclasses import dataclass, field


@dataclass(eq=False)
class InEngine:
    """Names are vLLM's; `leeway_expected` is what our scheduler class adds."""

    request_id: str
    num_prompt_tokens: int
    num_computed_tokens: int = 0
    max_tokens: int = 100
    leeway_expected: int = 50
    output: list[int] = field(default_factory=list)

    @property
    def num_output_tokens(self) -> int:
        return len(self.output)
