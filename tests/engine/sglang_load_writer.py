"""Writes a load snapshot with SGLang's own code, from the installed wheel, and prints what it wrote as JSON.

Runs in the engine's environment, where the wheel lies without its CUDA dependencies: only the one file is loaded, with
the modules that it imports from stood in for.
usage: sglang_load_writer.py PATH
"""

import json
import sys
from typing import Any

from sglang_wheel import WHEEL, load, stand_in


def load_module() -> Any:
    names = {
        "sglang.srt.environ": ("envs",),
        "sglang.srt.runtime_context": ("get_parallel", "get_serving"),
        "sglang.srt.utils.network": ("is_zmq_endpoint_ipv6", "restrict_zmq_peers", "zmq_connect"),
    }
    for package in ("sglang", "sglang.srt", "sglang.srt.utils"):
        stand_in(package)
    for name, members in names.items():
        stand_in(name, **dict.fromkeys(members))
    return load("sglang_load_snapshot", WHEEL / "srt" / "managers" / "load_snapshot.py")


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
