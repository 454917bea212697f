"""Rows for `make eval-length`: prompts, their features, and how long each model's answer was. Reads the folder LEEWAY_DATA.

Prompts that belong together (a shared opening, class, task or conversation) share a group, and groups are never split
between training and test.
"""

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from predictor.features import Cues, cues
from predictor.prompts import PromptView, view_of

HELD_OUT = ("sharegpt_92k_sample", "tau_bench_airline")
PROMPT_FILES = ("prompts_permissive.parquet", "prompts_restricted.parquet")


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt, as it was sent."""

    pid: str
    source: str
    domain: str
    group: str
    in_tokens: int
    permissive: bool
    text: str  # the last user's
    first: str  # the first user's
    view: PromptView
    cues: Cues


@dataclass(frozen=True, slots=True)
class Table:
    """Answers: row i is the answer of `models[i]` to `prompts[prompt[i]]`, of `tokens[i]` tokens."""

    prompts: list[Prompt]
    prompt: np.ndarray
    models: np.ndarray
    tokens: np.ndarray

    def rows(self, chosen: np.ndarray) -> "Table":
        """Some of the answers, by mask or indices."""
        return Table(self.prompts, self.prompt[chosen], self.models[chosen], self.tokens[chosen])

    def of(self, name: str) -> np.ndarray:
        """An attribute of each answer's prompt."""
        return np.array([getattr(prompt, name) for prompt in self.prompts])[self.prompt]

    @property
    def logs(self) -> np.ndarray:
        """Natural logs of the tokens."""
        return np.log(self.tokens)

    def __len__(self) -> int:
        return len(self.prompt)


def load(folder: Path) -> Table:
    """All answers of at least one token. Raises FileNotFoundError where the data is not there."""
    prompts: list[Prompt] = []
    for name in PROMPT_FILES:
        prompts += [_prompt(row) for row in pq.read_table(folder / "lengths" / name).to_pylist()]
    place = {prompt.pid: number for number, prompt in enumerate(prompts)}
    answers = pq.read_table(folder / "lengths" / "responses.parquet", columns=["pid", "model", "out_tokens"])
    pids, models, tokens = (answers.column(name).to_numpy(zero_copy_only=False) for name in ("pid", "model", "out_tokens"))
    known = np.array([place.get(pid, -1) for pid in pids])
    keep = (known >= 0) & (tokens >= 1)
    return Table(prompts, known[keep], models[keep].astype(str), tokens[keep].astype(float))


def _prompt(row: dict[str, Any]) -> Prompt:
    messages = [_as_sent(turn) for turn in json.loads(row["messages"])]
    view = view_of({"messages": messages})
    text = next((_text(turn) for turn in reversed(messages) if turn.get("role") == "user"), "")
    group = _group(row["source"], row["pid"], messages, text)
    permissive = row["licence_class"] == "permissive"
    first = next((_text(turn) for turn in messages if turn.get("role") == "user"), "")
    seen = cues(view)
    return Prompt(row["pid"], row["source"], row["domain"], group, row["in_tokens"], permissive, text, first, view, seen)


def folds(groups: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Which of `count` parts each row is in; rows of a group are in the same one."""
    names, place = np.unique(groups, return_inverse=True)
    return np.random.default_rng(seed).permutation(len(names))[place] % count


def _as_sent(turn: dict[str, Any]) -> dict[str, Any]:
    """Tool calls, which the file holds as text, as a client sends them."""
    content = turn.get("content")
    if turn.get("role") != "assistant" or not isinstance(content, str) or not content.startswith('[{"arguments"'):
        return turn
    return {"role": "assistant", "content": None, "tool_calls": [{"function": call} for call in json.loads(content)]}


def _text(turn: dict[str, Any]) -> str:
    content = turn.get("content")
    if isinstance(content, str):
        return content
    return "\n".join(part.get("text", "") for part in content or [] if isinstance(part, dict))


def _group(source: str, pid: str, messages: list[dict[str, Any]], text: str) -> str:
    normal = re.sub(r"\W+", " ", text.lower()).strip()
    if source in ("alpaca_eval", "flask", "halueval_general"):
        return "open:" + normal[:60]
    if source == "classeval":
        found = re.search(r"class (\w+)", text)
        return "class:" + (found[1] if found else normal[:60])
    if source in ("moss", "mtbench101", *HELD_OUT):
        first = next((_text(turn) for turn in messages if turn.get("role") == "user"), "")
        return f"{source}:" + hashlib.sha1(first.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{source}:" + hashlib.sha1(normal.encode("utf-8", "surrogatepass")).hexdigest()
