"""Lengths in service: what is told of each answer before its dispatch, and what is learnt from it. Shell, on the loop.

In front stands a cheap answer that is always there: quantiles of what was seen, by model and route. The tagger's process
is asked where its answer can change something (tag_rules), within a bounded queue, and waited for by its deadline at
most; then what has come until then stands, and a later answer still moves a job in a line and corrects the picture of an
engine that has it. Nothing here fails a request.
"""

import asyncio
import importlib.util
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from prometheus_client.core import Metric

from gateway.accounts import Account
from gateway.config import ModelSpec
from gateway.desk import Desk
from gateway.jobs import Job
from gateway.length_log import LengthLog, Row
from gateway.lodging import Waiter
from gateway.prompt_ends import Ends, ends_of
from gateway.sparing import Sparing, fits_alike
from gateway.tag_counts import TagCounts, layer_families
from gateway.tag_link import Asked, TagLink, command_of
from gateway.tag_memory import TagMemory, key_of
from gateway.tag_rules import BY_LENGTH, need, roomy
from gateway.views import View
from predictor.features import Cues
from predictor.length import LengthTagger, Tag
from predictor.lengths import capped
from predictor.request import LengthEstimate

if TYPE_CHECKING:
    from gateway.server import DataPlane

KINDS_MAX = 4096
QUICK_FRESH_S = 1.0
ROOM_FRESH_S, SHORT_TOKENS = 0.02, 2048
JOIN_AFTER_S = 0.02
OBSERVED_EVERY_S = 0.002  # answers that follow faster are not all looked at, ...
LEARNT_EVERY_S = 0.02  # ... and those whose prompt is known cost more
Tell = Callable[[Asked], None]
RUNTIME = ("onnxruntime", "tokenizers", "numpy")


class Prompt(NamedTuple):
    """What is read of a request to tell its length; `left_s` is how long it may still wait."""

    body: bytes
    parts: Sequence[str]
    max_tokens: int
    left_s: float


class Watched:
    """A request whose answer will be observed: one of its own once somebody looked at its prompt, until then one that all
    of its model and route share. `asked`: the process was asked for its length."""

    __slots__ = ("asked", "cues", "end", "ends", "max_tokens", "prompt_tokens", "tag")

    def __init__(self, tag: Tag, prompt_tokens: int, max_tokens: int) -> None:
        self.tag = tag
        self.prompt_tokens = prompt_tokens
        self.max_tokens = max_tokens
        self.cues: Cues | None = None
        self.ends: Ends | None = None
        self.end: tuple[int, bool] | None = None
        self.asked = False


class Asking(Protocol):
    """A request that is told its length: `tagged` when it waited for that, `revised` in a line or an engine (False: no
    longer there). `plain` is the length it would have had without, where the two are to be compared. `joins`: it wants to
    know only if it has to wait in a line."""

    watched: Watched | None
    joins: bool

    def waiter(self) -> Waiter | None: ...
    def tagged(self, lengths: LengthEstimate, plain: LengthEstimate | None) -> None: ...
    def revised(self, lengths: LengthEstimate) -> bool: ...


class Tagging:
    """See the module's words. One for a process."""

    def __init__(self, plane: "DataPlane") -> None:
        self.tagger = LengthTagger()
        self.counts = TagCounts()
        self.link: TagLink | None = None
        self.log: LengthLog | None = None
        self._plane = plane
        self._quick: dict[tuple[str, str], tuple[float, Watched]] = {}
        self._seen_s = self._learnt_s = 0.0
        self._rooms: dict[str, tuple[float, bool]] = {}
        self._due_share = 0.0
        self._told_missing = False
        self._joining: deque[tuple[float, Asking, Job, Prompt]] = deque()  # who waits in a line, and when to ask about it
        self._join_timer: asyncio.TimerHandle | None = None  # one, while somebody does
        self.sparing = Sparing()
        self._begin()

    def _begin(self) -> None:
        settings = self._settings = self._plane.config.tagger
        self._deadline_s = settings.deadline_ms / 1e3
        self._learn_every_s = 1.0 / settings.learn_per_s if settings.learn_per_s else float("inf")
        self.memory: TagMemory[Asked] = TagMemory(settings.cache_entries)
        self.on = settings.mode != "off"
        self.command = command_of(settings.models)  # how the process is started
        if self.on and settings.log:
            self.log = LengthLog(settings)
            self._tell_of(self.log)
        if settings.mode == "on":
            self.start()

    def adopt(self) -> None:
        """The configuration may have changed. What was learnt stays."""
        if self._plane.config.tagger != self._settings:
            self.close()
            self._begin()

    def close(self) -> None:
        """End the process and the log."""
        self._joining.clear()
        if self._join_timer is not None:
            self._join_timer.cancel()
            self._join_timer = None
        if self.link is not None:
            self.link.close()
            self.link = None
        if self.log is not None:
            self.log.close()
            self.log = None

    # -- before dispatch

    def quick(self, model: str, route: str) -> Watched:
        """The cheap answer, as good as it was a moment ago."""
        now_s = self._plane.now()
        known = self._quick.get((model, route))
        if known is None or now_s >= known[0]:
            if len(self._quick) >= KINDS_MAX:
                self._quick.clear()
                self.sparing.clear()
            self._judge_encoder(model)
            shared = Watched(self.tagger.tag(model, route, None, {}, -1), 0, -1)
            known = self._quick[model, route] = (now_s + QUICK_FRESH_S, shared)
        return known[1]

    def _judge_encoder(self, model: str) -> None:
        moving = max([desk.hindsight.moving for name, desk in self._plane.desks if name == model], default=1.0)
        self.sparing.judge(model, self.tagger.report(model).layers, moving)

    def before(
        self, request: Asking, rule: ModelSpec, job: Job, prompt: Prompt, views: Sequence[View]
    ) -> LengthEstimate | None:
        """A request is about to be placed: its length. None: it waits, `tagged` is called soon."""
        now_s = self._plane.now()
        has_room = self._has_room(job, views, now_s) if rule.policy == "plan" else True
        wanted = need(rule, job, prompt.max_tokens, views, now_s, prompt.left_s, self._deadline_s, has_room=has_room)
        request.joins = self._settings.skip and not wanted.skip and not wanted.holds
        if wanted.holds or not self._settings.skip:
            return self._hold(request, self._own(request, job, prompt), job, prompt, rule, views)
        if wanted.skip:
            self.counts.skips[wanted.skip] += 1
        return job.lengths

    def _has_room(self, job: Job, views: Sequence[View], now_s: float) -> bool:
        """Looked at for one of many short prompts, which fill no KV within that moment."""
        known = self._rooms.get(job.model)
        if known is not None and now_s < known[0] and job.prompt_tokens <= SHORT_TOKENS:
            return known[1]
        if len(self._rooms) >= KINDS_MAX:
            self._rooms.clear()
        found = roomy(job, views)
        self._rooms[job.model] = (now_s + ROOM_FRESH_S, found)
        return found

    def after(self, request: Asking, job: Job, prompt: Prompt, *, waiting: bool) -> None:
        """It is placed, or waits in a line: there it may still be told its length."""
        if request.joins and waiting:
            if self._join_timer is None:
                self._join_timer = self._plane.loop.call_later(JOIN_AFTER_S, self._join_late)
            self._joining.append((self._plane.now() + JOIN_AFTER_S, request, job, prompt))
        elif request.joins:
            self.counts.skips["sent"] += 1
        if self.log is None and self.link is None:
            return
        now_s = self._plane.now()
        learns = self.link is not None and now_s - self._learnt_s >= self._learn_every_s
        if (learns or self.log is not None) and not (request.watched is not None and request.watched.asked):
            self._learnt_s = now_s if learns else self._learnt_s
            self._glance(request, self._own(request, job, prompt), prompt, encoder=learns)

    def _join_late(self) -> None:
        """Those who still wait in a line are asked about; who was gone so soon needed no better place there."""
        now_s, joining = self._plane.now(), self._joining
        self._join_timer = None
        while joining and joining[0][0] <= now_s + JOIN_AFTER_S / 10:
            _, request, job, prompt = joining.popleft()
            if request.waiter() is None:
                self.counts.skips["sent"] += 1
            elif request.watched is None or not request.watched.asked:
                self._join(request, self._own(request, job, prompt), prompt)
        if joining:
            self._join_timer = self._plane.loop.call_later(joining[0][0] - now_s, self._join_late)

    @staticmethod
    def _own(request: Asking, job: Job, prompt: Prompt) -> Watched:
        shared = request.watched
        assert shared is not None
        watched = request.watched = Watched(shared.tag, job.prompt_tokens, prompt.max_tokens)
        return watched

    def _hold(
        self, request: Asking, watched: Watched, job: Job, prompt: Prompt, rule: ModelSpec, views: Sequence[View]
    ) -> LengthEstimate | None:
        def told(answer: Asked) -> None:
            lengths = self._learn_of(watched, answer)
            if rule.policy == "plan" and "encoder" in answer.guesses:
                self._watch_fit(watched, answer, job, rule, views)
            request.tagged(lengths, job.lengths if self._compares() else None)

        def late(answer: Asked) -> None:
            if request.revised(self._learn_of(watched, answer)):
                self.counts.late_used += 1

        plan = rule.policy == "plan"
        sparing, by_length = self.sparing, rule.order in BY_LENGTH
        spared = sparing.held(job.model, by_length=by_length) if plan else sparing.helpless(job.model)
        known = self._ask(watched, prompt, told, late, spared)
        if known is not None:
            return self._learn_of(watched, known)
        return None if watched.asked else job.lengths

    def _watch_fit(self, watched: Watched, answer: Asked, job: Job, rule: ModelSpec, views: Sequence[View]) -> None:
        """Would the request fit elsewhere, had the encoder said nothing?"""
        tag = watched.tag
        rest = {source: guess for source, guess in answer.guesses.items() if source != "encoder"}
        without = self.tagger.tag(tag.model, tag.route, answer.cues, rest, watched.max_tokens)
        alike = fits_alike(job, views, rule.margin, tag.estimate, without.estimate)
        self.sparing.saw(job.model, changed=not alike)

    def _join(self, request: Asking, watched: Watched, prompt: Prompt) -> None:
        def told(answer: Asked) -> None:
            request.revised(self._learn_of(watched, answer))

        known = self._ask(watched, prompt, told, told, self.sparing.in_line(watched.tag.model))
        if known is not None:
            told(known)

    def _glance(self, request: Asking, watched: Watched, prompt: Prompt, encoder: bool) -> None:
        """Look at a request to learn from it, or to log it; its engine's picture is the better for it, too."""

        def told(answer: Asked) -> None:
            before = watched.tag
            self._take(watched, answer)
            if watched.tag is not before:
                request.revised(capped(watched.tag.estimate, watched.max_tokens))

        ends = self._ends(watched, prompt)
        watched.asked = not self.start().ask(ends, prompt.max_tokens, told, told, encoder, watched.tag.model)

    def _ask(self, watched: Watched, prompt: Prompt, told: Tell, late: Tell, spared: bool) -> Asked | None:
        """What is remembered of such a question; else it is put, and `watched.asked` says so. `spared`: the encoder is
        mostly not asked."""
        ends, link = self._ends(watched, prompt), self.start()
        model = watched.tag.model
        key = key_of(ends, prompt.max_tokens, model, reads_model=link.reads_model)
        known = self.memory.find(key, whole=self._settings.skip and not spared)
        if known is not None:
            self.counts.cache_hits += 1
            return known

        def then(answer: Asked) -> None:
            if answer.cause:
                self.counts.misses[answer.cause] += 1
            else:
                self.memory.keep(key, answer, whole=encoder)
                self.counts.answers.observe(answer.took_s)
            told(answer)

        encoder = not self._settings.skip or self.sparing.asks(spared)
        self.counts.without_encoder += not encoder
        cause = link.ask(ends, prompt.max_tokens, then, late, encoder, model)
        watched.asked = not cause
        if cause:
            self.counts.misses[cause] += 1
        return None

    def _ends(self, watched: Watched, prompt: Prompt) -> Ends:
        ends = ends_of(prompt.body, prompt.parts)
        if self.log is not None and self._settings.log_text:
            watched.ends = ends
        return ends

    def _learn_of(self, watched: Watched, answer: Asked) -> LengthEstimate:
        """The length that is used from now on."""
        self._take(watched, answer)
        self.counts.layers[watched.tag.layer] += 1
        return capped(watched.tag.estimate, watched.max_tokens)

    def _take(self, watched: Watched, answer: Asked) -> None:
        watched.asked = not answer.last and not answer.cause
        if answer.cues is not None or answer.guesses:
            watched.cues = answer.cues
            watched.tag = self._tag_of(watched, answer)
        if watched.end is not None and not watched.asked:
            end, watched.end = watched.end, None
            self.ended(watched, *end)

    def _tag_of(self, watched: Watched, answer: Asked) -> Tag:
        """One that was made of the same answer a moment ago is as good as new, once all of the answer is there."""
        model, route, now_s = watched.tag.model, watched.tag.route, self._plane.now()
        known = answer.tag
        if known is not None and now_s < answer.tag_until_s and known.model == model and known.route == route:
            return known
        tag = self.tagger.tag(model, route, answer.cues, answer.guesses, watched.max_tokens)
        if answer.last:
            answer.tag, answer.tag_until_s = tag, now_s + QUICK_FRESH_S
        return tag

    def _compares(self) -> bool:
        self._due_share += self._settings.compare_share
        if self._due_share < 1.0:
            return False
        self._due_share -= 1.0
        return True

    # -- at the end

    def over(self, watched: Watched, account: Account, complete: bool, max_tokens: int) -> None:
        """A request is over: how long its answer was; of one that was cut off, that it would have been longer."""
        gone = account.end == "client_gone"
        if complete or gone:
            tokens = account.output_tokens if account.output_tokens >= 0 else account.events
            self.ended(watched, tokens, gone or account.truncated or 0 < max_tokens <= tokens)

    def ended(self, watched: Watched, output_tokens: int, truncated: bool) -> None:
        """An answer ended after so many tokens, or was cut off there."""
        if output_tokens < 1:
            return
        if watched.asked:
            watched.end = (output_tokens, truncated)
            return
        now_s, tag, cues = self._plane.now(), watched.tag, watched.cues
        if now_s - self._seen_s >= (LEARNT_EVERY_S if tag.mixed is not None else OBSERVED_EVERY_S):
            self._seen_s = now_s
            self.tagger.observe(tag, output_tokens, truncated)
            self.counts.observe(tag, output_tokens, truncated)
        if self.log is not None and cues is not None:
            limit, prompt_tokens = watched.max_tokens, watched.prompt_tokens
            self.log.add(Row(tag.model, tag.route, cues, limit, prompt_tokens, output_tokens, truncated, watched.ends))
            self._tell_of(self.log)

    # -- the process

    def start(self) -> TagLink:
        """The link to the process, which is started when this is first called."""
        if self.link is None:
            settings = self._settings
            self.link = TagLink(self._plane.loop, self.command, settings.queue, self._deadline_s, self._on_event)
            self.link.start()
            self._tell_missing()
        return self.link

    def _tell_missing(self) -> None:
        missing = [name for name in RUNTIME if importlib.util.find_spec(name) is None]
        if missing and not self._told_missing:
            self._told_missing = True
            self._plane.logs.event("info", "tagger runs without its encoder", missing=", ".join(missing), extra="tagger")

    def _tell_of(self, log: LengthLog) -> None:
        if problem := log.take_problem():
            self._plane.logs.event("warning", "length log", reason=problem)

    def _on_event(self, what: str, text: str) -> None:
        if what == "up":
            self._plane.logs.event("info", "tagger up", models=text)
        else:
            self._plane.logs.event("warning", f"tagger {what}", reason=text)

    def families(self, desks: Iterable[tuple[str, Desk]]) -> Iterator[Metric]:
        """One scrape. `desks` are those there are, by model."""
        hindsights = [(model, desk.hindsight) for model, desk in desks]
        models = sorted({model for model, _ in hindsights})
        link, log = self.link, self.log
        state, restarts = (link.state, link.restarts) if link is not None else ("off", 0)
        yield from self.counts.families(state, restarts, log.dropped if log is not None else 0, hindsights)
        yield from layer_families([self.tagger.report(model) for model in models])
