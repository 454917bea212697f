"""The mover of a spec: the only place, with the registry, that names what can move a model. Shell."""

import os

from backends.base import ControlHttp
from backends.llamacpp import LlamaCppModel
from backends.managed import ManagedProcess
from backends.moves import Mover, MoverSpec
from backends.ollama import OllamaModel
from backends.sglang_memory import SglangMemory
from backends.vllm_sleep import VllmSleep


def mover_for(spec: MoverSpec, http: ControlHttp) -> Mover:
    """A mover that speaks to its backend by `http`, whose own time-out must not be shorter than `start_s` and `stop_s`.

    Raises ValueError for a spec that cannot work: an unknown way or level, a command that cannot be filled.
    """
    if spec.swap.way == "sleep":
        return VllmSleep(spec, http)
    if spec.swap.way == "memory":
        return SglangMemory(spec, http)
    if spec.swap.way == "ollama":
        return OllamaModel(spec, http)
    if spec.swap.way == "llamacpp":
        return LlamaCppModel(spec, http)
    if spec.swap.way == "process":
        return ManagedProcess(spec, http, _inherited())
    raise ValueError(f"there is no way {spec.swap.way!r} to move a model")


def _inherited() -> dict[str, str]:
    """Our environment without our own settings: an engine needs no admin key. What it needs of that kind is in its spec."""
    return {name: value for name, value in os.environ.items() if not name.upper().startswith("LEEWAY_")}
