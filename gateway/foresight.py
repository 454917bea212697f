"""Replies made here: what a sidecar would say of a replica, predicted from the gateway's own mirror. Pure."""

from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from math import exp

from backends.priorities import ORDERED
from gateway.jobs import Job
from gateway.views import View
from predictor import ordered
from predictor.forecast import Forecast
from predictor.mirror import Mirror
from predictor.picture import counted
from predictor.places import Comer, Places, Queueing
from predictor.request import Estimate, Request
from predictor.snapshot import ProbeReply, Resident, Snapshot

PACE_STEP = 0.01  # a smaller change of pace is not worth new coefficients


class Foresight:
    """One forecast for each mirror, tuned to its pace."""

    def __init__(self) -> None:
        self._forecasts: dict[str, tuple[Mirror, Forecast]] = {}
        self._paces: dict[str, float] = {}

    def reply(self, job: Job, view: View, now_s: float) -> ProbeReply | None:
        """What is to be expected of `job` there if it went now; None without a mirror."""
        mirror = view.mirror
        if mirror is None:
            return None
        forecast, snapshot, place = self._forecast(view.name, mirror), mirror.snapshot(now_s), -1
        hit_tokens = mirror.hit_tokens(job)
        if mirror.scheduling in ORDERED and (snapshot.waiting or (snapshot.running and mirror.scheduling == "leeway")):
            snapshot, place = placed(job, hit_tokens, mirror, snapshot, now_s)
        forecast.load(snapshot)
        request = Request(job.id, job.prompt_tokens, job.lengths.q50, job.arrival_s)
        return forecast.reply(request, hit_tokens=hit_tokens, place=place)

    @staticmethod
    def counts(view: View, now_s: float) -> ProbeReply | None:
        """The same for policies that go by counts: no estimate in it, and none paid for."""
        mirror = view.mirror
        if mirror is None:
            return None
        mirror.look(now_s)
        return counted(mirror.seats, mirror.limits, now_s)

    def forget(self, name: str) -> None:
        """The replica is gone."""
        self._forecasts.pop(name, None)
        self._paces.pop(name, None)

    def _forecast(self, name: str, mirror: Mirror) -> Forecast:
        known = self._forecasts.get(name)
        if known is None or known[0] is not mirror:
            known = self._forecasts[name] = (mirror, Forecast(mirror.profile, mirror.limits))
            self._paces[name] = 1.0
        forecast = known[1]
        if abs(mirror.pace - self._paces[name]) > PACE_STEP * mirror.pace:
            self._paces[name] = mirror.pace
            forecast.tune(mirror.profile.scaled(mirror.pace))
        forecast.spread = exp(mirror.error)
        forecast.least, forecast.most = mirror.learned.residuals.q10, mirror.learned.residuals.q90
        return forecast


def placed(job: Job, hit_tokens: int, mirror: Mirror, snapshot: Snapshot, now_s: float) -> tuple[Snapshot, int]:
    """The engine's queue in its order if the job came, and how many stand before that, where deadlines decide; with our
    scheduler also what that does to those who run."""
    seats = {seat.id: seat for seat in mirror.seats}
    queueing = Queueing("priority")
    if mirror.scheduling == "leeway":
        queueing = ordered.queueing(seats, snapshot, mirror.step_s * mirror.pace, mirror.costs.token_s * mirror.pace, now_s)
    places = Places(queueing, replace(snapshot, waiting=()))
    for who in snapshot.waiting:
        seat = seats[who.id]
        alone_s = mirror.work_s(seat.prompt_tokens, seat.hit_tokens)
        places.join(Comer(who, seat.arrival_s, seat.deadline_s, seat.class_name, seat.tier, alone_s))
    me = Resident(job.id, job.prompt_tokens, hit_tokens, 0, job.lengths.q50)
    alone_s = mirror.work_s(job.prompt_tokens, hit_tokens)
    comer = Comer(me, job.arrival_s, job.deadline_s, job.class_name, alone_s=alone_s)
    order, place = places.place(comer, now_s)
    return places.arranged(order, places.gives(comer, place, now_s)), place


class OwnDispatches:
    """What was sent to each replica lately: a reply knows only what was there when its state was taken, so what came
    since is added before it is compared (decided once, seen by all: concurrent requests do not herd)."""

    KEPT_S = 5.0

    def __init__(self) -> None:
        self._sent: dict[str, deque[tuple[float, Job, float]]] = {}

    def add(self, job: Job, name: str, work_s: float, now_s: float) -> None:
        """`job` goes there, to be computed in `work_s` alone."""
        sent = self._sent.get(name)
        if sent is None:
            sent = self._sent[name] = deque()
        while sent and now_s - sent[0][0] > self.KEPT_S:
            sent.popleft()
        sent.append((now_s, job, work_s))

    def forget(self, name: str) -> None:
        """The replica is gone."""
        self._sent.pop(name, None)

    def corrected(
        self, replies: Mapping[str, ProbeReply], block_size: Mapping[str, int], now_s: float, known_s: float
    ) -> dict[str, ProbeReply]:
        """The replies as they would be with what was sent since their state was taken, or since `known_s` if that is
        later: until then each dispatch had been reserved with whoever replied."""
        return {
            name: self._corrected(name, reply, block_size.get(name, 16), max(known_s, now_s - reply.snapshot_age_s))
            for name, reply in replies.items()
        }

    def _corrected(self, name: str, reply: ProbeReply, block_size: int, since_s: float) -> ProbeReply:
        delay_s = 0.0
        jobs = blocks = tokens = 0
        for at_s, job, work_s in reversed(self._sent.get(name, ())):
            if at_s <= since_s:
                break
            delay_s += work_s
            jobs += 1
            blocks += -(-job.prompt_tokens // block_size)
            tokens += job.prompt_tokens + job.lengths.q50
        if not jobs:
            return reply
        was = reply.estimate
        # made anew by hand: `replace` looks every field up by name, which cost more than all the rest of a choice
        estimate = Estimate(
            was.ttft_s + delay_s,
            was.tpot_s,
            was.e2e_s + delay_s,
            was.wait_s,
            was.preempt_p,
            was.kv_peak_blocks,
            was.harm_s,
            was.spread,
            was.least,
            was.most,
        )
        return ProbeReply(
            estimate,
            reply.running,
            reply.waiting + jobs,
            reply.free_blocks,
            reply.waiting_blocks + blocks,
            reply.queued_tokens + tokens,
            reply.snapshot_age_s,
        )
