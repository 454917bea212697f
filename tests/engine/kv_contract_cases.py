"""What backends.vllm_kv relies on of vLLM's connectors and of LMCache's; runs in the engine's environment.

LMCache needs CUDA: its source is parsed, not imported.
"""

import ast
import inspect
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorRole, supports_hma
from vllm.distributed.kv_transfer.kv_connector.v1.offloading import scheduler as offloading
from vllm.utils.func_utils import supports_kw
from vllm.v1.kv_offload.base import Medium
from vllm.v1.kv_offload.tiering import manager as tiering

import backends.vllm_kv as ours
from tests.engine.in_engine import run_cases

NAMES = ("ExampleConnector", "LMCacheConnectorV1", "MultiConnector", "OffloadingConnector")
NOW_S = 1_800_000_000.0


class Inner(KVConnectorBase_V1):
    """A connector that finds what it is told to find, and remembers what it was told."""

    finds: tuple[int | None, bool] = (320, True)

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        self.told: list[int] = []

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        return self.finds

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        self.told.append(num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        return None

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None: ...
    def wait_for_layer_load(self, layer_name: str) -> None: ...
    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None: ...
    def wait_for_save(self) -> None: ...


def made(role: KVConnectorRole = KVConnectorRole.SCHEDULER, **extra: object) -> Any:
    os.environ[ours.OWN] = f"{__name__}:Inner"
    given = {f"leeway_{name}": value for name, value in extra.items()}
    transfer = SimpleNamespace(kv_connector_extra_config=given, kv_load_failure_policy="recompute")
    config = SimpleNamespace(kv_transfer_config=transfer, cache_config=SimpleNamespace(block_size=16))
    connector: Any = ours.BudgetedConnector
    ours._wall = lambda: NOW_S
    return connector(config, role, None)


def request(**hints: object) -> Any:
    told = {"leeway_v": 1, **{f"leeway_{name}": value for name, value in hints.items()}}
    sampling = SimpleNamespace(extra_args=told)
    return SimpleNamespace(request_id="r", num_prompt_tokens=400, sampling_params=sampling, priority=0, arrival_time=NOW_S)


def every_connector_can_be_wrapped() -> None:
    for name in NAMES:
        inner = KVConnectorFactory.get_connector_class_by_name(name)
        outer: Any = getattr(ours, f"Budgeted{name}")
        assert issubclass(outer, inner), name
        assert outer.__name__ == f"Budgeted{name}"
        assert outer is getattr(ours, f"Budgeted{name}"), "one class, however often it is asked for"
        assert supports_kw(outer, "kv_cache_config"), name
        assert supports_hma(outer) == supports_hma(inner), name
        assert not inspect.isabstract(outer), name


def names_that_are_none_are_refused() -> None:
    for name in ("Budgeted", "BudgetedNobody", "ExampleConnector", "__path__"):
        assert not hasattr(ours, name), name


def calls_are_as_the_scheduler_makes_them() -> None:
    matched = inspect.signature(KVConnectorBase_V1.get_num_new_matched_tokens)
    assert list(matched.parameters) == ["self", "request", "num_computed_tokens"]
    after = inspect.signature(KVConnectorBase_V1.update_state_after_alloc)
    assert list(after.parameters) == ["self", "request", "blocks", "num_external_tokens"]


def a_load_that_does_not_fit_becomes_none() -> None:
    connector = made(tokens_per_s=100.0)
    late = request(ttft_ms=500)
    assert connector.get_num_new_matched_tokens(late, 0) == (0, False)
    connector.update_state_after_alloc(late, None, 0)
    assert connector.told == [0], "the connector hears of it"
    assert connector.leeway_rule.refused == 1
    early = request(ttft_ms=50_000)
    assert connector.get_num_new_matched_tokens(early, 0) == (320, True)
    connector.update_state_after_alloc(early, None, 320)
    assert connector.leeway_rule.loaded == 1


def what_is_not_known_yet_stays_so() -> None:
    connector = made()
    for finds in ((None, False), (0, False)):
        connector.finds = finds
        assert connector.get_num_new_matched_tokens(request(ttft_ms=1), 0) == finds


def the_worker_s_half_decides_nothing() -> None:
    connector = made(KVConnectorRole.WORKER, tokens_per_s=1.0)
    assert connector.leeway_rule is None
    assert connector.get_num_new_matched_tokens(request(ttft_ms=1), 0) == (320, True)


def lmcache_takes_none_and_no_part() -> None:
    """Its scheduler side accepts 0 loaded tokens of those that it found, and asserts on any other number than all."""
    spec = find_spec("lmcache")
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent / "integration" / "vllm"
    adapter = _method(folder / "vllm_v1_adapter.py", "LMCacheConnectorV1Impl", "update_state_after_alloc")
    assert [one.arg for one in adapter.args.args] == ["self", "request", "num_external_tokens"]
    tests = [ast.unparse(node.test) for node in ast.walk(adapter) if isinstance(node, ast.If)]
    assert "num_external_tokens == 0" in tests
    asserts = [ast.unparse(node.test) for node in ast.walk(adapter) if isinstance(node, ast.Assert)]
    assert any("num_external_tokens == " in text for text in asserts), "a part is refused"
    dynamic = folder / "lmcache_connector_v1.py"
    for name in ("get_num_new_matched_tokens", "update_state_after_alloc"):
        assert _method(dynamic, "LMCacheConnectorV1Dynamic", name)
    several = _method(folder / "lmcache_mp_connector.py", "LMCacheMPConnector", "update_state_after_alloc")
    assert "num_external_tokens > 0" in ast.unparse(several)


def an_empty_list_of_tiers_forbids_those_below_the_host() -> None:
    """What the gateway sends when a restore does not fit (`kv_load_tiers: []`), read by vLLM's own code."""
    for params, allowed in (({"kv_load_tiers": []}, False), (None, True), ({}, True)):
        asked = SimpleNamespace(request_id="r", kv_transfer_params=params, kv_hints=None)
        found = offloading._create_req_context(asked).load_tier_filter
        assert [found.allows(medium, None) for medium in (None, *Medium)] == [allowed] * (1 + len(Medium)), params
    asks = [node for node in ast.walk(ast.parse(inspect.getsource(tiering))) if isinstance(node, ast.For)]
    filtered = [node for node in asks if "load_tier_filter.allows" in ast.unparse(node)]
    assert [ast.unparse(node.iter) for node in filtered] == ["enumerate(self.secondary_tiers)"], (
        "the host's memory is not asked"
    )


def _method(path: Path, owner: str, name: str) -> ast.FunctionDef:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef) and node.name == owner:
            for item in node.body:
                if isinstance(item, ast.FunctionDef) and item.name == name:
                    return item
    raise AssertionError(f"{path.name} has no {owner}.{name}")


CASES = [
    every_connector_can_be_wrapped,
    names_that_are_none_are_refused,
    calls_are_as_the_scheduler_makes_them,
    a_load_that_does_not_fit_becomes_none,
    what_is_not_known_yet_stays_so,
    the_worker_s_half_decides_nothing,
    lmcache_takes_none_and_no_part,
    an_empty_list_of_tiers_forbids_those_below_the_host,
]

if __name__ == "__main__":
    sys.modules[__spec__.name] = sys.modules[__name__]  # type: ignore[union-attr]
    run_cases(CASES, sys.argv[2:])
