"""The gateway's picture of an engine, against an engine model that runs beside it."""

import math
from dataclasses import replace

import pytest

from gateway.jobs import Job
from predictor.forecast import Forecast
from predictor.instance import Instance
from predictor.mirror import Mirror
from predictor.pace import COMMON_MIN, Pace
from predictor.picture import counted
from predictor.prefill import StepCosts, step_costs
from predictor.profile import EngineLimits, StepProfile
from predictor.request import Finished, FirstToken, LengthEstimate, Request
from predictor.rest import Rest
from predictor.seats import context_tokens, prompt_tokens, queued_tokens, unstarted_tokens

PROFILE = StepProfile(0.010, 100e-6, 50e-6, 1e-9)
H = StepProfile(0.016, 60e-6, 38e-6, 27e-9, 1.2e-9, 128, 0.0005, "h")
LIMITS = EngineLimits(1000, 16, 8, 512, 8192)


def lengths(tokens: int) -> LengthEstimate:
    return LengthEstimate(tokens, tokens, tokens, "test")


def job(name: str, prompt: int = 1000, output: int = 50, prefix: tuple[int, ...] = (), block: int = 100) -> Job:
    return Job(name, "m", prompt, lengths(output), 0.0, prefix, "", block)


class Read:
    """A progress that the test sets."""

    def __init__(self, generated: int = 0, computed: int = -1) -> None:
        self.generated = generated
        self.computed = computed


def costs(profile: StepProfile = PROFILE) -> StepCosts:
    return step_costs(profile)


def test_the_closed_form_is_the_step_model_s() -> None:
    """A prompt of whole chunks alone costs what its steps cost, above the knee."""
    chunk, total, context = 512, 0.0, 0
    for _ in range(4):
        total += H.step_s(chunk, 0, 0, chunk * (context + chunk / 2))
        context += chunk
    knee_s = 4 * H.prefill_token_s * H.knee_tokens
    assert costs(H).prefill_s(2048, 0, 0, 0.0, 512) == pytest.approx(total + knee_s)
    assert costs().prefill_s(1000, 200, 3, 600.0, 512) == pytest.approx(2 * PROFILE.step_s(0, 3, 600) + 1000 * 100e-6)
    assert costs(H).step_s(200, 1000.0) == pytest.approx(H.step_s(0, 200, 1000))
    assert costs(H).step_s(0, 0.0) == H.base_s


def test_an_idle_engine_has_nothing() -> None:
    made = Mirror(PROFILE, LIMITS)
    made.look(5.0)
    assert (made.lag_s, made.pending_tokens, made.decodes, made.backlog_s(), made.staleness_s(5.0)) == (0, 0, 0, 0, 0)
    assert made.room == 512
    assert made.ttft_s(1000, 0) == pytest.approx(2 * 0.010 + 1000 * 100e-6)


def test_a_prompt_is_computed_chunk_by_chunk() -> None:
    made = Mirror(PROFILE, LIMITS)
    assert made.dispatched(job("a", 1200), 0, 10.0) == pytest.approx(3 * 0.010 + 0.12)
    made.look(10.0)
    assert (made.pending_tokens, made.lag_s) == (1200 - 512, pytest.approx(0.0612))
    made.look(10.07)
    assert (made.pending_tokens, made.lag_s) == (1200 - 1024, pytest.approx(0.0524))
    assert made.opens_s(10.07, 0) == pytest.approx(10.1224)
    made.look(10.13)
    assert made.pending_tokens == 0


def test_the_next_prompt_waits_for_the_step_in_progress() -> None:
    made = Mirror(PROFILE, LIMITS)
    made.dispatched(job("a", 100), 0, 0.0)
    made.dispatched(job("b", 300), 0, 0.001)
    made.look(0.002)
    assert (made.pending_tokens, made.lag_s) == (300, pytest.approx(0.018))
    assert made.opens_s(0.002, 0) == pytest.approx(0.020)
    made.look(0.0205)
    assert (made.pending_tokens, made.opens_s(0.0205, 0)) == (0, 0.0205)


def test_hits_are_not_computed_and_one_token_always_is() -> None:
    made = Mirror(PROFILE, LIMITS)
    first = job("a", 1000, prefix=(1, 2, 3, 4, 5, 6, 7, 8, 9, 10))
    assert made.hit_tokens(first) == 0
    made.dispatched(first, 0, 0.0)
    assert made.hit_tokens(job("b", 1000, prefix=(1, 2, 3, 99))) == 300
    assert made.hit_tokens(job("c", 1000, prefix=first.prefix)) == 900, "one token is computed, so its block is"
    assert made.hit_tokens(job("d", 1001, prefix=first.prefix)) == 1000
    assert made.index.capacity_blocks == 160
    made.restarted()
    assert made.hit_tokens(job("b", 1000, prefix=(1, 2, 3, 99))) == 0


def test_a_first_token_means_that_earlier_prompts_are_done() -> None:
    made = Mirror(PROFILE, LIMITS)
    for name in "ab":
        made.dispatched(job(name, 2000), 0, 0.0, Read())
    made.first_token("b", 0.05)
    made.look(0.05)
    assert (made.pending_tokens, made.decodes) == (0, 1)
    made.first_token("a", 0.06)
    made.first_token("a", 0.07)
    made.first_token("unknown", 0.07)
    made.look(0.2)
    assert (made.decodes, made.kv_tokens) == (2, 4000.0)


def test_progress_is_read_when_needed() -> None:
    made, progress = Mirror(PROFILE, LIMITS), Read()
    made.dispatched(job("a", 1000, 50), 0, 0.0)
    made.started("a", progress)
    made.first_token("a", 0.2)
    progress.generated = 30
    made.look(0.5)
    assert (made.kv_tokens, queued_tokens(made.seats)) == (1030.0, 20)
    progress.generated = 60
    assert queued_tokens(made.seats) == 10, "longer than expected: a little more is expected"
    assert (prompt_tokens(made.seats), context_tokens(made.seats), unstarted_tokens(made.seats)) == (1000, 1060, 0)


def test_computed_tokens_that_somebody_tells_win_over_reckoning() -> None:
    made, progress = Mirror(PROFILE, LIMITS), Read(computed=0)
    made.dispatched(job("a", 2000), 0, 0.0, progress)
    progress.computed = 1900
    made.look(0.001)
    assert made.pending_tokens == 0
    made.first_token("a", 0.3)
    progress.generated, progress.computed = 5, 400
    made.look(0.5)
    assert made.pending_tokens == 1605 - made.room or made.pending_tokens > 0, "preempted: computed again"
    assert made.opens_s(0.5, 0) == math.inf


def test_without_progress_tokens_are_reckoned() -> None:
    made = Mirror(PROFILE, LIMITS)
    made.dispatched(replace(job("a", 100, 1000), streams=False), 0, 0.0)
    for now_s in (0.021, 0.5, 1.0):
        made.look(now_s)
    assert made.decodes == 1
    assert made.kv_tokens == pytest.approx(100 + (1.0 - 0.021) / 0.01005, abs=2)


def test_ends_give_everything_back() -> None:
    made = Mirror(PROFILE, LIMITS)
    for name in "abc":
        made.dispatched(job(name, 700, prefix=(1, 2, 3)), 0, 0.0, Read())
    made.first_token("a", 0.1)
    made.finished("a", 0.2)
    made.finished("b", 0.3)
    made.lost("c")
    for gone in "abc":
        made.finished(gone, 0.4)
        made.lost(gone)
    made.look(0.5)
    assert (len(made), made.pending_tokens, made.decodes, made.kv_tokens, made.lag_s) == (0, 0, 0, 0.0, 0.0)
    assert made.memory.pinned_tokens == 0
    assert made.fits(job("d", 16000 - 50), 0.5), "an empty engine takes anything"


def test_memory_at_the_peak_decides_what_fits() -> None:
    made = Mirror(PROFILE, LIMITS)  # 16,000 tokens
    made.dispatched(job("a", 7000, 1000), 0, 0.0, Read())
    assert made.fits(job("b", 6000, 1000), 0.05), "15,000 of 15,200"
    assert not made.fits(job("b", 7000, 1000), 0.05), "16,000"
    assert made.fits(job("b", 7000, 1000), 0.0)
    assert made.fits(job("b", 7900, 100), 0.05), "ends soon: 7000 + 100 + 7900 + 100 = 15,100, then 8,000"
    shared = job("c", 7000, 1000, tuple(range(70)))
    made.dispatched(shared, 0, 0.0, Read())
    twin, other = (job("d", 7000, 100, prefix) for prefix in (tuple(range(70)), tuple(range(100, 170))))
    assert made.fits(twin, 0.0), "a shared prefix counts once: 7000 + 8000 + 1000"
    assert not made.fits(other, 0.0)
    assert not made.fits(twin, 0.05)
    made.lost("a")
    assert made.fits(twin, 0.05)


def test_others_traffic_counts_until_the_next_report() -> None:
    made = Mirror(PROFILE, LIMITS)
    made.reported(3, 0.5)
    made.look(0.0)
    assert (made.foreign, made.foreign_tokens, made.decodes) == (3, 8000, 3)
    assert not made.fits(job("a", 8000, 10), 0.0)
    made.reported(0, 0.0)
    made.look(1.0)
    assert (made.foreign, made.foreign_tokens) == (0, 0)
    made.dispatched(job("a", 1000), 0, 1.0)
    made.reported(1, 0.07)
    assert (made.foreign, made.foreign_tokens) == (0, 0)


def test_what_is_late_is_expected_to_stay_late_for_as_long_again() -> None:
    made = Mirror(PROFILE, LIMITS)
    made.dispatched(job("a", 100), 0, 0.0, Read())
    made.look(0.0)
    assert made.overdue_s == 0.0
    made.look(3.02)
    assert made.overdue_s == pytest.approx(3.0)
    assert made.lag_s == pytest.approx(3.0)
    assert made.staleness_s(3.02) == pytest.approx(3.02)
    made.first_token("a", 3.1)
    made.look(3.1)
    assert (made.overdue_s, made.staleness_s(3.2)) == (0.0, pytest.approx(0.1))


@pytest.mark.parametrize("factor", [0.5, 1.0, 3.0, 10.0, 1000.0])
def test_a_common_pace_learns_from_first_tokens_how_much_slower_steps_are(factor: float) -> None:
    common = Pace(COMMON_MIN)
    made, other, now_s = (*(Mirror(PROFILE, LIMITS, learns=True, common=common) for _ in range(2)), 0.0)
    for number in range(40):
        made.dispatched(job(str(number), 1000), 0, now_s, Read())
        now_s += factor * 0.12
        made.first_token(str(number), now_s)
        made.finished(str(number), now_s)
        now_s += 1.0
    assert made.pace == pytest.approx(min(factor, math.exp(5.0)), rel=0.14)
    assert made.ttft_s(1000, 0) == pytest.approx(0.12 * made.pace)
    assert other.take_pace()
    assert other.pace == made.pace, "one like it, never asked"
    assert (made.error > math.log(4.0)) is (factor > 200), "beyond what pace may be, the error stays"


@pytest.mark.parametrize(("foretold_s", "seen_s", "too_far"), [(0.02, 0.15, False), (0.15, 0.02, False), (0.5, 4.0, True)])
def test_what_is_off_by_a_few_steps_is_not_far_off(foretold_s: float, seen_s: float, too_far: bool) -> None:
    pace = Pace()
    for _ in range(100):
        pace.first_token(foretold_s, seen_s)
    assert (pace.error > math.log(4.0)) is too_far


@pytest.mark.parametrize("factor", [0.2, 1.0, 1.03, 4.0])
def test_pace_learns_from_the_tokens_of_running_requests(factor: float) -> None:
    """Its first token came late for another reason; its tokens tell how long steps are."""
    made, progress = Mirror(PROFILE, LIMITS, learns=True), Read()
    made.dispatched(job("a", 1000, 10000), 0, 0.0, progress)
    made.first_token("a", 5.0)
    for tenth in range(600):
        now_s = 5.0 + tenth / 10
        progress.generated = 1 + int((now_s - 5.0) / (0.01005 * factor))
        made.look(now_s)
    assert made.pace == pytest.approx(factor if factor != 1.03 else 1.0, rel=0.14)


def test_a_stream_whose_first_token_is_late_is_not_reckoned_to_decode() -> None:
    """It waits for memory, and what is computed meanwhile is still its prompt: no window of the pace may say otherwise."""
    made, progress = Mirror(PROFILE, LIMITS, learns=True), Read()
    made.dispatched(job("a", 1000, 10000), 0, 0.0, progress)
    made.first_token("a", 0.1)
    made.dispatched(job("b", 8000, 100), 0, 0.2)
    for tenth in range(3, 100):
        progress.generated = tenth // 3  # steps are long: prompts are computed in them
        made.look(tenth / 10)
    assert made.decodes == 1
    assert made.overdue_s > 5
    assert made.pace == 1.0


def test_an_answer_without_a_stream_tells_only_that_an_engine_is_faster() -> None:
    made = Mirror(PROFILE, LIMITS, learns=True, common=Pace(COMMON_MIN))
    made.dispatched(job("a", 1000), 0, 0.0)
    made.finished("a", 60.0)
    assert (made.pace, made.error) == (1.0, 0.0)
    for number in range(20):
        made.dispatched(job(str(number), 8000), 0, 100.0 + number)
        made.finished(str(number), 100.05 + number)
    assert made.pace < 0.2
    assert made.ttft_s(8000, 0) < 0.1


class Beside:
    """An Instance driven beside a mirror; time is the instance's."""

    def __init__(self, *, sees: bool) -> None:
        self.engine = Instance(PROFILE, LIMITS)
        self.mirror = Mirror(PROFILE, LIMITS, sight=self.engine if sees else None)

    def send(self, name: str, prompt: int, output: int, now_s: float) -> float:
        wait_s = self.mirror.dispatched(job(name, prompt, output), 0, now_s)
        self.engine.submit(Request(name, prompt, output, now_s), now_s)
        self.mirror.started(name, Read() if self.mirror._sight is None else self.engine.progress(name))
        return now_s + wait_s

    def run(self) -> dict[str, float]:
        first_s = {}
        while (ends_s := self.engine.step_ends_at_s) is not None:
            for event in self.engine.finish_step(ends_s):
                if isinstance(event, FirstToken):
                    first_s[event.request_id] = event.at_s
                    self.mirror.first_token(event.request_id, event.at_s)
                elif isinstance(event, Finished):
                    self.mirror.finished(event.request_id, event.at_s)
        return first_s


def test_who_was_passed_by_a_later_one_does_not_make_its_engine_late() -> None:
    """It waits for a grammar, say, or for KV from elsewhere, and the engine computes the others meanwhile."""
    made = Mirror(PROFILE, LIMITS)
    made.dispatched(job("waits"), 0, 0.0)
    made.dispatched(job("passes"), 0, 0.1)
    made.look(3.0)
    assert made.overdue_s > 2.0
    made.first_token("passes", 3.0)
    made.finished("passes", 4.0)
    made.look(30.0)
    assert (made.overdue_s, len(made.filling)) == (0.0, 1)
    assert made.lag_s < 0.1
    wait_s = made.dispatched(job("new"), 0, 30.0)
    made.look(40.0)
    assert made.overdue_s == pytest.approx(10.0 - wait_s), "it has come to a stop for all"
    made.first_token("waits", 41.0)
    made.look(41.0)
    assert made.overdue_s == pytest.approx(11.0 - wait_s)


def test_what_others_sent_costs_nothing_once_it_is_over() -> None:
    made, fresh = Mirror(PROFILE, LIMITS), Mirror(PROFILE, LIMITS)
    made.reported(6, 0.5)
    made.look(1.0)
    assert made.decodes == 6
    made.reported(0, 0.0)
    for mirror in (made, fresh):
        mirror.look(2.0)
    for name in ("decodes", "kv_tokens", "step_s", "room", "lag_s"):
        assert getattr(made, name) == getattr(fresh, name), name


@pytest.mark.parametrize("sees", [True, False])
def test_predicted_first_tokens_are_the_engine_s(sees: bool) -> None:
    beside = Beside(sees=sees)
    expected = {name: beside.send(name, prompt, 20, 0.0) for name, prompt in (("a", 1024), ("b", 500), ("c", 1500))}
    assert beside.run() == pytest.approx(expected, rel=0.03)
    beside.mirror.look(100.0)
    assert len(beside.mirror) == 0


def test_a_snapshot_is_a_state_that_a_what_if_takes() -> None:
    beside = Beside(sees=True)
    for number in range(12):
        beside.send(str(number), 700, 5, 0.0)
    snapshot = beside.mirror.snapshot(0.0)
    assert len(snapshot.running) + len(snapshot.waiting) == 12
    assert len(snapshot.running) <= LIMITS.max_num_seqs
    assert snapshot.free_blocks == 1000 - 44 * len(snapshot.running)
    assert all(who.computed_tokens < who.prompt_tokens for who in snapshot.waiting)


def test_a_what_if_goes_by_what_remains_and_room_by_what_was_expected() -> None:
    made, progress = Mirror(PROFILE, LIMITS), Read()
    told = LengthEstimate(20, 50, 200, "t")
    made.dispatched(replace(job("a", 1000), lengths=told), 0, 0.0)
    made.started("a", progress)
    made.first_token("a", 0.2)
    progress.generated = 45
    (resident,) = made.snapshot(0.5).running
    assert resident.output_tokens == 45 + Rest(told).tokens(45) > 80
    assert queued_tokens(made.seats) == 10


def test_counts_are_those_of_the_what_if() -> None:
    made = Mirror(PROFILE, LIMITS)
    for number in range(12):
        made.dispatched(job(str(number), 300 + number, 20), 0, 0.0)
    for at_s, name in ((0.5, "0"), (0.6, "1")):
        made.first_token(name, at_s)
    forecast = Forecast(PROFILE, LIMITS)
    forecast.load(made.snapshot(0.7))
    replied, told = forecast.reply(Request("x", 10, 10, 0.7)), counted(made.seats, LIMITS, 0.7)
    for name in ("running", "waiting", "free_blocks", "waiting_blocks", "queued_tokens"):
        assert getattr(told, name) == getattr(replied, name), name
