"""Whose turn it is, whatever his size: who has seen enough work go since he came. Pure; one for each line.

    turn:  work sent since it came >= after x work that waits now        (the heaviest 0.8 %: LATER x after)

Work is in seconds of a replica (gateway.lanes). What is sent in a second does not depend on the order, so what has been sent
since somebody came tells how far first come, first served would be: had all that waited before him gone, it would be the line
that he met. He is held against the line of now, since in a line that grows it is those who come later who wait longest there:
others may pass him until he has waited about as long as they would, and no longer. In a short line little is passed, in one
that is getting shorter nobody is. So the tail is about that of the order of arrival, and the gain is all that lies below it.
The lightest, who make up a twentieth of all work, pass turns, too: that costs the others a twentieth, and is about half of the
requests. The heaviest few stand back behind all: they are a large part of the work, and what they give lets the others pass;
they wait for a few times the line. After `age_s` nobody is passed any more. There is no way to give to some without taking
from others (docs/papers/astrolabe.md).
"""

from collections import deque

from gateway.handicap import Sizes
from gateway.plan import AGED, Ticket

HEAVIEST_SHARE = 0.008  # below one in a hundred, so that the 99th percentile is of the others
LATER = 7.5
LIGHTEST_WORK = 0.05
LOOKS = 32  # arrivals between two looks at who is light
GONE = -1  # or never came


class Turns:
    """See the module's words. `after`: 0 gives nobody a turn."""

    __slots__ = (
        "_after",
        "_age_s",
        "_all",
        "_came",
        "_given",
        "_heavy",
        "_light_s",
        "_others",
        "_sent_s",
        "_sizes",
        "_waiting",
        "_waiting_s",
    )

    def __init__(self, after: float, age_s: float) -> None:
        self._after, self._age_s = after, age_s
        self._sizes = Sizes()
        self._all: deque[Ticket] = deque()
        self._others: deque[Ticket] = deque()
        self._heavy: deque[Ticket] = deque()
        self._sent_s = self._waiting_s = 0.0
        self._light_s = 0.0
        self._waiting = self._given = self._came = 0

    def came(self, ticket: Ticket, work_s: float) -> None:
        """Before it joins the line: its group decides on its place there."""
        self._sizes.saw(work_s)
        self._came += 1
        if self._came % LOOKS == 0:
            self._light_s = self._sizes.least(LIGHTEST_WORK)
        ticket.work_s, ticket.sent_before_s, ticket.turn = work_s, self._sent_s, 0
        if work_s < self._light_s:
            ticket.group = -1
        elif self._sizes.longest(work_s, HEAVIEST_SHARE):
            ticket.group = 1
            self._heavy.append(ticket)
        else:
            self._others.append(ticket)
        self._all.append(ticket)
        self._waiting += 1
        self._waiting_s += work_s

    def left(self, ticket: Ticket, sent: bool) -> None:
        """It left the line, to a replica or for good."""
        if ticket.turn == GONE:
            return
        ticket.turn = GONE
        self._waiting -= 1
        self._waiting_s -= ticket.work_s
        if sent:
            self._sent_s += ticket.work_s
        if not self._waiting:
            self._all.clear()
            self._others.clear()
            self._heavy.clear()
            self._sent_s = self._waiting_s = 0.0  # nothing refers to them: no error adds up

    def due(self, now_s: float) -> list[Ticket]:
        """Those whose turn it is since the last call, told so, in order of arrival; among them again who has had his and is
        passed by nobody any more."""
        limit_s = self._after * self._waiting_s
        found = self._due(self._others, limit_s)
        if self._heavy:
            found += self._due(self._heavy, LATER * limit_s)
        waiting = self._all
        while waiting and (waiting[0].turn == GONE or now_s - waiting[0].job.arrival_s >= self._age_s):
            ticket = waiting.popleft()
            if ticket.turn != GONE:
                self._given += 1
                ticket.group, ticket.turn = AGED, self._given
                found.append(ticket)
        return found

    def _due(self, queue: deque[Ticket], limit_s: float) -> list[Ticket]:
        found = []
        while queue and (queue[0].turn == GONE or self._sent_s - queue[0].sent_before_s >= limit_s):
            ticket = queue.popleft()
            if ticket.turn == 0:
                self._given += 1
                ticket.turn = self._given
                found.append(ticket)
        return found
