"""One who waits in a tiered queue (predictor.queues): until when it must be served, and what that costs. Pure."""

import math


class Waiting:
    """One who waits. `deadline_s` is the instant by which its service must have ended (infinite: no SLO), `slo_s` the
    length of that SLO, `cost_s` the guarded seconds it needs, `mean_s` those it needs as a rule (default: the same),
    `work_s` those it takes from others (default: the same), `tokens` what it counts for in shares and in `alpha`.

    The queue that holds it sets `tier`, and the fields without explanation, which are its own. `begun` is for its owner to
    set: it is planned with the others, but taken by nobody. Raises ValueError for a cost or a number of tokens that is
    negative.
    """

    __slots__ = (
        "arrival_s",
        "begun",
        "cost_s",
        "deadline_s",
        "id",
        "key",
        "late_key",
        "live",
        "mean_s",
        "number",
        "slo_s",
        "tenant",
        "tier",
        "tokens",
        "weight",
        "work_s",
    )

    def __init__(
        self,
        request_id: str,
        arrival_s: float,
        cost_s: float,
        tokens: int,
        deadline_s: float = math.inf,
        tenant: str = "",
        work_s: float = -1.0,
        mean_s: float = -1.0,
    ) -> None:
        if not 0 <= cost_s < math.inf or tokens < 0:
            raise ValueError(f"request {request_id!r}: cost_s and tokens must not be negative")
        self.id = request_id
        self.tenant = tenant
        self.arrival_s = arrival_s
        self.deadline_s = deadline_s
        self.slo_s = deadline_s - arrival_s
        self.cost_s = self.mean_s = self.work_s = cost_s
        self.estimated(cost_s, work_s, mean_s)
        self.tokens = tokens
        self.tier = 1
        self.begun = False
        self.number = 0
        self.key = 0.0  # among those with a chance
        self.late_key: tuple[int, float] = (0, 0.0)  # in tier 2
        self.live = False
        self.weight = 1.0

    def estimated(self, cost_s: float, work_s: float, mean_s: float) -> None:
        """What it needs; below 0: the same as the guarded cost, which is the most that the mean can be here."""
        self.cost_s = cost_s
        self.work_s = work_s if work_s >= 0 else cost_s
        self.mean_s = min(mean_s, cost_s) if mean_s >= 0 else cost_s

    def __repr__(self) -> str:
        return f"<Waiting {self.id} tier={self.tier} cost_s={self.cost_s:.3f} deadline_s={self.deadline_s:.3f}>"
