"""What is believed of engines: settings over reports over profiles over a guess; and what their metrics say."""

from dataclasses import replace

import pytest

from backends.base import EngineReport, Sizes
from backends.metrics_text import labels_of, samples
from backends.sglang import sglang_report
from backends.vllm import vllm_report
from gateway.config import BackendSpec
from gateway.engines import GUESSED_LIMITS, GUESSED_STEPS, NOT_REPORTED, Engines, believed
from gateway.jobs import Job
from gateway.replica import Replica
from predictor.profile import PRESETS
from predictor.request import LengthEstimate

SPEC = BackendSpec("a", "http://a")
VLLM = b"""# HELP vllm:num_requests_running Number of requests in model execution batches.
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 2.0
vllm:num_requests_waiting{engine="0",model_name="m"} 4.0
vllm:num_requests_running_total{engine="0"} 999.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:cache_config_info{block_size="16",cache_dtype="auto",num_gpu_blocks="27500",engine="0"} 1.0
"""


def test_vllm_s_metrics() -> None:
    assert vllm_report(VLLM) == EngineReport(9, 0.25, 27500, 16, (), 4)
    steps = b"""vllm:iteration_tokens_total_bucket{engine="0",le="512.0",model_name="m"} 3.0
vllm:iteration_tokens_total_bucket{engine="1",le="512.0",model_name="m"} 4.0
vllm:iteration_tokens_total_bucket{engine="0",le="+Inf",model_name="m"} 8.0
vllm:iteration_tokens_total_bucket{engine="0",le="oops"} 8.0
vllm:iteration_tokens_total_sum{engine="0",model_name="m"} 99.0
"""
    assert vllm_report(VLLM + steps) == EngineReport(9, 0.25, 27500, 16, ((512.0, 7.0), (float("inf"), 8.0)), 4)
    assert vllm_report(b"process_cpu_seconds_total 5\n") is None
    assert vllm_report(VLLM.replace(b'"27500"', b'"None"')) == EngineReport(9, 0.25, 0, 16, (), 4)


def test_sglang_s_metrics() -> None:
    text = b"sglang:num_running_reqs 3\nsglang:num_queue_reqs 1\nsglang:token_usage 0.5\nsglang:max_total_num_tokens 400000\n"
    assert sglang_report(text) == EngineReport(4, 0.5, 400000, 1, (), 1)
    assert sglang_report(VLLM) is None


@pytest.mark.parametrize(
    ("text", "values"), [(b"x 1\nx NaN\nx +Inf\nx oops\nxy 7\n", [1.0]), (b"", []), (b'x{a="b"} 2e1\n', [20.0])]
)
def test_samples(text: bytes, values: list[float]) -> None:
    assert samples(text, "x") == values


def test_labels() -> None:
    assert labels_of(b'x{ab="1",b="2"} 1\n', "x", "b") == "2"
    assert labels_of(b"x 1\n", "x", "b") == labels_of(b"", "x", "b") == ""


def test_settings_win_over_reports_and_reports_over_the_profile() -> None:
    report = EngineReport(kv_blocks=500, block_size=32)
    assert believed(SPEC, NOT_REPORTED, 0) == (GUESSED_STEPS, GUESSED_LIMITS)
    _, limits = believed(SPEC, report, 8192)
    assert (limits.kv_blocks, limits.block_size, limits.max_model_len) == (500, 32, 8192)
    _, limits = believed(replace(SPEC, kv_blocks=700, max_num_seqs=4000), report, 10**9)
    assert (limits.kv_blocks, limits.max_num_seqs, limits.max_num_batched_tokens, limits.max_model_len) == (
        700,
        4000,
        4000,
        22400,
    )
    steps, limits = believed(replace(SPEC, profile="demo-fast"), NOT_REPORTED, 0)
    assert (steps, limits) == (PRESETS["demo-fast"].profile, PRESETS["demo-fast"].limits)
    steps, _ = believed(replace(SPEC, weight=2.0), NOT_REPORTED, 0)
    assert steps.base_s == pytest.approx(GUESSED_STEPS.base_s / 2)


def test_what_the_server_says_of_itself_stands_between_settings_and_reports() -> None:
    sizes, report = Sizes(6250, 64, 200, 4096), EngineReport(kv_blocks=400_001, block_size=1)
    _, limits = believed(SPEC, report, 8192, 512, sizes)
    assert (limits.kv_blocks, limits.block_size) == (6250, 64)
    assert (limits.max_num_seqs, limits.max_num_batched_tokens) == (200, 4096), "said, not found out"
    _, limits = believed(replace(SPEC, max_num_seqs=32, max_num_batched_tokens=1024, kv_blocks=99), report, 0, 512, sizes)
    assert (limits.max_num_seqs, limits.max_num_batched_tokens, limits.kv_blocks) == (32, 1024, 99)
    _, limits = believed(replace(SPEC, profile="demo-fast"), report, 0, 0, Sizes(max_num_batched_tokens=32))
    assert (limits.kv_blocks, limits.max_num_seqs, limits.max_num_batched_tokens) == (400_001, 32, 32)


def test_sizes_that_a_server_says_later_reach_a_mirror_that_works() -> None:
    engines, replica = Engines(), Replica(SPEC)
    mirror = engines.mirror(replica)
    replica.identity = replace(replica.identity, sizes=Sizes(6250, 64, 200, 4096))
    assert engines.mirror(replica) is mirror
    assert (mirror.limits.max_num_batched_tokens, mirror.limits.kv_blocks) == (4096, 6250)
    replica.identity = replace(replica.identity, max_model_len=777)
    assert engines.mirror(replica).limits.max_model_len == 777


def test_a_profile_that_is_not_there_is_told_and_guessed() -> None:
    engines = Engines()
    mirror = engines.mirror(Replica(replace(SPEC, profile="nonsense")))
    assert mirror.profile == GUESSED_STEPS
    (problem,) = engines.take_problems()
    assert "nonsense" in problem
    assert engines.take_problems() == []


def test_a_report_resizes_a_mirror_and_others_traffic_has_to_last() -> None:
    engines, replica = Engines(), Replica(SPEC)
    mirror = engines.mirror(replica)
    assert engines.mirror(replica) is mirror
    report = EngineReport(5, 0.5, 1000, 16)
    for expected in (0, 0, 5):
        engines.reported(replica, report, 0.0)
        assert mirror.foreign == expected
    assert mirror.limits.kv_blocks == 1000
    engines.reported(replica, replace(report, requests=0), 0.0)
    assert mirror.foreign == 0


def test_others_traffic_is_not_believed_in_for_long_after_the_last_report() -> None:
    """An engine that was started anew without its metrics, say: nobody would ever tell that the others are gone."""
    engines, replica = Engines(), Replica(SPEC)
    mirror = engines.mirror(replica)
    for _ in range(3):
        engines.reported(replica, EngineReport(GUESSED_LIMITS.max_num_seqs, 0.5, 1000, 16), 0.0)
    for expected in (GUESSED_LIMITS.max_num_seqs, GUESSED_LIMITS.max_num_seqs, 0, 0):
        engines.unreported(replica)
        assert mirror.foreign == expected, "one that is missing is no news: a busy engine is late with it"
    assert mirror.limits.kv_blocks == 1000, "what it said of its size holds"
    for expected in (0, 0, 5):
        engines.reported(replica, EngineReport(5, 0.5, 1000, 16), 0.0)
        assert mirror.foreign == expected
    engines.unreported(replica)
    assert mirror.foreign == 5


def test_how_an_engine_orders_its_queue_reaches_its_mirror_when_it_is_known() -> None:
    engines, replica = Engines(), Replica(SPEC)
    assert engines.mirror(replica).scheduling == ""
    replica.identity = replace(replica.identity, scheduling="priority")
    assert engines.mirror(replica).scheduling == "priority"
    replica.spec = replace(SPEC, scheduling="leeway")
    assert engines.mirror(replica).scheduling == "leeway"


def test_changed_settings_reach_a_mirror_that_works() -> None:
    engines, replica = Engines(), Replica(SPEC)
    mirror = engines.mirror(replica)
    replica.respecified(replace(SPEC, profile="demo-fast", max_num_batched_tokens=777))
    assert engines.mirror(replica) is mirror
    assert mirror.profile == PRESETS["demo-fast"].profile
    assert mirror.limits.max_num_batched_tokens == 777


def test_a_step_budget_that_was_found_out_reaches_the_mirror() -> None:
    engines, replica = Engines(), Replica(SPEC)
    mirror = engines.mirror(replica)
    counted = 0
    for number in range(5):
        job = Job(f"j{number}", "m", 6000, LengthEstimate(4, 8, 16, "t"), 5.0 * number)
        mirror.dispatched(job, 0, 5.0 * number + 1.0)
        counted += 12  # steps of 500 tokens
        mirror.first_token(job.id, 5.0 * number + 3.0)
        mirror.finished(job.id, 5.0 * number + 4.0)
        steps = ((256.0, 0.0), (512.0, float(counted)), (1024.0, float(counted)), (float("inf"), float(counted)))
        engines.reported(replica, EngineReport(0, 0.0, 1000, 16, steps), 5.0 * number + 5.0)
    assert (mirror.limits.max_num_batched_tokens, mirror.limits.max_num_seqs) == (512, 512)
    _, limits = believed(replace(SPEC, max_num_batched_tokens=2048), NOT_REPORTED, 0, 512)
    assert limits.max_num_batched_tokens == 2048, "settings win"


def test_slots_that_were_found_out_reach_the_mirror() -> None:
    engines, replica = Engines(), Replica(SPEC)
    mirror = engines.mirror(replica)
    for number in range(12):
        for index in range(3):
            job = Job(f"j{number}.{index}", "m", 100, LengthEstimate(4, 8, 16, "t"), 5.0 * number)
            mirror.dispatched(job, 0, 5.0 * number)
        engines.reported(replica, EngineReport(20, 0.2, 1000, 16, (), 4), 5.0 * number + 1.0)
        for index in range(3):
            mirror.finished(f"j{number}.{index}", 5.0 * number + 4.0)
    assert mirror.limits.max_num_seqs == 17
    _, limits = believed(replace(SPEC, max_num_seqs=256), NOT_REPORTED, 0, slots=17)
    assert limits.max_num_seqs == 256, "settings win"
    engines.reported(replica, EngineReport(60, 0.2, 1000, 16, (), 10), 99.0)
    assert mirror.limits.max_num_seqs > 50, "more run than it was thought to take"
    engines.forget(replica.name)
    assert engines.mirror(Replica(SPEC)).limits.max_num_seqs > 50
