"""The arithmetic of the overhead bench: what is a median, a ratio, an error, and when the run fails."""

import json

import pytest

from tests.bench import figures
from tests.bench.figures import Round

Rounds = list[Round]


def a_round(unary_us: float = 40.0, **changed: float | None) -> Round:
    """A plausible round of a gateway; a test names what it is about."""
    usual = {
        "body16k_us": 50.0,
        "body220k_us": 200.0,
        "event_us": 16.0,
        "event_user_us": 5.0,
        "streams": 200,
        "utilisation": 0.2,
        "latency_us": 120.0,
        "first_event_us": 520.0,
        "relay_us": 130.0,
        "mem_idle_mib": 30.0,
        "mem1000_mib": 50.0,
        "start_s": 0.4,
        "errors": 0,
    }
    return Round(unary_us=unary_us, **(usual | changed))


def direct(first_event_us: float = 20.0) -> Round:
    return Round(latency_us=15.0, first_event_us=first_event_us, relay_us=35.0, errors=0)


def figures_of(results: dict[str, Rounds]) -> dict[str, float | None]:
    return dict(figures.figures(figures.medians(results)))


def test_a_ratio_is_of_medians_not_a_median_of_ratios() -> None:
    results = {"leeway": [a_round(30), a_round(60), a_round(40)], "vllm-router": [a_round(10), a_round(50), a_round(90)]}
    assert figures_of(results)["unary_vs_vllm_router"] == pytest.approx(40 / 50)


def test_a_slow_round_moves_no_figure() -> None:
    calm = {"leeway": [a_round(30)] * 3, "vllm-router": [a_round(40)] * 3}
    disturbed = {"leeway": [a_round(30), a_round(900), a_round(30)], "vllm-router": [a_round(40)] * 3}
    assert figures_of(disturbed) == figures_of(calm)


def test_each_figure_divides_ours_by_the_rival_it_names() -> None:
    results = {
        "direct": [direct(20)],
        "nginx": [a_round(event_us=10.0)],
        "vllm-router": [a_round(10.0, body220k_us=100.0, event_us=20.0, first_event_us=420.0, start_s=0.5)],
        "sglang-router": [a_round(event_us=16.0)],
        "smg": [a_round(event_us=40.0, mem1000_mib=100.0)],
        "leeway": [a_round(12.0, body220k_us=70.0, event_us=12.0, first_event_us=220.0, mem1000_mib=25.0, start_s=0.25)],
        "leeway-default": [a_round(14.0)],
    }
    assert figures_of(results) == {
        "unary_vs_vllm_router": pytest.approx(1.2),
        "body220k_vs_vllm_router": pytest.approx(0.7),
        "event_vs_rust_median": pytest.approx(12 / 20),
        "event_vs_nginx": pytest.approx(1.2),
        "mem1000_vs_smg": pytest.approx(0.25),
        "first_event_vs_vllm_router": pytest.approx(200 / 400),
        "start_s": pytest.approx(0.25),
        "default_vs_vllm_router": pytest.approx(1.4),
    }


def test_the_rust_median_is_over_those_that_were_measured() -> None:
    assert figures.rust_median({"vllm-router": 20.0, "smg": 30.0, "nginx": 1.0}) == 25.0
    assert figures.rust_median({"vllm-router": 20.0, "smg": 30.0, "sglang-router": 90.0}) == 30.0
    assert figures.rust_median({"nginx": 1.0, "smg": None}) is None


def test_what_was_not_measured_is_null_and_never_zero() -> None:
    results = {"direct": [], "leeway": [a_round()], "vllm-router": []}
    assert {name for name, value in figures_of(results).items() if value is not None} == {"start_s"}


@pytest.mark.parametrize("theirs", [None, 0.0, -3.0])
def test_a_rival_figure_that_is_no_measure_gives_no_ratio(theirs: float | None) -> None:
    assert figures.ratio(5.0, theirs) is None


@pytest.mark.parametrize(
    ("done", "errors", "events", "events_each", "bad"),
    [
        (10, 0, 0, 0, 0),
        (10, 3, 0, 0, 3),
        (10, 0, 1010, 100, 0),
        (10, 0, 1009, 100, 1),
        (10, 0, 1020, 100, 10),
        (10, 2, 900, 100, 2),
    ],
)
def test_a_stream_owes_each_event_once_and_its_end(done: int, errors: int, events: int, events_each: int, bad: int) -> None:
    assert figures.bad_answers(done, errors, events, events_each) == bad


def test_the_line_is_json_and_carries_medians_errors_failures_and_settings() -> None:
    results = {"direct": [direct()], "leeway": [a_round(30.0, errors=1), a_round(40.0, errors=2)], "smg": []}
    line = json.loads(json.dumps(figures.summary(results, {"smg": "did not start"}, 61.23456, {"seconds": 2.0})))
    assert line["unary_us"] == {"leeway": 35.0}
    assert line["first_event_added_us"] == {"leeway": 500.0}
    assert (line["start_s"], line["start_by_peer_s"]) == (0.4, {"leeway": 0.4})
    assert line["errors"] == {"direct": 0, "leeway": 3, "smg": 0}
    assert line["rounds"] == {"direct": 1, "leeway": 2, "smg": 0}
    assert line["failed"] == {"smg": "did not start"}
    assert (line["reference_loop_ms"], line["seconds"]) == (61.235, 2.0)


@pytest.mark.parametrize(
    ("wanted", "ours", "failures", "status"),
    [
        (["leeway", "smg"], [a_round()], {}, 0),
        (["leeway", "smg"], [a_round()], {"smg": "did not start"}, 0),
        (["smg"], None, {}, 0),
        (["leeway"], [a_round(errors=1)], {}, 1),
        (["leeway"], [a_round()], {"leeway": "ended under load"}, 1),
        (["leeway"], [], {"leeway": "did not start"}, 1),
    ],
)
def test_only_our_own_failure_fails_the_run(
    wanted: list[str], ours: Rounds | None, failures: dict[str, str], status: int
) -> None:
    results = {"smg": [a_round(errors=9)]} | ({} if ours is None else {"leeway": ours})
    assert figures.exit_code(wanted, results, failures) == status


def test_the_table_shows_differences_to_direct_and_names_who_failed() -> None:
    results = {"direct": [direct(20)], "leeway": [a_round(31.44, first_event_us=1520.0)], "smg": []}
    header, rule, of_direct, of_leeway, _, failed = figures.markdown(results, {"smg": "no start"}).splitlines()
    assert header.count("|") == rule.count("|") == of_direct.count("|") == of_leeway.count("|")
    assert "(20)" in of_direct and "| 31.4 |" in of_leeway and "| 1,500 |" in of_leeway
    assert failed == "smg failed: no start"
