"""Makes own length data: real vLLM on the CPU answers permissive prompts with a small open model, twice each.

Reads prompts_permissive.parquet of the data folder (LEEWAY_DATA); the workloads held out for tests are never asked.
Every answer is appended to a `.partial.jsonl` beside the output as it comes, so a run that was stopped goes on where
it was; at the end all is written as one parquet file. The model (SmolLM2-135M-Instruct) is Apache-2.0, so are its
answers here; the prompts keep their sources' licences (Apache-2.0 or MIT). Needs `make engine` and the `train` extra.
"""

import argparse
import asyncio
import json
import os
import random
import socket
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import aiohttp
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from backends.vllm_local import LocalVllm, LocalVllmError, VllmLaunch, find_engine  # noqa: E402

# Prompts of each source: half of them chat, the rest a little of everything that is permissive.
MIX = {
    "halueval_general": 350,
    "mtbench101": 200,
    "mmlu_pro": 120,
    "zeroeval_gsm": 90,
    "zeroeval_math-l5": 70,
    "zeroeval_crux": 70,
    "zeroeval_numersense-v2": 50,
    "classeval": 50,
}
SAMPLES = 2
MAX_TOKENS = 512
TEMPERATURE = 0.7
MODEL = "SmolLM2-135M-Instruct"
PROMPT_TOKENS_MAX = 1200  # by another tokenizer than the model's, whose context is 2,048 here
IN_FLIGHT = 64
SEED = 20261129


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt: its id and source in the data folder, and the chat's messages as JSON."""

    pid: str
    source: str
    messages: str


@dataclass(frozen=True, slots=True)
class Answered:
    """One answer: lengths in the model's own tokens."""

    pid: str
    sample: int
    prompt_tokens: int
    output_tokens: int
    finish_reason: str
    text: str


def choose(rows: list[dict[str, str | int]], mix: dict[str, int], rng: random.Random) -> list[Prompt]:
    """As many prompts of each source as `mix` says, at random, those that fit the context."""
    chosen: list[Prompt] = []
    for source, count in mix.items():
        fitting = [row for row in rows if row["source"] == source and int(row["in_tokens"]) <= PROMPT_TOKENS_MAX]
        fitting.sort(key=lambda row: str(row["pid"]))
        chosen += [Prompt(str(r["pid"]), source, str(r["messages"])) for r in rng.sample(fitting, count)]
    rng.shuffle(chosen)
    return chosen


def done_before(path: Path) -> dict[tuple[str, int], Answered]:
    """What an earlier run left; a last line that was cut short does not count."""
    found: dict[tuple[str, int], Answered] = {}
    if path.exists():
        for line in path.read_text().splitlines():
            try:
                answer = Answered(**json.loads(line))
            except (json.JSONDecodeError, TypeError):
                continue
            found[answer.pid, answer.sample] = answer
    return found


def ended(path: Path) -> None:
    """End a last line that was cut short, so that it stays a line of its own."""
    if path.exists() and path.read_text()[-1:] not in ("", "\n"):
        with path.open("a") as file:
            file.write("\n")


async def ask(session: aiohttp.ClientSession, url: str, prompt: Prompt, sample: int) -> Answered:
    """One answer of the engine."""
    body = {
        "model": MODEL,
        "messages": json.loads(prompt.messages),
        "max_tokens": MAX_TOKENS,
        "temperature": TEMPERATURE,
    }
    async with session.post(f"{url}/v1/chat/completions", json=body) as response:
        answer = await response.json()
        if response.status != 200:
            raise RuntimeError(f"{prompt.pid}: {response.status} {answer}")
    choice, usage = answer["choices"][0], answer["usage"]
    counts = usage["prompt_tokens"], usage["completion_tokens"]
    return Answered(prompt.pid, sample, *counts, choice["finish_reason"], choice["message"]["content"] or "")


async def answer_all(url: str, todo: list[tuple[Prompt, int]], partial: Path, progress: Progress) -> None:
    """Ask all that is left, some at a time; each answer is on disk before its bar moves."""
    task = progress.add_task("answers", total=len(todo), tokens=0)
    left: Iterator[tuple[Prompt, int]] = iter(todo)
    timeout = aiohttp.ClientTimeout(total=None, sock_read=1800)
    with partial.open("a") as file:
        async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:

            async def work() -> None:
                for prompt, sample in left:
                    answer = await ask(session, url, prompt, sample)
                    file.write(json.dumps(asdict(answer)) + "\n")
                    file.flush()
                    progress.update(task, advance=1, tokens=progress.tasks[0].fields["tokens"] + answer.output_tokens)

            async with asyncio.TaskGroup() as group:
                for _ in range(IN_FLIGHT):
                    group.create_task(work())


async def serve_and_ask(launch: VllmLaunch, todo: list[tuple[Prompt, int]], partial: Path) -> None:
    """The engine's life around the questions."""
    engine = LocalVllm(launch, partial.with_suffix(".log"), os.environ)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[tokens]} tokens"))
    try:
        await engine.start()
        await engine.wait_ready()
        with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn()) as progress:
            await answer_all(launch.url, todo, partial, progress)
    finally:
        await engine.stop()


def write(path: Path, prompts: list[Prompt], answers: dict[tuple[str, int], Answered]) -> None:
    """All answers as parquet, one row each."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = []
    for prompt in sorted(prompts, key=lambda prompt: (prompt.source, prompt.pid)):
        for sample in range(SAMPLES):
            row = asdict(answers[prompt.pid, sample])
            rows.append({**row, "source": prompt.source, "model": MODEL, "messages": prompt.messages})
    pq.write_table(pa.Table.from_pylist(rows), path, compression="zstd", compression_level=19)


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=os.environ.get("LEEWAY_DATA", ""), help="the data folder (LEEWAY_DATA)")
    parser.add_argument("--engine", type=Path, default=ROOT / ".engine")
    parser.add_argument("--models", type=Path, default=ROOT / ".models")
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("smollm2.parquet"))
    parser.add_argument("--port", type=int, default=0, help="the engine's port; 0 = any free one")
    return parser.parse_args()


def main() -> None:
    """Make or complete the file."""
    options = arguments()
    try:
        import pyarrow.parquet as pq
    except ModuleNotFoundError:
        sys.exit("pyarrow is missing: pip install 'leeway-gateway[train]'")
    source = Path(options.data) / "lengths" / "prompts_permissive.parquet"
    if not options.data or not source.exists():
        sys.exit("set LEEWAY_DATA (or --data) to the folder that holds lengths/prompts_permissive.parquet")
    rows = pq.read_table(source, columns=["pid", "source", "in_tokens", "messages"]).to_pylist()
    prompts = choose(rows, MIX, random.Random(SEED))
    partial = options.output.with_suffix(".partial.jsonl")
    done = done_before(partial)
    todo = [(p, sample) for p in prompts for sample in range(SAMPLES) if (p.pid, sample) not in done]
    if todo:
        try:
            python, checkpoint = find_engine(options.engine, options.models)
        except LocalVllmError as error:
            sys.exit(str(error))
        more = (
            "--max-num-seqs",
            str(IN_FLIGHT),
            "--block-size",
            "32",
            "--num-gpu-blocks-override",
            "2560",
            "--kv-cache-memory-bytes",
            "2000000000",
        )
        launch = VllmLaunch(python, checkpoint, MODEL, options.port or free_port(), more)
        ended(partial)
        asyncio.run(serve_and_ask(launch, todo, partial))
        done = done_before(partial)
    write(options.output, prompts, done)
    partial.unlink()
    sys.stdout.write(
        f"{options.output}: {len(done)} answers of {len(prompts)} prompts, {options.output.stat().st_size} bytes\n"
    )


if __name__ == "__main__":
    main()
