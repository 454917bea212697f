"""The live bench's pure parts: its traffic, its reading of answers, its figures; and its generator on a real socket."""

from __future__ import annotations

import asyncio
import json
import math
import time
import tomllib
from dataclasses import replace
from pathlib import Path

import looptime
import pytest

from backends.mock_ask import decode_chat
from backends.mock_text import block_hashes
from gateway.sim.traces import TraceRow
from tests.bench import live_capacity
from tests.bench.live_figures import Cost, Run, against_best, attained, in_window, markdown, quantile, rows, summary
from tests.bench.live_fixed import FIRST_S, HEAD, LAST, TOKEN, TOKENS, Fixed
from tests.bench.live_load import Call, Load, Seen
from tests.bench.live_peers import PEERS, leeway_config
from tests.bench.live_referee import Recorded, lines, read
from tests.bench.live_rounds import Rounds, Whole
from tests.bench.live_run import RunFailedError, Stage, Timing, Traffic, in_turn
from tests.bench.live_trace import MARK_BYTES, Planned, answer_tokens, planned, shrunk, synthetic_rows, window
from tests.bench.peers import Place

FIRST, SECOND = (TraceRow(0.0, 200, 7, (0, 1, 2), 64), TraceRow(1.0, 300, 123, (0, 1, 3, 4), 64))


def prompt(one: Planned) -> tuple[str, int, tuple[int, ...]]:
    """Text, tokens and block hashes as the simulated engine counts them."""
    (seen,) = decode_chat(json.loads(one.body), {}).prompts
    return seen.text, seen.tokens, block_hashes(seen.layout, 64)


def test_a_row_becomes_an_eighth_with_blocks_of_64() -> None:
    row = shrunk(TraceRow(3.0, 1601, 90, (5, 6, 7), 512))
    assert (row.prompt_tokens, row.output_tokens, row.blocks, row.block_tokens) == (200, 11, (5, 6, 7), 64)
    assert shrunk(TraceRow(3.0, 8, 1, (), 512)).output_tokens == 1


def test_text_is_shared_exactly_as_far_as_the_blocks_agree() -> None:
    one, two = planned([FIRST, SECOND], 10.0, 0, "m")
    (text, tokens, hashes), (other, more, others) = prompt(one), prompt(two)
    assert (tokens, more) == (one.prompt_tokens, two.prompt_tokens) == (204, 304)
    assert text[:512] == other[:512]
    assert text[512:768] != other[512:768]
    assert hashes[:2] == others[:2]
    assert not set(hashes[2:]) & set(others[2:])
    assert (answer_tokens(text), answer_tokens(other), answer_tokens("hi")) == (7, 123, 1)
    assert b"max_tokens" in one.body
    assert b'"max_tokens":7' not in one.body, "the answer's length must not be told"


def test_the_smallest_prompt_still_says_how_long_its_answer_is() -> None:
    (one,) = planned([shrunk(TraceRow(0.0, 1, 1999, (), 512))], 1.0, 0, "m")
    assert answer_tokens(prompt(one)[0]) == 249
    assert one.prompt_tokens == MARK_BYTES + 4


def test_two_rates_of_a_seed_differ_in_time_alone_and_seeds_in_everything() -> None:
    source = Traffic("synthetic", tuple(synthetic_rows(0, 200)))
    slow, fast, other = source.schedule(5.0, 0, 10.0), source.schedule(10.0, 0, 5.0), source.schedule(5.0, 1, 10.0)
    assert [one.body for one in slow] == [one.body for one in fast]
    assert [one.at_s for one in slow] == pytest.approx([2 * one.at_s for one in fast])
    assert slow == source.schedule(5.0, 0, 10.0)
    assert slow != other
    assert slow[0].at_s == 0.0
    assert source.rate_per_s(5.0, 0, 10.0) == 5.0


def test_the_synthetic_trace_is_of_the_size_of_the_published_one() -> None:
    made = synthetic_rows(0, 3000)
    assert made == synthetic_rows(0, 3000) != synthetic_rows(1, 3000)
    assert 1300 < sum(row.prompt_tokens for row in made) / len(made) < 1700
    assert 38 < sum(row.output_tokens for row in made) / len(made) < 48
    assert all(len(row.blocks) == row.prompt_tokens // 64 for row in made)
    assert window(made, 2, 3000)[0] == made[0], "windows go round"


def call(output_tokens: int) -> Call:
    return Call(Planned(0.0, b"", 10, output_tokens), 100.0, 100.5)


@pytest.mark.parametrize("size", [1, 7, 11, 12, 13, 50, 10_000])
def test_tokens_are_counted_wherever_the_bytes_are_cut(size: int) -> None:
    role = TOKEN.replace(b'"content":" word"', b'"role":"assistant","content":""')
    answer = HEAD + role + TOKEN * (TOKENS - 1) + LAST
    begun = call(TOKENS)
    pieces = [answer[:20], *(answer[start : start + size] for start in range(20, len(answer), size))]
    ends = [begun.received(piece, 101.0 + number) for number, piece in enumerate(pieces)]
    assert ends[-1]
    assert not any(ends[:-1])
    seen = begun.seen(90.0)
    assert (seen.at_s, seen.late_s, seen.tokens, seen.problem) == (10.0, 0.5, TOKENS, "")
    assert seen.ttft_s is not None
    assert seen.e2e_s is not None
    last = answer.rindex(b'"content":"') + len(b'"content":"') - 1
    assert seen.e2e_s == 2.0 + (last - 20) // size
    assert 1.0 < seen.ttft_s <= seen.e2e_s


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (b"HTTP/1.1 503 Service Unavailable\r\n\r\n", "HTTP/1.1 503 Service Unavailable"),
        (HEAD + TOKEN, "unfinished"),
        (HEAD + TOKEN + LAST, "2 tokens instead of 20"),
        (b"", "unfinished"),
    ],
)
def test_what_is_no_answer_of_the_right_length_is_a_problem(answer: bytes, problem: str) -> None:
    begun = call(TOKENS)
    if answer:
        begun.received(answer, 101.0)
    assert begun.seen(90.0).problem == problem


def schedule(count: int, gap_s: float = 0.01) -> list[Planned]:
    return [Planned(number * gap_s, b'{"messages":[]}', 1, TOKENS) for number in range(count)]


def test_the_generator_measures_a_server_with_known_answers() -> None:
    async def run() -> list[Seen]:
        server = await asyncio.get_running_loop().create_server(Fixed, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            return await Load(port, schedule(20), "key").run(time.monotonic(), 30.0)

    seen = asyncio.run(run())
    assert [one.problem for one in seen] == [""] * 20
    assert [one.at_s for one in seen] == pytest.approx([number * 0.01 for number in range(20)])
    assert all(one.ttft_s is not None and one.ttft_s >= FIRST_S - 0.002 for one in seen)


def test_requests_leave_on_time_though_nobody_answers_and_silence_is_no_success() -> None:
    heard: list[bytes] = []

    class Silent(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            heard.append(data)

    async def run() -> list[Seen]:
        server = await asyncio.get_running_loop().create_server(Silent, "127.0.0.1", 0)
        async with server:
            return await Load(server.sockets[0].getsockname()[1], schedule(10)).run(time.monotonic(), 0.3)

    with asyncio.Runner(loop_factory=looptime.new_event_loop) as runner:  # a busy machine does not use up the time to wait
        seen = runner.run(run())
    assert len(heard) == len(seen) == 10
    assert {one.problem for one in seen} == {"unfinished"}


def test_a_port_where_nobody_listens_is_a_problem_of_each_request() -> None:
    seen = asyncio.run(Load(1, schedule(3)).run(time.monotonic(), 5.0))
    assert ["connect" in one.problem for one in seen] == [True] * 3


def a_run(router: str, ttft_s: list[float | None], load: int = 95, seed: int = 0, busy_s: float = 1.0) -> Run:
    seen = tuple(
        Seen(float(at), 0.0, value, None if value is None else value + 1.0, 11, 11, "" if value is not None else "lost")
        for at, value in enumerate(ttft_s)
    )
    cost = Cost(10.0, 2, busy_s, 1.0, 1.0)
    return Run(router, load, seed, 40.0, 10.0, seen, len(seen), cost, 0.2, 0, 1.0, (1, 2))


def test_a_lost_answer_is_an_infinite_wait() -> None:
    run = a_run("leeway", [0.1, None, 0.3])
    assert run.ttft_s() == [0.1, math.inf, 0.3]
    assert (run.errors, attained(run.ttft_s(), 0.2)) == (1, 1 / 3)
    (row,) = rows([run], 0.2)
    assert (row.goodput_per_s, row.ttft_p50_s, row.ttft_p99_s) == (0.1, 0.3, math.inf)
    assert row.tpot_mean_s == pytest.approx(0.1)
    assert row.router_us == pytest.approx(1e6 / 3)


def test_quantiles_are_values_that_occurred() -> None:
    values = [float(number) for number in range(1, 101)]
    assert [quantile(values, share) for share in (0.5, 0.99, 1.0)] == [50.0, 99.0, 100.0]
    assert math.isnan(quantile([], 0.5))


def test_the_window_leaves_out_the_warm_up_and_the_end() -> None:
    seen = a_run("leeway", [0.1] * 10).seen
    assert [one.at_s for one in in_window(seen, 2.0, 5.0)] == [2.0, 3.0, 4.0]


def test_ours_is_held_against_the_best_rival_of_each_figure_seeds_together() -> None:
    runs = [
        a_run("leeway", [0.1, 0.2]),
        a_run("leeway", [0.3, 0.4], seed=1),
        a_run("leeway-po2", [0.8, 0.8]),
        a_run("quick tail", [0.8, 0.8]),
        a_run("much good", [0.1, 9.0]),
    ]
    best = against_best(rows(runs, 0.5), 95)
    assert best == {"goodput": 2.0, "p99": 0.5, "goodput_rival": "much good", "p99_rival": "quick tail"}
    line = summary(runs, 0.5, {"smg": "did not start"}, {"quick": True})
    assert (line["goodput_vs_best_95"], line["p99_vs_best_95"], line["po2_goodput_vs_best_95"]) == (2.0, 0.5, 0.0)
    assert line["failed"] == {"smg": "did not start"}
    assert line["busy_too_much"] == []
    json.dumps(line)
    assert "| leeway | 0.250 |" in markdown(rows(runs, 0.5), {95: 40.0})


def test_without_ours_or_a_rival_there_is_no_figure_and_a_busy_run_is_named() -> None:
    line = summary([a_run("leeway", [0.1], busy_s=11.0)], 0.5, {}, {})
    assert line["goodput_vs_best_95"] is None
    assert line["busy_too_much"] == ["leeway 95 seed 0"]
    assert against_best(rows([a_run("smg", [0.1])], 0.5), 95)["p99"] is None
    lost = summary([a_run("leeway", [None]), a_run("smg", [0.1])], 0.5, {}, {})
    assert (lost["goodput_vs_best_95"], lost["p99_vs_best_95"]) == (0.0, None)


@pytest.mark.parametrize("guess", [5.0, 40.0, 300.0])
def test_capacity_is_the_last_rate_at_which_enough_are_in_time(guess: float) -> None:
    asked: list[float] = []

    def share(rate: float) -> float:
        asked.append(rate)
        return 0.99 if rate <= 42.0 else 0.5

    if guess in (5.0, 300.0):
        with pytest.raises(live_capacity.CapacityError):
            live_capacity.bisect(share, guess, 0.95)
        return
    found = live_capacity.bisect(share, guess, 0.95)
    assert 42.0 / live_capacity.PRECISION <= found <= 42.0
    assert len(asked) < 8


def test_a_capacity_is_kept_by_what_it_depends_on(tmp_path: Path) -> None:
    path = tmp_path / "capacity.json"
    assert live_capacity.kept(path, {"slo": 1}) is None
    live_capacity.keep(path, {"slo": 1, "trace": "a"}, 41.5)
    live_capacity.keep(path, {"slo": 2, "trace": "a"}, 50.0)
    assert live_capacity.kept(path, {"trace": "a", "slo": 1}) == 41.5
    assert live_capacity.kept(path, {"slo": 3}) is None


def test_leeways_configuration_names_eight_servers_and_no_policy() -> None:
    read_back = tomllib.loads(leeway_config())
    assert len(read_back["backends"]) == 8
    assert {backend["engine"] for backend in read_back["backends"]} == {"vllm"}
    assert "models" not in read_back
    assert tomllib.loads(leeway_config('[models.m]\npolicy = "po2"\n'))["models"] == {"m": {"policy": "po2"}}
    assert {"leeway", "leeway-po2", "haproxy"} < set(PEERS)


def test_the_referee_gets_the_same_text_and_its_records_are_read() -> None:
    (line,) = lines(planned([FIRST], 10.0, 0, "m"))
    assert json.loads(line)["text_input"] == prompt(planned([FIRST], 10.0, 0, "m")[0])[0]
    metadata = {"credit_issued_ns": 5_000_000_000, "request_start_ns": 5_250_000_000}
    metrics = {"time_to_first_token": {"value": 100.0, "unit": "ms"}, "request_latency": {"value": 480.0, "unit": "ms"}}
    records = [{"metadata": metadata, "metrics": metrics}, {"metadata": metadata, "metrics": {}}]
    assert list(read([json.dumps(record) for record in records])) == [Recorded(0.25, 0.1, 0.48)]


def test_nobody_is_always_the_first() -> None:
    assert [in_turn(["a", "b", "c"], turn) for turn in range(4)] == [
        ["a", "b", "c"],
        ["b", "c", "a"],
        ["c", "a", "b"],
        ["a", "b", "c"],
    ]
    assert in_turn([], 3) == []


class Canned(Rounds):
    """Routers that are in time up to 42 requests/s; the one named `broken` does not start."""

    def run(self, name: str, load: int, seed: int, rate_per_s: float) -> Run:
        """Without a run."""
        if name == "broken":
            raise RunFailedError("does not start")
        return a_run(name, [0.1 if rate_per_s <= 42.0 else 9.0], load, seed)

    def told(self, run: Run) -> str:
        """Nothing."""
        return ""


def test_one_that_fails_is_left_out_and_the_rate_of_100_is_searched_for_once(tmp_path: Path) -> None:
    rounds = Canned(Stage(Place(tmp_path, tmp_path, "python"), Timing()), ["a", "broken", "b"])
    rounds.compare({80: 10.0, 95: 20.0}, 2)
    order = [(run.router, run.load, run.seed) for run in rounds.runs]
    assert order[:2] == [("a", 80, 0), ("b", 80, 0)]
    assert sorted(order) == [(name, load, seed) for name in "ab" for load in (80, 95) for seed in (0, 1)]
    assert rounds.failed == {"broken": "does not start"}
    whole = Whole("a", "capacity.json", 40.0, 0.95, lambda run: attained(run.ttft_s(), 1.0), {"trace": "t"})
    found = rounds.capacity_per_s(whole)
    assert 42.0 / live_capacity.PRECISION <= found <= 42.0
    assert rounds.capacity_per_s(replace(whole, guess_per_s=30.0)) == found, "kept by all that it depends on"
