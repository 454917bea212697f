"""The tagger's process: reads the ends of bodies, answers with features and with what its models guess. Shell.

It sees the two ends of a body and nothing else, keeps none of it and writes nowhere. Features and trees
come first where the encoder may be late; a question past its deadline is not put to the encoder any more, so that a
burst never makes it fall behind. It ends when its socket does.
"""

import os
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gateway.prompt_ends import Ends, view_of_ends
from gateway.tag_frames import FRAME_BYTES_MAX, PROBLEM, READY, FrameError, Question, decode_question, encode_reply
from gateway.tag_sentences import READS, SENTENCES, Sentences
from predictor.features import Cues, cues
from predictor.grams import grams_of, spoken_of
from predictor.prompts import PromptView
from predictor.tagger_text import Marks, encoder_text, marks_of, token_ids
from predictor.treefile import TreeFileError
from predictor.trees import NO_GRAMS, Trees

ENCODER_FIRST_S = 0.003  # an encoder's run, until one was measured
WARM_RUNS = 3
NICE = 5  # streams go first
Triple = tuple[float, float, float]


class Models:
    """Those of a folder that are there and can run; `problems` tell why others do not. Trees need no runtime."""

    def __init__(self, folder: Path) -> None:
        self.problems: list[str] = []
        self._trees: Trees | None = None
        self._encoder: Any = None
        self._tokens: Any = None
        self._marks = Marks()
        self._sentences: Sentences | None = None
        data = b""
        if (folder / "trees.onnx").is_file():
            data = (folder / "trees.onnx").read_bytes()
            try:
                self._trees = Trees.from_onnx(data)
            except TreeFileError as error:
                self.problems.append(f"trees.onnx: {error}")
        if (folder / "lengths.onnx").is_file() and (folder / "tokenizer.json").is_file():
            self._load_encoder(folder, data)
        elif not (folder / "trees.onnx").is_file():
            self.problems.append(f"{folder}: neither trees.onnx nor lengths.onnx with tokenizer.json is there")

    def _load_encoder(self, folder: Path, trees: bytes) -> None:
        try:
            import numpy  # noqa: F401, ICN001 - loaded before anybody waits
            import onnxruntime
            import tokenizers
        except ImportError:
            return
        name = "tokenizer.json"
        try:
            tokenizer = tokenizers.Tokenizer.from_file(str(folder / name))
            name = "lengths.onnx"
            session = _session(onnxruntime, folder / name)
            if session.get_modelmeta().custom_metadata_map.get(READS) == SENTENCES:
                self._sentences = Sentences(session, tokenizer, self._trees, trees)
                self._sentences.quantiles(view_of_ends(Ends(b"{}", b"", 2), -1))  # a graph of other inputs fails here
            else:
                name = "tokenizer.json"
                self._tokens = lambda text: tokenizer.encode(text, add_special_tokens=False).ids
                self._marks = marks_of(tokenizer.get_vocab())
            self._encoder = session
        except Exception as error:  # noqa: BLE001 - both libraries' errors are of no class of their own
            self.problems.append(f"{name}: {error}")

    @property
    def names(self) -> tuple[str, ...]:
        """Which there are."""
        return tuple([name for name, model in (("trees", self._trees), ("encoder", self._encoder)) if model is not None])

    @property
    def reads_model(self) -> bool:
        """Whether what they guess depends on which model answers."""
        return self._encoder is not None and bool(self._marks.models)

    def warm(self) -> None:
        """Run once, before anybody waits: the first run of each takes a hundred times as long."""
        view = view_of_ends(Ends(b"{}", b"", 2), -1)
        seen = cues(view)
        for _ in range(WARM_RUNS):
            self.trees(seen, view)
            if self._encoder is not None:
                self.encoder(view)

    def trees(self, found: Cues, view: PromptView) -> dict[str, Triple]:
        """What the trees guess, if there are any."""
        if self._trees is None:
            return {}
        grams = grams_of(spoken_of(view)) if self._trees.reads_grams else NO_GRAMS
        return {"trees": self._trees.quantiles(found, grams)}

    def encoder(self, view: PromptView, model: int = 0) -> dict[str, Triple]:
        """What the encoder guesses. `model`: the key of the one that answers."""
        if self._sentences is not None:
            return {"encoder": self._sentences.quantiles(view)}
        import numpy as np

        ids = np.asarray([token_ids(encoder_text(view), self._tokens, self._marks, model)], np.int64)
        out = self._encoder.run(None, {"input_ids": ids, "attention_mask": np.ones_like(ids)})[0]
        return {"encoder": _triple(out)}


def _session(onnxruntime: Any, path: Path) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _triple(out: Any) -> Triple:
    q10, q50, q90 = map(float, out.reshape(-1)[:3])
    return q10, q50, q90


class _Open:
    """A question that the encoder still has to answer."""

    __slots__ = ("guesses", "question", "said", "seen", "view")

    def __init__(self, question: Question, view: PromptView, seen: Cues, guesses: dict[str, Triple]) -> None:
        self.question = question
        self.view = view
        self.seen: Cues | None = seen
        self.guesses = guesses


class Worker:
    """Answers what comes by the socket until that ends."""

    def __init__(self, link: socket.socket, models: Models) -> None:
        self._link = link
        self._models = models
        self._encodes = "encoder" in models.names
        self._open: deque[_Open] = deque()
        self._encoder_s = ENCODER_FIRST_S

    def run(self) -> None:
        """Serve."""
        zero = (0.0, 0.0, 0.0)
        guesses = dict.fromkeys(self._models.names, zero)
        self._send(encode_reply(READY, last=True, cues=None, guesses=guesses, reads_model=self._models.reads_model))
        while True:
            for frame in self._frames(wait=not self._open):
                if not frame:
                    return
                self._take(frame)
            if self._open:
                self._encode(self._open.popleft())

    def _frames(self, wait: bool) -> Iterator[bytes]:
        """What has come; an empty one is the end."""
        while True:
            try:
                frame = self._link.recv(FRAME_BYTES_MAX, 0 if wait else socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except ConnectionError:
                frame = b""
            yield frame
            if not frame:
                return
            wait = False

    def _take(self, frame: bytes) -> None:
        """The cheap part of an answer."""
        try:
            question = decode_question(frame)
        except FrameError:
            return
        view = view_of_ends(question.ends, question.max_tokens)
        seen = cues(view)
        guesses = self._models.trees(seen, view)
        if not question.encoder or not self._encodes:
            self._send(encode_reply(question.id, last=True, cues=seen, guesses=guesses))
            return
        waiting = _Open(question, view, seen, guesses)
        self._open.append(waiting)
        if time.monotonic() + self._encoder_s * (1 + len(self._open)) > question.due_s:
            self._send(encode_reply(question.id, last=False, cues=seen, guesses=guesses))
            waiting.seen, waiting.guesses = None, {}

    def _encode(self, waiting: _Open) -> None:
        question = waiting.question
        began_s = time.monotonic()
        if began_s <= question.due_s:
            waiting.guesses.update(self._models.encoder(waiting.view, question.model))
            self._encoder_s += 0.1 * (time.monotonic() - began_s - self._encoder_s)
        else:
            self._encoder_s *= 0.99  # a slow spell is forgotten
        self._send(encode_reply(question.id, last=True, cues=waiting.seen, guesses=waiting.guesses))

    def _send(self, frame: bytes) -> None:
        self._link.send(frame)


def main(fd: int, folder: str) -> None:
    """Serve the socket `fd` with the models in `folder`, until the gateway is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(NICE)
    with socket.socket(fileno=fd) as link:
        try:
            models = Models(Path(folder))
            for problem in models.problems:
                link.send(PROBLEM + problem.encode()[:500])
            models.warm()
        except Exception as error:
            link.send(PROBLEM + f"{type(error).__name__}: {error}".encode()[:500])
            raise
        try:
            Worker(link, models).run()
        except ConnectionError:
            return


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
