"""How long an idle backend connection may be trusted: learned, never guessed. Pure.

A server closes idle connections after a limit of its own (vLLM: 5 s). A request written at that very moment is lost,
and a POST may not be sent again. So a connection is used only while it is younger, in idle time, than 0.8 x what some
connection to this backend has already survived (or than a small figure that is always trusted); older ones stay
in the pool as canaries that show how long the server really waits. An observed close lowers the trust until it is
forgotten: a server that is restarted closes its connections at any age, and that says nothing of the next one.
"""

MARGIN = 0.8
LESSON_S = 30.0  # how long an observed close counts when no other follows


class IdleTrust:
    """The learned idle limit of one backend, in seconds."""

    __slots__ = ("_cap_s", "_closed_s", "_survived_s", "_unproven_s", "limit_s")

    def __init__(self, cap_s: float, unproven_s: float) -> None:
        self._cap_s = cap_s
        self._unproven_s = unproven_s
        self._survived_s = 0.0
        self._closed_s = float("inf")
        self.limit_s = 0.0  # idle age up to which a connection may be used
        self._learned()

    def _learned(self) -> None:
        # kept, not computed at each use: it is read for every request
        proven = min(self._survived_s, self._closed_s) * MARGIN
        unproven = min(self._unproven_s, self._closed_s * MARGIN)
        self.limit_s = min(self._cap_s, max(proven, unproven))

    @property
    def canary_s(self) -> float:
        """Idle age up to which a connection is kept at all."""
        return min(self._cap_s / MARGIN, self._closed_s)

    def survived(self, age_s: float) -> None:
        """A connection was seen alive after `age_s` of idling."""
        if age_s > self._survived_s:
            self._survived_s = age_s
            self._learned()

    def closed(self, age_s: float) -> None:
        """The server closed a connection after `age_s` of idling."""
        self._closed_s = min(self._closed_s, age_s)
        self._learned()

    def forget(self) -> None:
        """Let the observed close go. Trust stays as low as it made it, and grows by what connections survive anew."""
        if self._closed_s < float("inf"):
            self._unproven_s = min(self._unproven_s, self._closed_s * MARGIN)
            self._survived_s = min(self._survived_s, self._closed_s)
            self._closed_s = float("inf")
            self._learned()

    def announced(self, limit_s: float) -> None:
        """The server named its limit (`Keep-Alive: timeout=`)."""
        if limit_s < self._closed_s:
            self._closed_s = limit_s
            self._survived_s = max(self._survived_s, limit_s)
            self._learned()
