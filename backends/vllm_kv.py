"""Any KV connector of vLLM, asked whether its load fits the request's budget; else the prompt is computed again.

    --kv-transfer-config '{"kv_connector": "BudgetedNAME", "kv_connector_module_path": "backends.vllm_kv", "kv_role":
        "kv_both", "kv_load_failure_policy": "recompute", "kv_connector_extra_config": {"leeway_tokens_per_s": 20000}}'

NAME is a connector that vLLM knows (ExampleConnector, LMCacheConnectorV1, OffloadingConnector), or `Connector` for the
class that LEEWAY_CONNECTOR names (`package.module:Class`). The class made is a subclass of it, so that all else is its
own. Loading a part of what was found (`leeway_rule = "partial"`) is for connectors that allow it: LMCache does not.
"""

import importlib
import os
import time
from functools import cache
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.logger import init_logger

from backends.restore_rule import RestoreRule, options
from backends.standing import standing

PREFIX = "Budgeted"
OWN = "LEEWAY_CONNECTOR"
FOUND_MAX = 4096
_KEY = "leeway_"
_wall = time.time  # noqa: TID251 - as vLLM stamps arrivals, and as deadlines are sent

logger = init_logger("vllm.leeway")


class _Budgeting:
    """The mixin in front of a connector. Uses of vLLM's: the constructor's three arguments, get_num_new_matched_tokens,
    update_state_after_alloc, and the request's sampling_params, priority, arrival_time."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)  # type: ignore[call-arg]
        self.leeway_rule: RestoreRule | None = None
        if role == KVConnectorRole.SCHEDULER:
            transfer = vllm_config.kv_transfer_config
            extra = {k: v for k, v in transfer.kv_connector_extra_config.items() if k.startswith(_KEY)}
            self.leeway_rule = RestoreRule(options(extra), vllm_config.cache_config.block_size)
            self._leeway_found: dict[str, int] = {}
            if transfer.kv_load_failure_policy != "recompute":
                logger.warning("kv_load_failure_policy is %r: a failed load fails its request", transfer.kv_load_failure_policy)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        """The connector's own answer, cut to what the budget allows."""
        found, later = super().get_num_new_matched_tokens(request, num_computed_tokens)  # type: ignore[misc]
        rule = self.leeway_rule
        if not found or rule is None:
            return found, later
        own = getattr(request, "leeway", None)
        if own is None:
            sampling = request.sampling_params
            own = standing(None if sampling is None else sampling.extra_args, request.priority, request.arrival_time)
        tokens = rule.allowed(request, own, num_computed_tokens, found, _wall())
        self._leeway_found[request.request_id] = found
        if len(self._leeway_found) > FOUND_MAX:  # of requests that never got their blocks
            del self._leeway_found[next(iter(self._leeway_found))]
        return tokens, later and tokens > 0

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """The connector's own, and the transfer is counted."""
        super().update_state_after_alloc(request, blocks, num_external_tokens)  # type: ignore[misc]
        rule = self.leeway_rule
        found = self._leeway_found.pop(request.request_id, 0) if rule is not None else 0
        if rule is not None and found:
            rule.begun(found, num_external_tokens, _wall())
            logger.info("%s: %d of %d tokens are loaded; %r", request.request_id, num_external_tokens, found, rule)


@cache
def budgeted(name: str) -> type:
    """The class of that name. AttributeError for names that are none, as a module's attributes are asked for."""
    if not name.startswith(PREFIX) or name == PREFIX:
        raise AttributeError(name)
    inner = _named(name.removeprefix(PREFIX))
    return type(name, (_Budgeting, inner), {"__doc__": f"{inner.__name__}, within budgets.", "__module__": __name__})


def _named(name: str) -> type:
    if name == "Connector":
        module, _, own = os.environ.get(OWN, "").partition(":")
        if not module or not own:
            raise AttributeError(f"{OWN} must name the connector as package.module:Class")
        found: type = getattr(importlib.import_module(module), own)
        return found
    try:
        registered: type = KVConnectorFactory.get_connector_class_by_name(name)
    except ValueError as error:
        raise AttributeError(str(error)) from None
    return registered


def __getattr__(name: str) -> type:
    return budgeted(name)
