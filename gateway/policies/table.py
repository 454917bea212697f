"""Policies by name. "plan" is not among them: it plans all that wait, not one request at a time (gateway/plan.py)."""

from collections.abc import Callable, Mapping
from random import Random
from types import MappingProxyType

from gateway.config import ModelSpec
from gateway.policies import counts, peers, reported
from gateway.policies.base import Policy, Probing

COUNTING: Mapping[str, Callable[[ModelSpec, Random], Policy]] = MappingProxyType(
    {
        "po2_requests": counts.PowerOfDRequests,
        "random": counts.RandomChoice,
        "round_robin": counts.RoundRobin,
        "least_request": counts.LeastRequest,
        "min_qpm": counts.MinQpm,
        "consistent_hash": counts.ConsistentHash,
    }
)
PROBING: Mapping[str, Callable[[ModelSpec, Random], Probing]] = MappingProxyType(
    {
        "po2": reported.PowerOfTwo,
        "pod": reported.PowerOfD,
        "fanout": reported.FanOut,
        "min_requests": reported.MinRequests,
        "infaas": reported.Infaas,
        "llumnix": reported.Llumnix,
        "nosim": reported.NoSim,
        "smg_least_load": peers.SmgLeastLoad,
        "cache_aware": peers.CacheAware,
        "llmd": peers.LlmD,
        "llmd_headroom": peers.LlmDHeadroom,
        "dynamo": peers.Dynamo,
        "bounded_hash": peers.BoundedHash,
    }
)
PREDICTING = frozenset(("po2", "pod", "fanout", "llmd_headroom"))
