"""aiperf as the referee: the same schedule sent by another load generator, and what its records say.

It is installed by `setup.sh DIR aiperf`. It counts from the moment at which it really sends, the live bench's own
generator from the moment at which a request is due; `late_s` tells how far these are apart. The tokenizer that it
insists on is a stub: counts come from the server's usage.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.bench.live_mocks import MODEL
from tests.bench.live_trace import Planned
from tests.bench.peers import CLIENT_KEY, NotInstalledError

LIMIT_S = 240.0
NICE = "-15"
_MODEL = {"type": "WordLevel", "vocab": {"[UNK]": 0, "a": 1}, "unk_token": "[UNK]"}
_EMPTY = dict.fromkeys(("truncation", "padding", "normalizer", "post_processor", "decoder"))
_WORDS = {"type": "Whitespace"}
_TOKENIZER: dict[str, object] = {"version": "1.0", "added_tokens": [], "pre_tokenizer": _WORDS, "model": _MODEL, **_EMPTY}
_SETTINGS = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "[UNK]", "eos_token": "[UNK]", "bos_token": "[UNK]"}


@dataclass(frozen=True, slots=True)
class Recorded:
    """One request as aiperf saw it."""

    late_s: float
    ttft_s: float
    e2e_s: float


def referee(home: Path, scratch: Path, port: int, planned: Sequence[Planned]) -> list[Recorded]:
    """Run aiperf on a schedule. Raises NotInstalledError, and OSError or ValueError when it does not do its work."""
    program = home / "v_aiperf" / "bin" / "aiperf"
    if not program.exists():
        raise NotInstalledError("aiperf is missing: run setup.sh DIR aiperf")
    schedule, tokenizer, out = scratch / "schedule.jsonl", scratch / "tokenizer", scratch / "out"
    schedule.write_text("".join(line + "\n" for line in lines(planned)))
    tokenizer.mkdir(exist_ok=True)
    (tokenizer / "tokenizer.json").write_text(json.dumps(_TOKENIZER))
    (tokenizer / "tokenizer_config.json").write_text(json.dumps(_SETTINGS))
    where = [
        "--url",
        f"http://127.0.0.1:{port}",
        "--endpoint-type",
        "chat",
        "--streaming",
        "-m",
        MODEL,
        "--api-key",
        CLIENT_KEY,
    ]
    what = ["--input-file", str(schedule), "--custom-dataset-type", "mooncake_trace", "--fixed-schedule"]
    how = ["--tokenizer", str(tokenizer), "--use-server-token-count", "--output-artifact-dir", str(out), "--ui", "none"]
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "LEEWAY_"))}
    done = subprocess.run(
        ["nice", "-n", NICE, str(program), "profile", *where, *what, *how],
        env=env | {"HOME": str(scratch)},
        cwd=scratch,
        capture_output=True,
        timeout=LIMIT_S,
        check=False,
    )
    records = out / "profile_export.jsonl"
    if not records.exists():
        raise OSError(f"aiperf: {done.stdout.decode(errors='replace')[-400:]}")
    return list(read(records.read_text().splitlines()))


def lines(planned: Sequence[Planned]) -> Iterator[str]:
    """The schedule in aiperf's form of a Mooncake trace with real text."""
    for one in planned:
        text = json.loads(one.body)["messages"][0]["content"]
        yield json.dumps({"timestamp": round(one.at_s * 1000), "text_input": text})


def read(records: Sequence[str]) -> Iterator[Recorded]:
    """aiperf's records; those of failed requests are left out."""
    for record in map(json.loads, records):
        metrics, meta = record["metrics"], record["metadata"]
        if "time_to_first_token" in metrics:
            late_s = (meta["request_start_ns"] - meta["credit_issued_ns"]) / 1e9
            ttft_s, e2e_s = (metrics[name]["value"] / 1e3 for name in ("time_to_first_token", "request_latency"))
            yield Recorded(late_s, ttft_s, e2e_s)
