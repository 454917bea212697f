"""Devices, swaps and footprints in the file: what is refused, with file, key and reason; what comes through a pipe."""

from pathlib import Path

import pytest

from gateway.config import from_json, masked, to_json
from gateway.config_file import ConfigError, load

TEXT = """
[[devices]]
name = "gpu0"
memory_gb = 24.0
[[backends]]
name = "a"
url = "http://127.0.0.1:9001"
models = ["m"]
swap = { device = "gpu0", way = "process", command = ["serve", "--port", "${PORT}"], env = { TOKEN = "secret-1" } }
[models.m]
footprint = { weight_gb = 16.0, overhead_gb = 1.0 }
"""


LINE = """models = ["m"]
swap = { device = "gpu0", way = "process", command = ["serve", "--port", "${PORT}"], env = { TOKEN = "secret-1" } }"""
SECOND = """[[backends]]
name = "b"
url = "http://127.0.0.1:9001"
models = ["n"]
swap = { device = "gpu0", way = "process", command = ["serve", "--port", "${PORT}"] }
[models.n]
footprint = { weight_gb = 16.0 }
[models.m]"""


def loaded(tmp_path: Path, text: str) -> object:
    path = tmp_path / "gateway.toml"
    path.write_text(text)
    return load(str(path))


def test_it_comes_through_and_hides_what_may_be_secret(tmp_path: Path) -> None:
    (tmp_path / "gateway.toml").write_text(TEXT)
    config = load(str(tmp_path / "gateway.toml"))
    assert config.backends[0].swap.command == ("serve", "--port", "${PORT}")
    assert config.model("m").footprint.weight_gb == 16.0
    assert from_json(to_json(config)) == config
    assert "secret-1" not in str(masked(config))
    assert "secret-1" not in repr(config)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('device = "gpu0", way', 'device = "gpu1", way', "backends.0.swap.device: no device is named 'gpu1'"),
        ('device = "gpu0", way', "way", "backends.0.swap.device: what moves needs a device"),
        ('way = "process"', 'way = "sleep"', 'swap.command: belongs to way = "process"'),
        (', command = ["serve", "--port", "${PORT}"]', "", 'swap.command: belongs to way = "process"'),
        ('models = ["m"]', "", "models: what moves must name the one model"),
        (LINE, 'swap = { device = "gpu0" }', "backends.0.models: needed, since what lies on 'gpu0' takes its memory"),
        ("[models.m]", SECOND, "backends.1.url: the process of 'a' listens on that port"),
        (":9001", "", "url: needs a port"),
        (":9001", ":0", "url: "),
        ("${PORT}", "${PROT}", "swap.command: ${PROT} in the command: known are"),
        ('["serve", ', '["", ', "swap.command: a managed process needs a command"),
        ('["serve", ', '["ser\\u0000ve", ', "swap.command: the command has a NUL character"),
        ("env = { TOKEN", 'env = { "A=B"', "swap.env: 'A=B' is no environment variable"),
        ('device = "gpu0", way', 'device = "gpu0", log = "a\\u0000", way', "swap: a name of a file or model has a NUL"),
        ("weight_gb = 16.0", "weight_gb = 26.0", "models.m.footprint: 27 GB do not fit on 'gpu0'"),
        ("weight_gb = 16.0", "weight_gb = 0.0", "models.m.footprint.weight_gb: needed"),
        ("overhead_gb = 1.0", "gpu_tokens_per_s = 30.0", "models.m.footprint: gpu_tokens_per_s and cpu_tokens_per_s"),
        ("memory_gb = 24.0", 'memory_gb = 24.0\nhost = "toaster"', "devices.0.host: unknown 'toaster'"),
        ("memory_gb = 24.0", 'memory_gb = 24.0\n[[devices]]\nname = "gpu0"\nmemory_gb = 1', "two are named 'gpu0'"),
    ],
)
def test_what_cannot_work_is_refused(tmp_path: Path, old: str, new: str, told: str) -> None:
    assert old in TEXT
    with pytest.raises(ConfigError) as error:
        loaded(tmp_path, TEXT.replace(old, new, 1))
    assert told in str(error.value)
    assert "gateway.toml" in str(error.value)


CROWD = """
[[devices]]
name = "gpu0"
memory_gb = 10
[[backends]]
name = "n"
url = "http://e1:8000"
models = ["n"]
swap.device = "gpu0"
[[backends]]
name = "m"
url = "http://e2:8000"
models = ["m"]
swap = { device = "gpu0", way = "sleep" }
[models.n]
footprint = { weight_gb = 7 }
[models.m]
footprint = { weight_gb = 3 }
"""


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("weight_gb = 3", "weight_gb = 4", "models.m.footprint: 4 GB do not fit on 'gpu0' beside the 7 GB that stay"),
        ("weight_gb = 7", "weight_gb = 11", "models that never leave 'gpu0' (way none, pinned) take 11 GB of 10"),
        (
            "weight_gb = 3",
            "weight_gb = 4, pinned = true",
            "models that never leave 'gpu0' (way none, pinned) take 11 GB of 10",
        ),
    ],
)
def test_memory_that_can_never_be_enough_is_refused(tmp_path: Path, old: str, new: str, told: str) -> None:
    loaded(tmp_path, CROWD)
    loaded(
        tmp_path, CROWD.replace("weight_gb = 3", "weight_gb = 4, gpu_tokens_per_s = 9, cpu_tokens_per_s = 1")
    )  # a part may do
    with pytest.raises(ConfigError) as error:
        loaded(tmp_path, CROWD.replace(old, new, 1))
    assert told in str(error.value)


def test_a_pinned_model_that_may_lie_elsewhere_is_no_mistake(tmp_path: Path) -> None:
    other = """
[[devices]]
name = "gpu1"
memory_gb = 10
[[backends]]
name = "m1"
url = "http://e3:8000"
models = ["m"]
swap = { device = "gpu1", way = "sleep" }
"""
    text = CROWD.replace(
        "[models.n]\nfootprint = { weight_gb = 7 }", "[models.n]\nfootprint = { weight_gb = 7, pinned = true }"
    )
    loaded(tmp_path, text.replace("weight_gb = 3", "weight_gb = 3, pinned = true") + other)
