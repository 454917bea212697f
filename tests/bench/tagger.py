"""What predicting lengths costs, and whether it answers in time. `make bench-tagger`

Cache and skip are off, so every request is asked about; the models are those shipped, or those of --models. Three parts:
thread CPU time of each layer for one prompt, over a mix of prompts, beside a fixed reference loop; the tagger's process asked
30 times a second at random moments, it and who asks on one core; and two gateways on that core, one with the tagger and one
without, which relay paced streams while requests come at the same rate: how long an event is under way in each. The last
line on standard output is JSON.
"""

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median, quantiles

from gateway.prompt_ends import Ends, ends_of, view_of_ends
from gateway.tag_frames import Question, Reply, decode_question, decode_reply, encode_question, encode_reply
from gateway.tag_link import SHIPPED, Asked, TagLink, command_of
from gateway.tag_worker import Models
from predictor.features import cues
from predictor.length import LengthTagger
from predictor.prompts import PromptView
from tests.bench.process import running
from tests.wire.peer import Peer, Sent, connect
from tests.wire.scripted import DONE, FINISH, Call, ScriptedBackend, event

RATE_PER_S = 30.0
STREAMS, EVENT_S, ROUND_S = 40, 0.04, 5.0
PROMPTS = (
    "hi",
    "What is the capital of France?",
    "Write a short poem about the sea.",
    "Translate into German: the quick brown fox jumps over the lazy dog.",
    "Explain step by step how a hash table works, with an example in Python and its costs.",
    "Summarise in three sentences: " + "The committee met on Tuesday and agreed on nothing of note. " * 12,
    "Here is my code:\n```python\n" + "def f(x):\n    return x + 1\n" * 20 + "```\nWhy is it slow? Rewrite it.",
    "You are an agent. " + "Tools are described at length in this part of the prompt. " * 300 + "\nNow list the files.",
)


async def pause(wait_s: float) -> None:
    """Let time pass."""
    with suppress(TimeoutError):
        await asyncio.wait_for(asyncio.Event().wait(), wait_s)


def body(text: str, **fields: object) -> bytes:
    """A chat request."""
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": text}], **fields}).encode()


def timed_ms(call: Callable[..., object], *arguments: object) -> float:
    """Thread CPU time of one call."""
    began_ns = time.thread_time_ns()
    call(*arguments)
    return (time.thread_time_ns() - began_ns) / 1e6


def reference() -> int:
    """A fixed piece of interpreter work, to compare machines."""
    total = 0
    for number in range(100_000):
        total += number ^ 7
    return total


class Costs:
    """The layers, called as the two processes call them."""

    def __init__(self, folder: Path) -> None:
        self.models = Models(folder)
        self.models.warm()
        self.tagger = LengthTagger()

    def cheap(self, data: bytes) -> tuple[PromptView, Reply]:
        """From the body to the tag, without the encoder: both sides of the socket."""
        question = decode_question(encode_question(Question(1, 0.0, -1, ends_of(data))))
        view = view_of_ends(question.ends, -1)
        seen = cues(view)
        reply = decode_reply(encode_reply(1, last=True, cues=seen, guesses=self.models.trees(seen, view)))
        self.tagger.tag("m", "chat", reply.cues, reply.guesses, -1)
        return view, reply

    def whole(self, data: bytes) -> None:
        """... and with it."""
        self.models.encoder(self.cheap(data)[0])


def costs(rounds: int, folder: Path) -> dict[str, float]:
    """Milliseconds of CPU time."""
    layers = Costs(folder)
    bodies = [body(text) for text in PROMPTS]
    cheap = [timed_ms(layers.cheap, data) for _ in range(rounds) for data in bodies]
    views = [layers.cheap(data)[0] for data in bodies]
    encoder = [timed_ms(layers.models.encoder, view) for _ in range(rounds) for view in views]
    small, big = body("word " * 200), body("word " * 20_000)
    pairs = [(timed_ms(layers.whole, big), timed_ms(layers.whole, small)) for _ in range(rounds * 4)]
    return {
        "encoder_p50_ms": median(encoder),
        "encoder_p99_ms": quantiles(encoder, n=100)[98],
        "cheap_p50_ms": median(cheap),
        "cheap_p99_ms": quantiles(cheap, n=100)[98],
        "big_vs_small": median([first for first, _ in pairs]) / median([second for _, second in pairs]),
        "reference_ms": median([timed_ms(reference) for _ in range(20)]),
    }


@contextmanager
def on_core(core: int) -> Iterator[None]:
    """This process, and those that it starts, on one core."""
    home = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, home)


def schedstat() -> tuple[int, int]:
    """(ns run, ns waited for a core) of this process; zeros where the kernel does not say."""
    path = Path("/proc/self/schedstat")
    ran, waited, *_ = map(int, path.read_text().split()) if path.exists() else (0, 0)
    return ran, waited


async def in_service(seconds: float, folder: Path) -> dict[str, float]:
    """How many questions are answered in whole before their deadline, and how long that takes."""
    loop, rng = asyncio.get_running_loop(), random.Random(3)
    up = asyncio.Event()
    link = TagLink(loop, command_of(str(folder)), 64, 0.01, lambda what, _: up.set() if what == "up" else None)
    link.start()
    await asyncio.wait_for(up.wait(), 60)
    asked, answers, tooks = 0, 0, []
    done: list[asyncio.Future[None]] = []
    end_s = loop.time() + seconds
    before = schedstat()

    def question(ends: Ends) -> None:
        began_s, told = time.monotonic(), loop.create_future()
        done.append(told)

        def then(answer: Asked) -> None:
            nonlocal answers
            answers += not answer.cause and "encoder" in answer.guesses
            tooks.append((time.monotonic() - began_s) * 1e3)
            told.set_result(None)

        if link.ask(ends, -1, then, lambda _: None):
            told.set_result(None)

    while loop.time() < end_s:
        await pause(rng.expovariate(RATE_PER_S))
        asked += 1
        question(ends_of(body(PROMPTS[asked % len(PROMPTS)] + f" ({asked})")))
    await asyncio.gather(*done)
    link.close()
    ran, waited = (now - was for now, was in zip(schedstat(), before, strict=True))
    return {
        "answered_share": answers / asked,
        "service_p50_ms": median(tooks),
        "service_p99_ms": quantiles(tooks, n=100)[98],
        "crowding": (ran + waited) / max(1, ran),  # above 2, others had the core: the shares and ratios say little
    }


async def paced(call: Call) -> None:
    """A stream of events that say when they were written, or a short answer."""
    call.start_events()
    if b"paced" in call.body:
        while not call.gone.is_set():
            call.events(event(f"@{time.monotonic_ns()}@"))
            await pause(EVENT_S)
        return
    call.end_events(event("short"), FINISH, DONE)


class Client:
    """One gateway under its load."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.delays_ms: list[float] = []
        self._sent = Sent()
        self._count = 0

    async def stream(self, number: int) -> None:
        """Read a paced stream until cancelled."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        data = body(f"paced {number}", stream=True, max_tokens=100_000)
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n")
        writer.write(b"content-length: %d\r\n\r\n%b" % (len(data), data))
        try:
            while piece := await reader.read(65536):
                now_ns = time.monotonic_ns()
                self.delays_ms += [(now_ns - int(stamp)) / 1e6 for stamp in piece.split(b"@")[1::2]]
        finally:
            writer.close()

    async def request(self) -> None:
        """One request of the mix."""
        self._count += 1
        peer: Peer = await connect(self.port, self._sent)
        peer.ask(json.loads(body(PROMPTS[self._count % len(PROMPTS)] + f" ({self._count})", stream=True)))
        answer = await peer.answer()
        assert answer.status == 200, answer
        peer.close()

    async def round(self, seconds: float, rng: random.Random) -> list[float]:
        """Streams and requests for so long; the delays of the events."""
        self.delays_ms = []
        loop = asyncio.get_running_loop()
        streams = [asyncio.create_task(self.stream(number)) for number in range(STREAMS)]
        requests: list[asyncio.Task[None]] = []
        end_s = loop.time() + seconds
        while loop.time() < end_s:
            await pause(rng.expovariate(RATE_PER_S))
            requests.append(asyncio.create_task(self.request()))
        await asyncio.gather(*requests)
        for stream in streams:
            stream.cancel()
        await asyncio.gather(*streams, return_exceptions=True)
        return self.delays_ms


async def port_of(path: Path) -> int:
    """The data port, from the log of a gateway that starts."""
    for _ in range(600):
        for line in path.read_text().splitlines():
            said = json.loads(line)
            if said["event"] == "listening":
                return int(said["data"].removeprefix("port "))
        await pause(0.1)
    raise TimeoutError(path.read_text())


def settings(backends: list[ScriptedBackend], mode: str, folder: Path) -> str:
    """A gateway's file: shipped defaults, a policy that waits for lengths, cache and skip off."""
    served = "\n".join(f'[[backends]]\nname = "{b.name}"\nurl = "{b.url}"\nmodels = ["m"]' for b in backends)
    tagger = f'[tagger]\nmode = "{mode}"\nskip = false\ncache_entries = 0\nmodels = "{folder}"\n'
    listen = '[listen]\ndata = "127.0.0.1:0"\ncontrol = "127.0.0.1:0"\n'
    return f'{listen}[models."*"]\npolicy = "po2"\n{tagger}[log]\nqueue_lines = 100\n{served}\n'


async def relay(rounds: int, home: Path, folder: Path) -> dict[str, float]:
    """How long events are under way through a gateway with the tagger, against one without."""
    backends = [ScriptedBackend(f"b{number}") for number in range(4)]
    for backend in backends:
        backend.play = paced
        await backend.start()
    delays: dict[str, list[list[float]]] = {"on": [], "off": []}
    logs = {mode: (home / f"{mode}.log").open("wb") for mode in delays}
    for mode in delays:
        (home / f"{mode}.toml").write_text(settings(backends, mode, folder))
    command = (sys.executable, "-m", "gateway", "serve")
    with (
        running([*command, str(home / "on.toml")], core=0, output=logs["on"]),
        running([*command, str(home / "off.toml")], core=0, output=logs["off"]),
    ):
        clients = {mode: Client(await port_of(home / f"{mode}.log")) for mode in delays}
        await pause(3.0)  # models are loaded
        for number in range(rounds):
            for mode in sorted(delays, reverse=number % 2 == 1):
                delays[mode].append(await clients[mode].round(ROUND_S, random.Random(number)))
    for backend in backends:
        await backend.close()
    p50 = {mode: median([median(found) for found in each]) for mode, each in delays.items()}
    p99 = {mode: median([quantiles(found, n=100)[98] for found in each]) for mode, each in delays.items()}
    return {
        "relay_delay_ratio": p50["on"] / p50["off"],
        "relay_delay_p99_ratio": p99["on"] / p99["off"],
        "relay_delay_on_ms": p50["on"],
        "relay_delay_off_ms": p50["off"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="interleaved rounds of the relay part")
    parser.add_argument("--seconds", type=float, default=30.0, help="of the part in service")
    parser.add_argument("--models", type=Path, default=SHIPPED, help="folder of trees.onnx, lengths.onnx and tokenizer.json")
    options = parser.parse_args()
    folder = options.models.resolve()
    with on_core(0):
        figures = costs(60, folder)
        print(figures, file=sys.stderr)
        figures |= asyncio.run(in_service(options.seconds, folder))
    with on_core(1 if (os.cpu_count() or 1) > 1 else 0), tempfile.TemporaryDirectory() as home:
        figures |= asyncio.run(relay(options.rounds, Path(home), folder))
    print(json.dumps({name: round(value, 4) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
