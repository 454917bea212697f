"""Who of those that wait is planned to meet its deadline: Moore and Hodgson's rule, and a second chance. Pure.

By deadline, add up the work; when a deadline is passed, take the largest out, by work / tokens^alpha: as many as possible
are in time. Who is late is told by guarded costs. A guard makes a long prompt look hopeless that is in time as a rule, so
whoever was taken out returns if it is in time by its mean and that makes nobody late: demoting it would help no one.
"""

import heapq
import math

from predictor.waiting import Waiting


class MooreHodgson:
    """One planning of those in `live`, (deadline, number, who) in this order. Times in seconds: `start_s` is when service
    begins, `capacity` the service handed out per second, `stretch` multiplies costs and work, `hysteresis` is the share
    of its SLO by which one of tier 2 must be early; those who are begun go on `begun_s` before `start_s`."""

    def __init__(
        self,
        live: list[tuple[float, int, Waiting]],
        start_s: float,
        capacity: float,
        stretch: float,
        hysteresis: float,
        begun_s: float = 0.0,
    ) -> None:
        self._live = live
        self._start_s = start_s
        self._capacity = capacity
        self._stretch = stretch
        self._hysteresis = hysteresis
        self._begun_s = begun_s
        self._wanted: list[int] = []

    def tiers(self) -> list[int]:
        """The tier of each. The heap is made when the first has to go: with nobody late there is none."""
        stretch, capacity, wanted, begun_s = self._stretch, self._capacity, self._wanted, self._begun_s
        heap: list[tuple[float, int, float]] = []
        heaped = hopeful = False
        begin_s = start_s = self._start_s
        for place, (limit_s, _, waiting) in enumerate(self._live):
            cost_s = waiting.cost_s * stretch
            if waiting.tier == 2:
                limit_s -= self._hysteresis * waiting.slo_s
            if begun_s and waiting.begun:
                limit_s += begun_s
            if start_s + cost_s > limit_s:  # not even alone
                wanted.append(2)
                hopeful = hopeful or start_s + waiting.mean_s * stretch <= limit_s
                continue
            wanted.append(1)
            work_s = waiting.work_s * stretch
            if begin_s + cost_s <= limit_s:
                begin_s += work_s / capacity
                if heaped:
                    heapq.heappush(heap, (-work_s * waiting.weight, place, work_s))
                continue
            if heaped:
                _, out, spared_s = heapq.heappushpop(heap, (-work_s * waiting.weight, place, work_s))
            else:
                heap, heaped = self._heap(), True
                _, out, spared_s = heapq.heappop(heap)
            wanted[out] = 2
            while out != place:
                begin_s -= spared_s / capacity
                if begin_s + cost_s <= limit_s:
                    begin_s += work_s / capacity
                    break
                _, out, spared_s = heapq.heappop(heap)
                wanted[out] = 2
        if heaped or hopeful:
            self._second_chance()
        return wanted

    def _heap(self) -> list[tuple[float, int, float]]:
        """Those that are in tier 1 so far, the largest at the top."""
        stretch = self._stretch
        heap = [
            (-stretch * item[2].work_s * item[2].weight, place, stretch * item[2].work_s)
            for place, (item, tier) in enumerate(zip(self._live, self._wanted, strict=False))
            if tier == 1
        ]
        heapq.heapify(heap)
        return heap

    def _second_chance(self) -> None:
        """From the last deadline to the first: whose work fits into the slack of all behind it returns."""
        stretch, wanted = self._stretch, self._wanted
        begin_s, begins = self._start_s, []
        for (_, _, waiting), tier in zip(self._live, wanted, strict=True):
            begins.append(begin_s)
            if tier == 1:
                begin_s += waiting.work_s * stretch / self._capacity
        slack_s = math.inf
        for place in range(len(wanted) - 1, -1, -1):
            waiting = self._live[place][2]
            left_s = waiting.deadline_s - begins[place]
            if waiting.tier == 2:
                left_s -= self._hysteresis * waiting.slo_s
            if waiting.begun:
                left_s += self._begun_s
            if wanted[place] == 1:
                slack_s = min(slack_s, left_s - waiting.cost_s * stretch)
                continue
            spare_s, work_s = left_s - waiting.mean_s * stretch, waiting.work_s * stretch / self._capacity
            if spare_s >= 0 and work_s <= slack_s:
                wanted[place] = 1
                slack_s = min(slack_s - work_s, spare_s)
