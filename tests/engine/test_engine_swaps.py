"""Two managed vLLM processes on a device that holds one, behind a real gateway under mixed load."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from math import log
from pathlib import Path

from backends.vllm_local import VllmLaunch
from tests.engine.engine_http import Answer, Json, Stream, Target, ask, wait_until
from tests.engine.engine_run import Engines, Gateway, Servers

PATH = "/v1/completions"
WAIT_S = 400.0  # four starts of an engine on a busy machine
TOKENS = 24
SURE_TOKENS = 6  # further on, a batch of another size may tip a choice between two tokens that are as good as equal
PROMPTS = ("The capital of France is", "Once upon a time there was", "Water boils when")
TABLES = """
[queue]
timeout_s = 400
[[devices]]
name = "cpu"
memory_gb = 0.8
[swaps]
plan_s = 0.2
dwell_s = 1
"""


def tables(launches: tuple[VllmLaunch, ...], folder: Path) -> str:
    """What the gateway's file says of them: JSON's strings and arrays are TOML's as well."""
    lines = [TABLES]
    for launch in launches:
        command = [word.replace(str(launch.port), "${PORT}") for word in launch.command()]
        env = ", ".join(f"{name} = {json.dumps(value)}" for name, value in launch.environment({}).items())
        log_path = folder / f"managed-{launch.served_name}.log"
        lines += ["[[backends]]", f'name = "{launch.served_name}"', f'url = "{launch.url}"', 'engine = "vllm"']
        lines += [f'models = ["{launch.served_name}"]', "[backends.swap]", 'device = "cpu"', 'way = "process"']
        lines += [f"command = {json.dumps(command)}", f"env = {{ {env} }}", f'log = "{log_path}"', "stop_s = 15"]
        weights = (launch.model_dir / "model.safetensors").stat().st_size / 1e9
        lines += [f'[models."{launch.served_name}".footprint]', f"weight_gb = {weights:.4f}", "overhead_gb = 0.45"]
    return "\n".join(lines) + "\n"


def processes(launch: VllmLaunch) -> list[int]:
    """Those that were started by its command, without the guardian that stands before them."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if words[0] == str(launch.python) and str(launch.port) in words:
            found.append(int(path.parent.name))
    return found


class Load:
    """Requests to both models at once, streams and plain ones, in turn."""

    def __init__(self, target: Target, models: tuple[str, ...]) -> None:
        self._asked: list[tuple[str, str, bool, Stream]] = []
        for i, prompt in enumerate(PROMPTS * 2):
            for model in models:
                stream = i % 2 == 0
                more: Json = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
                body: Json = {"model": model, "prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
                self._asked.append((model, prompt, stream, Stream(target, PATH, {**body, **more}, timeout_s=WAIT_S)))

    def texts(self) -> dict[tuple[str, str], str]:
        """What each model said to each prompt: all whole, by the model asked for, and each time the same."""
        found: dict[tuple[str, str], str] = {}
        for model, prompt, stream, asked in self._asked:
            answer = asked.result()
            assert (answer.status, answer.broken) == (200, False), answer.body[-500:]
            text = streamed(answer, model) if stream else plain(answer, model)
            assert found.setdefault((model, prompt), text) == text
        return found


def plain(answer: Answer, model: str) -> str:
    said = json.loads(answer.body)
    assert (said["model"], said["usage"]["completion_tokens"]) == (model, TOKENS)
    return str(said["choices"][0]["text"])


def streamed(answer: Answer, model: str) -> str:
    *events, last = answer.events()
    assert last == b"data: [DONE]"
    said = [json.loads(event.removeprefix(b"data: ")) for event in events]
    assert {one["model"] for one in said} == {model}
    assert said[-1]["usage"]["completion_tokens"] == TOKENS
    return "".join(one["choices"][0]["text"] for one in said if one["choices"])


@contextmanager
def started(gateway: Gateway) -> Iterator[Gateway]:
    try:
        gateway.start()
        yield gateway
    finally:
        assert gateway.stop() == 0


def test_two_engines_on_a_device_that_holds_one(engines: Engines, servers: Servers, folder: Path) -> None:
    launches = (engines.launch("smollm2", "smollm2"), engines.launch("tiny", "tiny"))
    models = tuple(launch.served_name for launch in launches)
    with started(Gateway(folder, "swaps", {}, rule=tables(launches, folder))) as gateway:
        first = Load(gateway.target, models)
        wait_until(lambda: any(processes(launch) for launch in launches), 20.0, "a model is loaded")
        for pid in [pid for launch in launches for pid in processes(launch)]:
            os.kill(pid, signal.SIGKILL)
        texts = first.texts()
        assert sum(bool(processes(launch)) for launch in launches) == 1
        assert Load(gateway.target, models).texts() == texts
        for prompt in PROMPTS:
            body: Json = {"model": "smollm2", "prompt": prompt, "max_tokens": SURE_TOKENS, "temperature": 0}
            reference = str(ask(servers.smol_a.target, "POST", PATH, body).json()["choices"][0]["text"])  # type: ignore[index]
            assert texts["smollm2", prompt].startswith(reference)
            assert not texts["tiny", prompt].startswith(reference)
        history = ask(gateway.admin, "GET", "/admin/plan").json()["history"]
        assert isinstance(history, list)
        steps = list(reversed(history))
        assert [step["outcome"] for step in steps] == ["done"] * len(steps)
        assert 3 <= len(steps) <= 4, "each load serves all who wait"
        assert gateway.log_path.read_text().count('"move tried again"') == 1, "the start that was killed"
        errors = [abs(log(step["predicted_s"] / step["took_s"])) for step in steps]
        print("swaps: " + ", ".join(f"{s['model']} {s['predicted_s']:.1f}/{s['took_s']:.1f} s" for s in steps))
        assert errors[1] < errors[0], "the other model's start has taught it"
        assert errors[2] < errors[0]
    assert not any(processes(launch) for launch in launches)
