"""Two managed vLLM processes on a device that holds one, behind a real gateway under mixed load."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from math import log
from pathlib import Path

from backends.vllm_local import VllmLaunch
from tests.engine.engine_http import SURELY_S, Answer, Json, Stream, Target, ask, wait_until
from tests.engine.engine_run import Engines, Gateway, Servers

PATH = "/v1/completions"
WAIT_S = 900.0  # four starts of an engine on a busy machine
TOKENS = 24
FINE = 0.3  # a prediction that is off by a third was good from the beginning
SURE = "smollm2"  # of how it goes on here; of random weights a batch of another size may tip a choice at each token
PROMPTS = ("1, 2, 3, 4, 5, 6,", "a, b, c, d, e, f,", "2, 4, 6, 8, 10,")
TABLES = """
[queue]
timeout_s = 900
[[devices]]
name = "cpu"
memory_gb = 0.8
[swaps]
plan_s = 0.2
dwell_s = 3
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
        """What the models said to each prompt: all whole, by the model asked for, and what it is sure of each time the same."""
        found: dict[tuple[str, str], str] = {}
        for model, prompt, stream, asked in self._asked:
            answer = asked.result()
            assert (answer.status, answer.broken) == (200, False), answer.body[-500:]
            text = streamed(answer, model) if stream else plain(answer, model)
            assert found.setdefault((model, prompt), text) == text or model != SURE
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


def off(predicted_s: float, seen_s: list[float]) -> float:
    """How far a prediction is from the nearest of what was seen, as a logarithm."""
    return min(abs(log(predicted_s / took_s)) for took_s in seen_s)


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
        wait_until(lambda: any(processes(launch) for launch in launches), SURELY_S, "a model is loaded")
        for pid in [pid for launch in launches for pid in processes(launch)]:
            with suppress(ProcessLookupError):  # the end of one may be another's
                os.kill(pid, signal.SIGKILL)
        texts = first.texts()
        assert sum(bool(processes(launch)) for launch in launches) == 1
        again = Load(gateway.target, models).texts()
        for prompt in PROMPTS:
            body: Json = {"model": SURE, "prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
            reference = str(ask(servers.smol_a.target, "POST", PATH, body).json()["choices"][0]["text"])  # type: ignore[index]
            assert texts[SURE, prompt] == again[SURE, prompt] == reference
            assert texts["tiny", prompt] != reference
        history = ask(gateway.admin, "GET", "/admin/plan").json()["history"]
        assert isinstance(history, list)
        steps = list(reversed(history))
        assert [step["outcome"] for step in steps] == ["done"] * len(steps)
        assert 3 <= len(steps) <= 4, "each load serves all who wait"
        assert gateway.log_path.read_text().count('"move tried again"') == 1, "the start that was killed"
        print("swaps: " + ", ".join(f"{s['model']} {s['predicted_s']:.1f}/{s['took_s']:.1f} s" for s in steps))
        first_off = max(off(steps[0]["predicted_s"], [steps[0]["took_s"]]), FINE)
        for number in (1, 2):  # how long each itself took depends on what else the machine does then
            seen = [step["took_s"] for step in steps[:number]]
            assert off(steps[number]["predicted_s"], seen) < first_off, "starts have taught it, the other model's too"
    assert not any(processes(launch) for launch in launches)
