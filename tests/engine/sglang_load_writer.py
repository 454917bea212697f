"""Writes a load snapshot with SGLang's own code, from the installed wheel, and prints what it wrote as JSON.

Runs in the engine's environment, where the wheel lies without its CUDA dependencies: only the one file is loaded, with
the modules that it imports from stood in for.
usage: sglang_load_writer.py PATH
"""

import importlib.util
import json
import sys
import types
from pathlib import Path
from typing import Any


def load_module() -> Any:
    spec = importlib.util.find_spec("sglang")
    assert spec is not None
    assert spec.submodule_search_locations
    path = Path(spec.submodule_search_locations[0]) / "srt" / "managers" / "load_snapshot.py"
    names = {
        "sglang.srt.environ": ("envs",),
        "sglang.srt.runtime_context": ("get_parallel", "get_serving"),
        "sglang.srt.utils.network": ("is_zmq_endpoint_ipv6", "restrict_zmq_peers", "zmq_connect"),
    }
    for package in ("sglang", "sglang.srt", "sglang.srt.utils"):
        sys.modules[package] = types.ModuleType(package)
    for name, members in names.items():
        stand_in = sys.modules[name] = types.ModuleType(name)
        for member in members:
            setattr(stand_in, member, None)
    loaded = importlib.util.spec_from_file_location("sglang_load_snapshot", path)
    assert loaded is not None
    assert loaded.loader is not None
    module = importlib.util.module_from_spec(loaded)
    sys.modules["sglang_load_snapshot"] = module
    loaded.loader.exec_module(module)
    return module


snapshots = load_module()
written = snapshots.LoadSnapshot(
    timestamp=1000.0,
    dp_rank=1,
    num_running_reqs=3,
    num_waiting_reqs=2,
    num_waiting_uncached_tokens=900,
    num_used_tokens=3000,
    num_total_tokens=3900,
    max_total_num_tokens=40_000,
    max_running_requests=64,
    gen_throughput=512.5,
    decode_moments=[1.0, 2.0],
    queues=snapshots.QueueMetrics(2, 0, 0, 0, 0),
)
for rank in (0, 1):
    snapshots.ShmLoadSnapshotWriter(sys.argv[1], 2, rank)
writer = snapshots.ShmLoadSnapshotWriter(sys.argv[1], 2, 1)
writer.write(written)
print(json.dumps({"path": snapshots.shm_path_for("ipc-name"), **written.to_dict({"core"})}))
