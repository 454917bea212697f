"""The CASCADE simulation: everybody is served once, runs repeat, and the rules do what they are for, in small."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.sim.cascade import Cascade, engine_of
from gateway.sim.cascade_jobs import Job
from gateway.sim.cascade_load import draw_mix
from gateway.sim.cascade_report import Key, figures, run_cascade
from gateway.sim.cascade_spec import CascadeSpec, ClassSpec, TierSpec, VariantSpec, load_cascade
from gateway.sim.cascade_store import TierStore
from gateway.sim.scenario import TruthSpec
from gateway.sim.tables import TableError
from predictor.restore import Found, Tier

EXAMPLES = Path(__file__).parents[2] / "examples" / "papers" / "cascade"
FCFS, SJF, MH = VariantSpec("FCFS", "fcfs"), VariantSpec("SJF", "sjf"), VariantSpec("MH", "mh")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> CascadeSpec:
    """Short questions with little time and long documents, on an engine with little memory."""
    folder = tmp_path_factory.mktemp("traces")
    (folder / "short.csv").write_text("input_tokens,output_tokens\n" + "".join(f"{200 + 8 * i},60\n" for i in range(101)))
    (folder / "long.csv").write_text("input_tokens,output_tokens\n" + "".join(f"{4000 + 160 * i},30\n" for i in range(101)))
    return CascadeSpec(
        name="small",
        profile="qwen2.5-72b/tp4/gb200",
        classes=(
            ClassSpec("short", 0.7, 1.0, str(folder / "short.csv"), "quantiles", tpot_s=0.06, reuse=0.4),
            ClassSpec("long", 0.3, 6.0, str(folder / "long.csv"), "quantiles", tpot_s=0.2, reuse=0.7),
        ),
        tiers=(TierSpec("DRAM", 20.0, 40.0), TierSpec("NVMe", 60.0, 6.0)),
        variants=(FCFS, SJF, MH),
        requests=250,
        hbm_tokens=200_000,
        truth=TruthSpec(step_spread=0.15, stall_share=0.01),
    )


@pytest.mark.parametrize("order", ["fcfs", "sjf", "edf", "lrb", "mh"])
@pytest.mark.parametrize(
    "more", [{}, {"sync": True, "restore": "always"}, {"restore": "partial", "placement": "value", "tpot": True}]
)
def test_everybody_is_served_once(small: CascadeSpec, order: str, more: dict[str, object]) -> None:
    variant = VariantSpec("x", order, **more)  # type: ignore[arg-type]
    mix = draw_mix(small, 9.0, 0, engine_of(small)[1].max_model_len)
    outcome = Cascade(small, variant, mix, 0).run()
    assert [job.request for job in outcome.jobs] == [request for request, _ in mix]
    for job in outcome.jobs:
        line = job.timeline()
        assert line.dispatched_s is not None
        assert line.first_token_s is not None
        assert line.finished_s is not None
        assert line.arrived_s <= line.dispatched_s < line.first_token_s <= line.finished_s
    prompts = sum(request.prompt_tokens for request, _ in mix)
    assert outcome.hit_tokens + outcome.computed_tokens >= prompts


def test_a_run_repeats_and_seeds_differ(small: CascadeSpec) -> None:
    runs = [run_cascade(small, Key(MH, 8.0, seed)) for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


def test_a_lost_engine_loses_nobody(small: CascadeSpec) -> None:
    spec = replace(small, instances=3, lost_at=0.5, requests=400)
    found = run_cascade(spec, Key(MH, 32.0, 0))
    assert found["goodput_per_s"] > 0
    whole = run_cascade(replace(spec, lost_at=0.0), Key(MH, 32.0, 0))
    assert whole["violations"] < found["violations"]


def test_planning_serves_more_in_time_than_the_order_of_arrival(small: CascadeSpec) -> None:
    good = {variant.label: run_cascade(small, Key(variant, 11.0, 0))["goodput_per_s"] for variant in (FCFS, SJF, MH)}
    assert good["MH"] > 1.8 * good["FCFS"]
    assert good["MH"] >= good["SJF"]


@pytest.mark.parametrize("rate_per_s", [6.0, 9.0])
def test_with_little_memory_planning_stays_ahead_of_shortest_first(small: CascadeSpec, rate_per_s: float) -> None:
    """Long prompts take a quarter of the KV blocks: the plan knows what blocks leave of the engine, and nothing is fetched
    early that would displace what is cached."""
    spec = replace(small, hbm_tokens=80_000)
    good = {
        variant.label: sum(run_cascade(spec, Key(variant, rate_per_s, seed))["goodput_per_s"] for seed in range(3))
        for variant in (SJF, MH)
    }
    assert good["MH"] >= 1.005 * good["SJF"]


def test_begun_prompts_give_their_blocks_only_if_that_is_enough(small: CascadeSpec) -> None:
    """Nobody loses what is computed for one that then does not fit."""
    spec = replace(small, hbm_tokens=80_000, requests=150)
    mix = draw_mix(spec, 9.0, 0, engine_of(spec)[1].max_model_len)
    run = Cascade(spec, MH, mix, 0)
    kept, enough = run._make_way, []

    def watched(index: int, job: Job) -> bool:
        before = set(run._nodes[index].engine.requests)
        made = kept(index, job)
        enough.append(made or before == set(run._nodes[index].engine.requests))
        return made

    run._make_way = watched  # type: ignore[method-assign]
    run.run()
    assert len(enough) > 150
    assert all(enough)


def test_short_steps_keep_the_pace_of_answers(small: CascadeSpec) -> None:
    plain, aware = (run_cascade(small, Key(replace(MH, tpot=tpot), 9.0, 0)) for tpot in (False, True))
    assert aware["tpot_violations"] < 0.9 * plain["tpot_violations"]
    assert aware["joint_per_s"] > plain["joint_per_s"]


def test_restoring_saves_computing(small: CascadeSpec) -> None:
    never, feasible = (run_cascade(small, Key(replace(MH, restore=rule), 6.0, 0)) for rule in ("never", "feasible"))  # type: ignore[arg-type]
    assert never["restored_share"] == 0.0
    assert feasible["restored_share"] > 0.02
    assert feasible["hit_share"] > never["hit_share"] + 0.02


def test_an_old_request_is_not_overtaken_for_ever(small: CascadeSpec) -> None:
    waits = [run_cascade(small, Key(replace(MH, age_s=age_s), 16.0, 0))["tier2_wait_p99_s"] for age_s in (4.0, 600.0)]
    assert waits[0] < waits[1]


def test_figures_of_classes_and_sizes(small: CascadeSpec) -> None:
    mix = draw_mix(small, 2.0, 0, engine_of(small)[1].max_model_len)
    found = figures(small, Cascade(small, MH, mix, 0).run())
    assert found["worst_class"] == min(found["short_in_time"], found["long_in_time"])
    assert 0.25 <= found["jain_sizes"] <= 1.0
    assert found["joint_per_s"] <= found["goodput_per_s"]
    assert not any(math.isnan(value) for value in found.values())


def test_blocks_sink_tier_by_tier_and_come_back() -> None:
    store = TierStore([Tier("DRAM", 1.0, capacity_bytes=2.0), Tier("NVMe", 1.0, capacity_bytes=2.0)], 1.0, "lru", 60.0, 1)
    store.use((1, 2), 0, (0.1, 0.1), 1.0)
    assert store.found((1, 2, 3), 0, 10) == Found(0, (20, 20))
    store.use((4,), 0, (0.1,), 2.0)  # the end of the older prompt goes down first
    assert store.found((1, 2), 0, 10) == Found(0, (10, 20))
    assert store.found((1, 2), 1, 10) == Found(10, (10, 20))
    store.use((5, 6), 0, (0.1, 0.1), 3.0)
    assert store.found((1,), 0, 10) == Found(0, (0, 10))
    assert store.found((2,), 0, 10) == Found(0, (0, 0))
    assert store.evicted == 1
    store.use((1,), 0, (0.1,), 4.0)
    assert store.found((1,), 0, 10) == Found(0, (10, 10))


def test_by_value_the_kind_that_is_asked_for_again_stays() -> None:
    found = {}
    for placement in ("lru", "value"):
        store = TierStore([Tier("DRAM", 1.0, capacity_bytes=4.0)], 1.0, placement, 60.0, 2)
        for number in range(12):  # what kind 0 leaves is asked for again, what kind 1 leaves is not
            store.use((1, 2), 0, (0.1, 0.1), 10.0 * number)
            store.use((100 + number, 200 + number), 1, (0.1, 0.1), 10.0 * number + 1.0)
        store.use((301, 302, 303), 1, (0.1, 0.1, 0.1), 130.0)
        found[placement] = store.found((1, 2), 0, 10).reach[0]
    assert found["lru"] < found["value"] == 20


def test_what_was_evicted_too_early_is_still_learned_from() -> None:
    store = TierStore([Tier("DRAM", 1.0, capacity_bytes=2.0)], 1.0, "value", 60.0, 2)
    for number in range(20):  # kind 0 comes back, each time after it was evicted; kind 1 does not
        store.use((number % 4,), 0, (0.1,), float(number))
        store.use((100 + number,), 1, (0.1,), number + 0.5)
    store.use((200,), 1, (0.1,), 20.0)
    assert store.found((3,), 0, 10).reach == (10,)


def test_set_ups_of_the_paper_load_or_say_what_is_missing(tmp_path: Path) -> None:
    for file in sorted(EXAMPLES.glob("*.toml")):
        with pytest.raises(TableError, match="LEEWAY_DATA"):
            load_cascade(file)
        with pytest.raises(TableError, match="no such file"):
            load_cascade(file, tmp_path)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("order = 1", "unknown key"),
        ("requests = 'many'", "requests"),
        ("lost_at = 0.5", "lost_at"),
        ("seeds = []", "one of each"),
    ],
)
def test_a_set_up_that_is_wrong_names_file_and_key(tmp_path: Path, text: str, wrong: str) -> None:
    (tmp_path / "base.toml").write_text(
        'name = "x"\nprofile = "qwen2.5-72b/tp4/gb200"\n'
        '[[classes]]\nname = "a"\nshare = 1.0\nttft_s = 1.0\ntrace = "a.csv"\nformat = "quantiles"\n'
        '[[tiers]]\nname = "DRAM"\ncapacity_gb = 1\ngb_per_s = 1\n[[variants]]\nlabel = "F"\norder = "fcfs"\n'
    )
    (tmp_path / "odd.toml").write_text(f'base = "base.toml"\n{text}\n')
    with pytest.raises(TableError, match=rf"odd\.toml.*{wrong}"):
        load_cascade(tmp_path / "odd.toml")
