"""From a decoded request to running sequences: the checks, the planned answer, its life until the last token.

`Serving.begin` is the only way in: it counts and records the request, refuses what an engine refuses (404 unknown
model, 400 too long, 503 queue full) and returns a `Generation`, a context manager that aborts on exit what has not
ended, so that a cancelled handler (the client is gone) frees the engine at once.
"""

import asyncio
import time
import uuid
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from aiohttp import web

from backends.mock_ask import Ask
from backends.mock_config import MockConfig
from backends.mock_core import CoreStopped, EngineCore, Track
from backends.mock_http import ApiError, bad_request, not_found
from backends.mock_json import fit, pieces
from backends.mock_text import Prompt, Reply, block_hashes, natural_tokens, stable_hash
from backends.scheduler_record import expected_tokens
from predictor.request import Request


@dataclass(frozen=True, slots=True)
class SeenRequest:
    """What a request asked, kept for tests. Header names are lower case."""

    path: str
    request_id: str
    model: str
    prompt_tokens: int
    max_tokens: int | None
    stream: bool
    priority: int | None
    vllm_xargs: Mapping[str, object]
    kv_transfer_params: Mapping[str, object] | None
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Progress:
    """New tokens of one choice: positions `start` to `stop` - 1; `ended` is its finish reason once it has one."""

    choice: int
    start: int
    stop: int
    ended: str | None


class Generation:
    """The choices of one request while they run. Iterate with `advance`, or await `complete`."""

    def __init__(self, serving: "Serving", ask: Ask, model: str, request_id: str, replies: tuple[Reply, ...]) -> None:
        self.ask = ask
        self.model = model
        self.request_id = request_id
        self.created_s = int(time.time())
        self.replies = replies
        self.tracks: list[Track] = []
        self._serving = serving
        self._sent = [0] * len(replies)
        self._open = set(range(len(replies)))
        self._waiter: asyncio.Future[None] | None = None

    @property
    def running(self) -> bool:
        """Whether `advance` has more to give."""
        return bool(self._open)

    @property
    def completion_tokens(self) -> int:
        """Tokens produced so far, all choices together."""
        return sum(track.produced for track in self.tracks)

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that the prefix cache saved, each prompt counted once, by its first choice."""
        return sum(track.cached_tokens for track in self.tracks[:: self.ask.n])

    @property
    def told_cached_tokens(self) -> int | None:
        """The same as far as the usage shall tell it; None if it shall not."""
        return self.cached_tokens if self._serving.config.enable_prompt_tokens_details else None

    def text(self, choice: int) -> str:
        """What a choice has said so far."""
        return self.replies[choice].text(self.tracks[choice].produced)

    def finish_reason(self, choice: int) -> str:
        """Why a choice ended; only once it has."""
        reason = self.tracks[choice].ended
        assert reason is not None
        return reason

    async def advance(self) -> tuple[Progress, ...]:
        """Wait until some choice has new tokens or an end, and return all that is new. ApiError 500 if none can come."""
        while True:
            progress = tuple(self._take())
            if progress:
                return progress
            if self._serving.core.stopped:
                raise ApiError(500, "InternalServerError", "the engine has stopped")
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    async def complete(self) -> None:
        """Wait for the end of all choices."""
        while self.running:
            await self.advance()

    def wake(self) -> None:
        """Tell whoever waits in `advance` to look again."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._serving.close(self)

    def _take(self) -> list[Progress]:
        progress = []
        for choice in sorted(self._open):
            track = self.tracks[choice]
            if track.produced > self._sent[choice] or track.ended is not None:
                progress.append(Progress(choice, self._sent[choice], track.produced, track.ended))
                self._sent[choice] = track.produced
                if track.ended is not None:
                    self._open.remove(choice)
        return progress


class Serving:
    """Admits requests to the core and keeps count of them."""

    def __init__(self, config: MockConfig, core: EngineCore) -> None:
        self.config = config
        self.core = core
        self.requests_seen = 0
        self.seen_asleep = 0
        self.refused = 0
        self.finished = 0
        self.aborted = 0
        self.prompt_tokens = 0  # of ended requests, as is the next
        self.cached_tokens = 0
        self.recent: deque[SeenRequest] = deque(maxlen=config.recent_requests_max)
        self._open: set[Generation] = set()
        self._serial = 0

    @property
    def in_flight(self) -> int:
        """Requests under way."""
        return len(self._open)

    def check_model(self, model: str | None) -> str:
        """The name to answer with: the one asked for, or the engine's own if none was. ApiError 404 if unknown."""
        if model is None or model in self.config.models:
            return model or self.config.models[0]
        known = ", ".join(self.config.models)
        raise not_found(f"The model `{model}` does not exist. Models served here: {known}.", "model")

    def begin(self, http: web.Request, ask: Ask) -> Generation:
        """Start the sequences of a request; ApiError if the engine will not have it."""
        self.requests_seen += 1
        self.seen_asleep += self.core.paused
        request_id = ask.hints.request_id or uuid.uuid4().hex
        self.recent.append(_seen(http, ask, request_id))
        model = self.check_model(ask.model)
        planned = [
            (prompt, prefix, self._plan(ask, model, prompt, choice))
            for prompt, prefix in [(prompt, self._prefix(ask, prompt)) for prompt in ask.prompts]
            for choice in range(ask.n)
        ]
        limit = self.config.max_queued
        if limit is not None and self.core.waiting >= limit:
            self.refused += 1
            raise ApiError(503, "ServiceUnavailableError", "The queue of this engine is full.", retry_after_s=1)
        generation = Generation(self, ask, model, request_id, tuple(reply for _, _, reply in planned))
        for prompt, prefix, reply in planned:
            self._submit(generation, prompt, prefix, reply)
        self._open.add(generation)
        return generation

    def close(self, generation: Generation) -> None:
        """Abort what still runs of a generation and count how it went."""
        self._open.remove(generation)
        self.prompt_tokens += generation.ask.prompt_tokens
        self.cached_tokens += generation.cached_tokens
        if any(track.ended in (None, "abort") for track in generation.tracks):
            self.aborted += 1
        else:
            self.finished += 1
        self._abort(generation)

    def abort(self, request_ids: Collection[str]) -> None:
        """End the named requests now, or all if none is named; their clients get what there is."""
        for generation in self._open:
            if not request_ids or generation.request_id in request_ids:
                self._abort(generation)

    def _abort(self, generation: Generation) -> None:
        for track in generation.tracks:
            self.core.abort(track)

    def _prefix(self, ask: Ask, prompt: Prompt) -> tuple[int, ...]:
        if ask.pooling or not self.config.enable_prefix_caching:
            return ()
        return block_hashes(prompt.layout, self.config.limits.block_size)

    def _submit(self, generation: Generation, prompt: Prompt, prefix: tuple[int, ...], reply: Reply) -> None:
        self._serial += 1
        name = f"{generation.request_id}-{self._serial}"
        request = Request(name, prompt.tokens, reply.output_tokens, self.core.now_s(), prefix)
        most = self._room(generation.ask, prompt) if generation.ask.max_tokens is None else generation.ask.max_tokens
        expected = expected_tokens(generation.ask.hints.vllm_xargs, most)
        track = Track(request, reply.finish_reason, generation.wake, expected)
        try:
            self.core.submit(track)
        except CoreStopped:
            raise ApiError(500, "InternalServerError", "the engine has stopped") from None
        generation.tracks.append(track)

    def _plan(self, ask: Ask, model: str, prompt: Prompt, choice: int) -> Reply:
        room = self._room(ask, prompt)
        bound = room if ask.max_tokens is None else min(ask.max_tokens, room)
        seed = stable_hash(model, prompt.text, choice, ask.seed or 0)
        if ask.pooling:
            return Reply(seed, 1, "stop")
        if ask.form.kind != "text":
            fixed = pieces(fit(ask.form.schema, seed))
            reason = "stop" if len(fixed) <= bound else "length"
            return Reply(seed, min(len(fixed), bound), reason, fixed, ask.form.tool)
        if ask.ignore_eos:
            return Reply(seed, bound, "length")
        wish = max(self._natural(prompt, seed), ask.min_tokens)
        return Reply(seed, min(wish, bound), "stop" if wish <= bound else "length")

    def _natural(self, prompt: Prompt, seed: int) -> int:
        config = self.config
        if config.output_tokens is not None:
            return max(1, config.output_tokens(prompt.text))
        return natural_tokens(stable_hash(config.seed, seed), config.output_tokens_mean, config.output_tokens_sigma)

    def _room(self, ask: Ask, prompt: Prompt) -> int:
        """Tokens left for the answer; ApiError 400 if prompt and demanded answer do not fit the context."""
        context = self.config.limits.max_model_len
        room = context - prompt.tokens
        wanted = 1 if ask.max_tokens is None else ask.max_tokens
        if wanted > room:
            raise bad_request(
                f"This model's maximum context length is {context} tokens, but the prompt has {prompt.tokens} input "
                f"tokens and at least {wanted} output tokens are requested. Shorten the prompt or ask for less.",
                "input_tokens",
            )
        if ask.min_tokens > wanted and ask.max_tokens is not None:
            raise bad_request(f"min_tokens must not exceed max_tokens ({ask.max_tokens})", "min_tokens")
        return room


def _seen(http: web.Request, ask: Ask, request_id: str) -> SeenRequest:
    return SeenRequest(
        http.path,
        request_id,
        ask.model or "",
        ask.prompt_tokens,
        ask.max_tokens,
        ask.stream,
        ask.hints.priority,
        ask.hints.vllm_xargs,
        ask.hints.kv_transfer_params,
        {name.lower(): value for name, value in http.headers.items()},
    )
