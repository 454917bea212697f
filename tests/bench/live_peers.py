"""The routers of the live bench and how each is started, in front of the same eight replicas.

Each runs with its own defaults but for what is named here: addresses, the policy, logs of errors only. HAProxy keeps its
connections; routers that limit concurrency by default would refuse at these loads, so they are left at what they do.
Leeway's TOML names listeners, eight vLLM servers and one key; "leeway" names no policy at all.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import gateway
from tests.bench.live_mocks import MODEL, REPLICAS
from tests.bench.peers import (
    CLIENT_KEY,
    Command,
    Place,
    Recipe,
    balanced,
    routed,
)

GATEWAY_PORT, CONTROL_PORT = 21400, 21401
FIRST_MOCK_PORT = 21301
MOCK_PORTS = tuple(range(FIRST_MOCK_PORT, FIRST_MOCK_PORT + REPLICAS))
# By default smg leaves out workers whose KV was 80 % full when it last looked, up to ten seconds ago, and herds on the rest
# where KV is this scarce; so beside its defaults ("smg") there are two policies of it without that.
OPEN = ("--disable-worker-overload-protection",)
TOLD = 'profile = "llama-3.1-70b/tp4/h100"\nmax_num_batched_tokens = 2048\nmax_num_seqs = 128\n'
URLS = tuple(f"http://127.0.0.1:{port}" for port in MOCK_PORTS)


def haproxy(place: Place) -> Command:
    """Fewest connections, which is fewest requests in flight."""
    return balanced(place, "leastconn", GATEWAY_PORT, MOCK_PORTS)


def router(environment: str, policy: str, *module: str, more: tuple[str, ...] = ()) -> Recipe:
    """A Rust router with one of its policies and `more` options."""
    return routed(environment, module, policy, GATEWAY_PORT, CONTROL_PORT, URLS, more)


def leeway_config(rule: str = "", engine_settings: str = "") -> str:
    """Eight vLLM servers and one key; `rule` is the model's table, `engine_settings` what is said of each backend."""
    backends = "\n".join(
        f'[[backends]]\nname = "b{number}"\nurl = "{url}"\nengine = "vllm"\n{engine_settings}'
        for number, url in enumerate(URLS, 1)
    )
    digest = hashlib.sha256(CLIENT_KEY.encode()).hexdigest()
    listen = f'[listen]\ndata = "127.0.0.1:{GATEWAY_PORT}"\ncontrol = "127.0.0.1:{CONTROL_PORT}"\n'
    return f'{listen}\n{backends}\n[[keys]]\nsha256 = "{digest}"\n\n{rule}'


def leeway(rule: str = "", engine_settings: str = "") -> Recipe:
    """The gateway with this rule for the model."""

    def recipe(place: Place) -> Command:
        config = place.scratch / "gateway.toml"
        config.write_text(leeway_config(f"[models.{MODEL}]\n{rule}" if rule else "", engine_settings))
        built = str(Path(gateway.__file__).parents[1])  # the wheel, as `make bench-live` runs it
        return Command((place.python, "-m", "gateway", "serve", str(config)), {"PYTHONPATH": built}, place.scratch)

    return recipe


PEERS: Mapping[str, Recipe] = {
    "haproxy": haproxy,
    "vllm-router-po2": router("v_vr", "power_of_two", "vllm_router.launch_router"),
    "vllm-router-cache": router("v_vr", "cache_aware", "vllm_router.launch_router"),
    "sglang-router": router("v_sr", "cache_aware", "sglang_router.launch_router"),
    "smg": router("v_smg", "cache_aware", "smg", "launch"),
    "smg-po2": router("v_smg", "power_of_two", "smg", "launch", more=("--power-of-two-load-metric", "requests", *OPEN)),
    "smg-least-load": router("v_smg", "least_load", "smg", "launch", more=OPEN),
    "leeway-po2": leeway('policy = "po2"\n'),
    "leeway": leeway(),
    # Not compared by default: Leeway told what its engines are, Leeway without its line, Leeway with
    # bounds to who may overtake whom.
    "leeway-told": leeway(engine_settings=TOLD),
    "leeway-early": leeway('binding = "early"\n'),
    "leeway-bounded": leeway("overtaking_s = 20.0\nmargin = 0.06\n"),
    "leeway-early-told": leeway('binding = "early"\n', TOLD),
}
COMPARED = (
    "haproxy",
    "vllm-router-po2",
    "vllm-router-cache",
    "sglang-router",
    "smg",
    "smg-po2",
    "smg-least-load",
    "leeway-po2",
    "leeway",
)
QUICK = ("haproxy", "smg", "leeway")
