"""The training loop: same seed, same order of batches; stopped and taken up again without loss. Shell.

Batches hold prompts of like length, so that little is padded. The state (weights, optimizer, place in the epoch, random
numbers) is written to `state.pt` every two minutes and at the end of each epoch, and read when the same plan runs again.
"""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from gateway.tagger.network import Encoder, log_quantiles, pinball, squared
from gateway.tagger.targets import Example

KEEP_EVERY_S = 120.0
CLIP = 1.0


@dataclass(frozen=True, slots=True)
class Plan:
    """How it is trained. `length_weight` 0: from the teacher alone; `meaning_weight` 0: without a teacher."""

    epochs: float = 6.0
    batch: int = 64
    learning_rate: float = 7e-4
    warm_up: float = 0.06  # share of all steps
    weight_decay: float = 0.02
    length_weight: float = 1.0
    meaning_weight: float = 0.5
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Item:
    """One prompt as the network takes it: its tokens, its answers, its place among the teacher's vectors."""

    ids: list[int]
    example: Example
    place: int


@dataclass(frozen=True, slots=True)
class Progressed:
    """After a step, for the progress bar."""

    done: int
    steps: int
    loss: float


def batches(items: Sequence[Item], size: int, rng: random.Random) -> list[list[Item]]:
    """An epoch's: shuffled, then sorted by length within pools of 16 batches, then shuffled again."""
    order = list(items)
    rng.shuffle(order)
    made: list[list[Item]] = []
    for start in range(0, len(order), 16 * size):
        pool = sorted(order[start : start + 16 * size], key=lambda item: len(item.ids))
        made += [pool[i : i + size] for i in range(0, len(pool), size)]
    rng.shuffle(made)
    return made


def padded(items: Sequence[Item], pad: int) -> tuple[Tensor, Tensor]:
    """Ids and mask, as wide as the longest."""
    width = max(len(item.ids) for item in items)
    ids = torch.tensor([item.ids + [pad] * (width - len(item.ids)) for item in items])
    mask = torch.tensor([[1] * len(item.ids) + [0] * (width - len(item.ids)) for item in items])
    return ids, mask


def _answers(items: Sequence[Item]) -> tuple[Tensor, Tensor, Tensor]:
    """Logs, cut off, weight: n x the most answers of a prompt; each prompt's weights sum to 1."""
    most = max(len(item.example.logs) for item in items)
    logs, cut, weight = (
        torch.zeros(len(items), most),
        torch.zeros(len(items), most, dtype=torch.bool),
        torch.zeros(len(items), most),
    )
    for row, item in enumerate(items):
        count = len(item.example.logs)
        logs[row, :count] = torch.tensor(item.example.logs)
        cut[row, :count] = torch.tensor(item.example.cut)
        weight[row, :count] = 1.0 / count
    return logs, cut, weight


class Training:
    """One run. `folder` holds its state."""

    def __init__(
        self, encoder: Encoder, items: Sequence[Item], vectors: Tensor | None, plan: Plan, pad: int, folder: Path
    ) -> None:
        self._encoder, self._items, self._vectors, self._plan, self._pad = encoder, items, vectors, plan, pad
        self._path = folder / "state.pt"
        self._optimizer = torch.optim.AdamW(_groups(encoder, plan.weight_decay), lr=plan.learning_rate)
        self._a_round = -(-len(items) // plan.batch)
        self.steps = max(1, round(plan.epochs * self._a_round))
        self._done = 0
        self._kept_s = time.monotonic()

    def run(self, tell: Callable[[Progressed], None]) -> None:
        """Train to the end, from where the last run of this plan stopped."""
        torch.manual_seed(self._plan.seed)
        self._resume()
        self._encoder.train()
        while self._done < self.steps:
            epoch = self._done // self._a_round
            rng = random.Random(f"{self._plan.seed} {epoch}")
            for batch in batches(self._items, self._plan.batch, rng)[self._done % self._a_round :]:
                loss = self._step(batch)
                self._done += 1
                tell(Progressed(self._done, self.steps, loss))
                if time.monotonic() - self._kept_s > KEEP_EVERY_S:
                    self._keep()
                if self._done == self.steps:
                    break
            self._keep()
        self._encoder.eval()

    def _step(self, batch: list[Item]) -> float:
        for group in self._optimizer.param_groups:
            group["lr"] = self._plan.learning_rate * self._rate(self._done / self.steps)
        ids, mask = padded(batch, self._pad)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out, embedding = self._encoder(ids, mask)
        loss = self._loss(batch, out.float(), embedding)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call,unused-ignore]
        torch.nn.utils.clip_grad_norm_(self._encoder.parameters(), CLIP)
        self._optimizer.step()
        return float(loss.detach())

    def _loss(self, batch: list[Item], out: Tensor, embedding: Tensor) -> Tensor:
        logs, cut, weight = _answers(batch)
        found = squared(out, logs, weight) if self._encoder.point else pinball(out, logs, cut, weight)
        loss = self._plan.length_weight * found
        if self._vectors is not None and self._encoder.meaning is not None:
            meant = self._encoder.meaning(embedding.float())
            wanted = self._vectors[[item.place for item in batch]]
            loss = loss + self._plan.meaning_weight * (1.0 - functional.cosine_similarity(meant, wanted)).mean()
        return loss

    def _rate(self, share: float) -> float:
        """Of the learning rate: up over the warm-up, then down in a line."""
        up = self._plan.warm_up
        return min((share + 1e-3) / (up + 1e-3), max(0.02, (1.0 - share) / (1.0 - up)))

    def _keep(self) -> None:
        state = {
            "plan": asdict(self._plan),
            "steps": self.steps,
            "done": self._done,
            "encoder": self._encoder.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "random": torch.get_rng_state(),
        }
        self._path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self._path.with_suffix(".new")
        torch.save(state, fresh)
        fresh.replace(self._path)
        self._kept_s = time.monotonic()

    def _resume(self) -> None:
        if not self._path.exists():
            return
        state = torch.load(self._path, weights_only=True)
        if state["plan"] == asdict(self._plan) and state["steps"] == self.steps:
            self._encoder.load_state_dict(state["encoder"])
            self._optimizer.load_state_dict(state["optimizer"])
            torch.set_rng_state(state["random"])
            self._done = int(state["done"])


def _groups(encoder: Encoder, decay: float) -> list[dict[str, Any]]:
    """Matrices decay, word vectors, biases and norms do not."""
    named = list(encoder.named_parameters())
    decaying = [weight for name, weight in named if weight.ndim > 1 and "embeddings" not in name]
    rest = [weight for name, weight in named if weight.ndim < 2 or "embeddings" in name]
    return [{"params": decaying, "weight_decay": decay}, {"params": rest, "weight_decay": 0.0}]


def predict(encoder: Encoder, items: Sequence[Item], pad: int, size: int = 128) -> list[tuple[float, float, float]]:
    """Log-token quantiles, in the items' order."""
    encoder.eval()
    found: list[tuple[float, float, float]] = [(0.0, 0.0, 0.0)] * len(items)
    order = sorted(range(len(items)), key=lambda index: len(items[index].ids))
    for start in range(0, len(order), size):
        picked = order[start : start + size]
        ids, mask = padded([items[index] for index in picked], pad)
        with torch.inference_mode():
            out, _ = encoder(ids, mask)
        for index, (q10, q50, q90) in zip(picked, log_quantiles(out.float()).tolist(), strict=True):
            found[index] = (q10, q50, q90)
    return found
