"""What a running gateway says of the layers that foretell lengths: by its API, its metrics and its command."""

import asyncio
import json
import math
import random
from dataclasses import replace

from typer.testing import CliRunner

from gateway.cli import cli
from gateway.config import ModelSpec
from predictor.features import FEATURES, Cues
from predictor.layers import LAYERS
from predictor.length import Guess, LengthTagger
from tests.wire.kit import ADMIN_KEY, CONFIG, Rig, chat, metric, run

CONFIGURED = replace(CONFIG, models=(ModelSpec("m", "plan"),))
BLANK = Cues((0.0,) * len(FEATURES), (1,))


def teach(tagger: LengthTagger, count: int) -> None:
    """Answers of a steady length, foretold by trees that guess at random."""
    rng = random.Random(5)
    for _ in range(count):
        told = 5.0 + rng.uniform(-4.0, 4.0)
        tag = tagger.tag("m", "chat", BLANK, {"trees": Guess(told - 0.5, told, told + 0.5, "trees")}, -1)
        tagger.observe(tag, round(math.exp(rng.gauss(5.0, 0.3))), truncated=False)


def test_a_layer_that_does_not_help_is_off_and_says_so() -> None:
    async def case(rig: Rig) -> None:
        assert (await rig.ask(chat("hello"))).status == 200
        (fresh,) = json.loads((await rig.admin("GET", "/admin/lengths")).body)["models"]
        assert [layer["name"] for layer in fresh["layers"] if layer["on"]] == ["running"]
        assert fresh["pinball"] is None

        teach(rig.app.plane.desks.tagging.tagger, 400)
        (shown,) = json.loads((await rig.admin("GET", "/admin/lengths")).body)["models"]
        layers = {layer["name"]: layer for layer in shown["layers"]}
        assert tuple(layers) == LAYERS
        assert (layers["trees"]["on"], layers["trees"]["weight"]) == (False, 0.0)
        assert layers["trees"]["why"].startswith("off: error")
        assert layers["trees"]["error"] > 1.5 > layers["running"]["error"]
        assert layers["encoder"]["why"] == "has not been there"
        assert layers["encoder"]["error"] is None
        assert 0.8 < shown["coverage_q90"] < 1.0
        assert shown["pinball"] <= 1.05 * shown["pinball_running"]

        text = await rig.metrics()
        assert 'leeway_length_layer_on{layer="trees",model="m"} 0.0' in text
        assert metric(text, "leeway_length_layer_on") == sum(layer["on"] for layer in shown["layers"])

    run(case, CONFIGURED, backends=1)


def test_the_command_tells_it_to_people() -> None:
    async def case(rig: Rig) -> None:
        await rig.ask(chat("hello"))
        teach(rig.app.plane.desks.tagging.tagger, 400)
        asked = ["tagger", "inspect", "--control", f"http://127.0.0.1:{rig.app.control_port}", "--admin-key", ADMIN_KEY]
        said = await asyncio.to_thread(CliRunner().invoke, cli, asked)
        assert said.exit_code == 0, said.output
        first, *layers = said.output.splitlines()
        assert first.startswith("m: 40")
        assert "q90 covers 0." in first
        assert [line.split()[0] for line in layers] == list(LAYERS)
        assert "off: error" in layers[LAYERS.index("trees")]

    run(case, CONFIGURED, backends=1)


def test_the_command_says_why_it_cannot_ask() -> None:
    said = CliRunner().invoke(cli, ["tagger", "inspect", "--control", "http://127.0.0.1:1"])
    assert said.exit_code == 1
    assert "cannot be asked" in said.output
