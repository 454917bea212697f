"""examples/swaps is a configuration as the gateway reads it, in which each device holds any one of its models."""

from pathlib import Path

import pytest

from gateway import config_file
from gateway.config import DeviceSpec
from gateway.lodging import Lodger, Lodging
from gateway.swap_views import model_list
from predictor.hosts import host_profiles

FOLDER = Path(__file__).parents[2] / "examples" / "swaps"
CONFIG = config_file.load(str(FOLDER / "gateway.toml"))


def lodging() -> Lodging:
    made = Lodging(CONFIG, host_profiles)
    made.lodge([Lodger(b.name, b.models[0], b.swap.device) for b in CONFIG.backends], 0.0)
    return made


@pytest.mark.parametrize("device", CONFIG.devices, ids=lambda device: device.name)
def test_a_device_holds_each_of_its_models_but_not_two(device: DeviceSpec) -> None:
    models = {view.model: view for view in model_list(lodging(), [], 0.0).models}
    mine = [models[backend.models[0]] for backend in CONFIG.backends if backend.swap.device == device.name]
    sizes = [view.footprint.whole_gb for view in mine]
    assert len(sizes) == 2
    assert max(sizes) <= device.memory_gb < sum(sizes)


def test_both_ways_are_shown() -> None:
    assert [backend.swap.way for backend in CONFIG.backends] == ["process", "process", "sleep", "sleep"]
    assert all(("${PORT}" in backend.swap.command) == (backend.swap.way == "process") for backend in CONFIG.backends)


def test_the_readme_starts_the_servers_that_the_file_names() -> None:
    text = (FOLDER / "README.md").read_text()
    for backend in CONFIG.backends:
        if backend.swap.way == "sleep":
            assert f"vllm serve {backend.models[0]} --port {backend.url.rpartition(':')[2]} --enable-sleep-mode" in text
