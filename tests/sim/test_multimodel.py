"""The simulation of many models on few GPUs: what a world keeps, what each rule does, and that ours starves nobody."""

import math
from dataclasses import replace
from random import Random

import pytest

from gateway.sim.swap_ours import Ours, ours
from gateway.sim.swap_rules import RULES, collate_by_turn, feed
from gateway.sim.swap_run import figures, requests, run, starved_s
from gateway.sim.swap_scenario import DeviceSpec, ModelSpec, SwapScenario, TruthSpec
from gateway.sim.swap_timeline import timeline_svg
from gateway.sim.swap_world import Job, World
from predictor.hosts import host_profiles

HOSTS = host_profiles()
RULE = {**RULES, "ours": ours(HOSTS)}


def mix(rate: float = 0.5, duration_s: float = 200.0, **more) -> SwapScenario:
    models = tuple(ModelSpec(f"m{i}", 16.4, 1.0, base_ms=20.0) for i in range(3))
    return SwapScenario("test", "", (0,), duration_s, rate, (DeviceSpec("rtx-5000-ada"),), models, **more)


def played(rule: str, scenario: SwapScenario, seed: int = 0) -> World:
    return run(scenario, RULE[rule], seed, requests(scenario, Random(seed)), HOSTS)


@pytest.mark.parametrize("rule", RULE)
def test_every_request_is_served_once_and_to_its_end(rule: str) -> None:
    scenario = mix()
    asked = requests(scenario, Random(0))
    world = played(rule, replace(scenario, duration_s=200.0))
    held = sum(engine.running for gpu in world.gpus for engine in (*gpu.engines, *gpu.paused.values()))
    assert len(world.done) + held + sum(map(len, world.waiting.values())) == len(asked)
    assert len({id(job) for job in world.done}) == len(world.done) > 0.9 * len(asked)
    assert all(job.arrived_s <= job.started_s < job.first_s < job.ended_s for job in world.done)


@pytest.mark.parametrize("rule", RULE)
def test_a_device_never_holds_more_than_its_memory(rule: str) -> None:
    scenario = mix()
    seen = []

    def watched(world, scenario, rng):
        decide = RULE[rule](world, scenario, rng)

        def both() -> None:
            decide()
            seen.extend(gpu.taken_bytes() <= gpu.host.memory_bytes for gpu in world.gpus)

        return both

    run(scenario, watched, 0, requests(scenario, Random(0)), HOSTS)
    assert seen and all(seen)


def test_who_is_paused_comes_back_where_it_is() -> None:
    models = tuple(ModelSpec(f"m{i}", 16.4, 1.0, output_tokens=6000.0, ttft_s=12.0, slow_share=0.0) for i in range(4))
    scenario = replace(mix(rate=0.15, duration_s=300.0), models=models, devices=(DeviceSpec("rtx-5000-ada", 2),))
    paused, elsewhere = 0, []

    def watched(world, scenario, rng):
        decide = RULE["ours"](world, scenario, rng)

        def both() -> None:
            nonlocal paused
            decide()
            for gpu in world.gpus:
                for name in gpu.paused:
                    paused += 1
                    elsewhere.extend(one for one in world.engines(name) if one.device is not gpu)

        return both

    run(scenario, watched, 2, requests(scenario, Random(2)), HOSTS)
    assert paused and not elsewhere


@pytest.mark.parametrize(("freeze_s", "prompt_tokens"), [(3.0, 600), (0.0, 40000)], ids=["runs on", "is still read"])
def test_who_runs_on_when_its_model_leaves_goes_on_after_the_visit(freeze_s: float, prompt_tokens: int) -> None:
    long, short = Job("m0", 19.0, prompt_tokens, 3000, 15.0, 0.1), Job("m1", 22.0, 100, 20, 15.0, 0.1)
    cuts: list[float] = []

    def visited(world, scenario, rng):
        (gpu,) = world.gpus

        def decide() -> None:
            feed(world)
            here = {engine.spec.name: engine for engine in gpu.engines}
            if gpu.swapping:
                return
            if not here:
                world.swap(gpu, "m0", [])
            elif "m0" in here and world.waiting["m1"]:
                cuts.append(world.now_s)
                world.swap(gpu, "m1", [here["m0"]], freeze_s=freeze_s)
            elif "m1" in here and not here["m1"].running and gpu.paused:
                world.swap(gpu, "m0", [here["m1"]])

        return decide

    world = run(mix(truth=TruthSpec(0.0, 0.0, 0.0, 0.0, 0.0)), visited, 0, [long, short], HOSTS)
    ends = {job.model: job.ended_s for job in world.done}
    (cut_s,) = cuts
    begun_s = next(job.started_s for job in world.done if job.model == "m1")
    assert begun_s - cut_s < freeze_s + (6.2 if prompt_tokens > 600 else 0.0) + 8.0, "not as long as the long one runs"
    assert ends["m0"] > ends["m1"] > begun_s and ends["m0"] - cut_s > 60.0


def test_what_is_learnt_is_what_the_gateway_would_learn() -> None:
    scenario = mix(rate=0.4, duration_s=300.0, truth=TruthSpec(0.0, 0.0, 0.0, 0.0, 0.0))
    made: list[Ours] = []

    def kept(world, scenario, rng):
        made.append(Ours(world, scenario, HOSTS))
        return made[0].decide

    world = run(scenario, kept, 0, requests(scenario, Random(0)), HOSTS)
    for name, habits in made[0].habits.items():
        mine = [job.ended_s - job.started_s for job in world.done if job.model == name]
        assert habits.seen == 4.0 + len(mine) > 10
        assert min(mine) < habits.hold_s < max(mine)


def test_one_seed_is_one_world() -> None:
    scenario = mix(duration_s=80.0)
    assert figures(played("ours", scenario), scenario) == figures(played("ours", scenario), scenario)


def test_collation_swaps_less_than_first_come_first_served() -> None:
    scenario = mix(rate=0.6, duration_s=400.0)
    assert played("collate", scenario).swaps < 0.8 * played("fifo", scenario).swaps


def test_ours_keeps_the_bound_where_collation_starves() -> None:
    scenario = mix(rate=0.6, duration_s=250.0, starve_s=120.0)
    hot = replace(scenario.models[0], share=12.0)
    scenario = replace(scenario, models=(hot, *scenario.models[1:]), rate_per_s=1.2)
    starved = figures(played("collate", scenario, 3), scenario)
    fed = figures(played("ours", scenario, 3), scenario)
    assert fed.wait_max_s <= min(120.0, starved.wait_max_s)
    assert fed.starved_s <= 120.0


@pytest.mark.parametrize(
    ("waits", "longest_s"),
    [
        ([(0.0, 0.0)], 0.0),
        ([(0.0, 7.0), (5.0, 8.0)], 7.0),  # until the first of it begins
        ([(0.0, 1.0), (0.0, 4.0), (0.0, 9.0)], 5.0),  # while others still wait
        ([(0.0, 1.0), (50.0, 52.0)], 2.0),  # nobody waited between them
        ([(0.0, 30.0), (29.0, 29.5)], 29.5),  # one that came later may be the one that begins
        ([(0.0, math.inf), (0.0, 10.0)], 90.0),  # never begun: until the end
    ],
)
def test_a_model_starves_while_somebody_waits_and_nobody_of_it_begins(
    waits: list[tuple[float, float]], longest_s: float
) -> None:
    jobs = [Job("a", arrived_s, 1, 1, 1.0, 1.0, started_s) for arrived_s, started_s in waits]
    assert starved_s(jobs, 100.0) == longest_s


def test_the_order_by_deadlines_saves_who_can_be_saved() -> None:
    scenario = mix(rate=1.2, duration_s=400.0)
    jobs = requests(scenario, Random(0))
    shares = [
        figures(run(scenario, rule, 0, jobs, HOSTS), scenario).good_share
        for rule in (collate_by_turn, RULE["collate"], ours(HOSTS), ours(HOSTS, by_turn=False))
    ]
    assert shares[0] > shares[1] and shares[2] > shares[3]


def test_a_swap_without_noise_takes_what_the_profile_says() -> None:
    exact = TruthSpec(0.0, 0.0, 0.0, 0.0, 0.0)
    world = played("fifo", mix(truth=exact))
    began_s, there_s, _, _ = world.timeline[0]
    assert there_s - began_s == pytest.approx(1.5 + 16.4 / 5.4)


def test_weights_in_memory_come_back_sooner() -> None:
    exact = TruthSpec(0.0, 0.0, 0.0, 0.0, 0.0)
    scenario = replace(mix(truth=exact), devices=(DeviceSpec("rtx-5000-ada", 1, 80.0),))
    loads: list[float] = []

    def watched(world, scenario, rng):
        decide = RULE["fifo"](world, scenario, rng)
        world.hear = lambda told: loads.append(told.took_s) if told.end == "gpu" else None
        return decide

    run(scenario, watched, 0, requests(scenario, Random(0)), HOSTS)
    assert loads[0] == pytest.approx(1.5 + 16.4 / 5.4) and loads[-1] == pytest.approx(1.5 + 16.4 / 9.0)


def test_the_timeline_shows_each_device_and_model() -> None:
    world = played("fifo", mix())
    picture = timeline_svg(world.timeline, 200.0, "a & b")
    assert picture.startswith("<svg") and "gpu0" in picture and "m1" in picture and "a &amp; b" in picture
