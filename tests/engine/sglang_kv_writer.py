"""Publishes KV events with SGLang's own recorder and publisher, from the installed wheel, over real ZMQ sockets.

Runs in the engine's environment, where the wheel lies without its CUDA dependencies: only the two files are loaded, with
what they import stood in for; page hashes are those of a stand-in. A prompt and its answer are two nodes of the tree, as the
unified radix cache makes them. Commands come as JSON lines: {"store": [session, prompt tokens, answer tokens]},
{"remove": "answer" | "prompt"}, {"ping": true} for a page of nobody's.
usage: sglang_kv_writer.py PORT PAGE
"""

import hashlib
import json
import sys
import time

from sglang_wheel import WHEEL, load, stand_in


class Key:
    """The tokens of a node, as the recorder reads them."""

    extra_key = cache_salt = None
    is_bigram = False

    def __init__(self, tokens: list[int]) -> None:
        self.token_ids = tokens

    def __len__(self) -> int:
        return len(self.token_ids)


class Node:
    """A node of the tree; the root has no parent."""

    def __init__(self, parent: "Node | None", tokens: list[int]) -> None:
        self.parent = parent
        self.key = Key(tokens)
        self.hash_value: list[str] | None = None if parent else []
        self.event_hash_value = None


def page_hashes(node: Node, page: int) -> list[str]:
    digest = node.parent.hash_value[-1] if node.parent is not None and node.parent.hash_value else ""
    found = []
    for at in range(0, len(node.key), page):
        digest = hashlib.sha256(f"{digest}{node.key.token_ids[at : at + page]}".encode()).hexdigest()
        found.append(digest)
    return found


def to_int64(digest: str) -> int:
    value = int(digest[:16], 16)
    return value - (1 << 64) if value >= 1 << 63 else value


srt = WHEEL / "srt"
for package in ("sglang", "sglang.srt", "sglang.srt.utils", "sglang.srt.disaggregation", "sglang.srt.mem_cache"):
    stand_in(package)
stand_in("sglang.srt.runtime_context", get_parallel=None)
stand_in("sglang.srt.utils.network", NetworkAddress=None)
stand_in(
    "sglang.srt.mem_cache.utils",
    compute_node_event_hash_values=page_hashes,
    compute_node_hash_values=page_hashes,
    hash_str_to_int64=to_int64,
)
events = load("sglang.srt.disaggregation.kv_events", srt / "disaggregation" / "kv_events.py")
recording = load("sglang_kv_recorder", srt / "mem_cache" / "events.py")
port, page = int(sys.argv[1]), int(sys.argv[2])
recorder = recording.KVCacheEventRecorder(enabled=True, page_size=page)
publisher = events.ZmqEventPublisher(0, endpoint=f"tcp://*:{port}")
root = Node(None, [])
nodes: dict[str, Node] = {}
print("publishing", flush=True)
for line in sys.stdin:
    command = json.loads(line)
    if "store" in command:
        session, prompt_tokens, answer_tokens = command["store"]
        for name, parent, count in (("prompt", root, prompt_tokens), ("answer", None, answer_tokens)):
            node = nodes[name] = Node(parent or nodes["prompt"], list(range(count - count % page)))
            recorder.record_store(node, session_id=session)
            publisher.publish(events.KVEventBatch(ts=time.time(), events=recorder.take()))
    elif "ping" in command:
        recorder.record_store(Node(root, [-1] * page))
        publisher.publish(events.KVEventBatch(ts=time.time(), events=recorder.take()))
    else:
        recorder.record_remove(nodes[command["remove"]])
        publisher.publish(events.KVEventBatch(ts=time.time(), events=recorder.take()))
