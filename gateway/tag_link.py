"""The gateway's side of the tagger's process: one process, one socket, one deadline. Shell, on the event loop.

Nothing here waits: a question that can't be sent now is answered at once with the reason, and whoever asked hears by the
deadline, with what has come until then. A process that ends is started again after a growing pause; one that says
nothing for HUNG_S is ended first. Starting and ending processes is another thread's work.
"""

import asyncio
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from gateway.prompt_ends import Ends
from gateway.tag_frames import FRAME_BYTES_MAX, PROBLEM, READY, FrameError, Question, Reply, decode_reply, encode_question
from predictor.features import Cues
from predictor.length import Guess, Tag
from predictor.model_names import model_key

HUNG_S = 2.0
SLOW_S = 0.1  # the oldest question is unanswered for so long: the next ones are not waited for
BACKOFF_S, BACKOFF_MAX_S, STEADY_S = 0.1, 30.0, 10.0
READS_AT_ONCE = 64
SHIPPED = Path(__file__).parents[1] / "predictor" / "tagger_models"


def command_of(models: str) -> tuple[str, ...]:
    """How the process is started: the interpreter, the module, its socket (put in by the link), its models."""
    return (sys.executable, "-m", "gateway.tag_worker", "{fd}", models or str(SHIPPED))


class Asked:
    """A question under way. `cues` and `guesses` are what has come; `cause` is why the models' answer is not all there,
    "" if it is; `told` once `then` was called. `tag` is what was made of the answer last, good until `tag_until_s`."""

    __slots__ = (
        "cause",
        "cues",
        "due_s",
        "faults",
        "guesses",
        "id",
        "last",
        "late",
        "sent_s",
        "tag",
        "tag_until_s",
        "then",
        "told",
        "took_s",
    )

    def __init__(self, number: int, sent_s: float, due_s: float, then: "Then", late: "Then") -> None:
        self.id = number
        self.sent_s = sent_s
        self.due_s = due_s
        self.then = then
        self.late = late
        self.cues: Cues | None = None
        self.guesses: dict[str, Guess] = {}
        self.faults: tuple[str, ...] = ()
        self.cause = ""
        self.last = self.told = False
        self.took_s = 0.0
        self.tag: Tag | None = None
        self.tag_until_s = 0.0

    def take(self, reply: Reply) -> None:
        """Another part of the answer."""
        self.cues = self.cues or reply.cues
        self.guesses.update(reply.guesses)
        self.faults += reply.faults
        self.last = reply.last

    def forget(self) -> None:
        """Whoever was to be told has heard it all: an answer that is remembered must not hold the request that asked."""
        self.then = self.late = _to_nobody


def _to_nobody(_: Asked) -> None:
    """What is told to nobody."""


Then = Callable[[Asked], None]
Spawned = tuple["subprocess.Popen[bytes]", socket.socket]


class TagLink:
    """See the module's words. `state` is one of off, starting, up, down; `models` are those that run, and `reads_model` says
    that what they guess depends on which model answers. `on_event(what, text)` hears of starts ("up"), ends ("down") and
    problems with models ("problem")."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        command: Sequence[str],
        queue: int,
        deadline_s: float,
        on_event: Callable[[str, str], None],
    ) -> None:
        self.state = "off"
        self.models: tuple[str, ...] = ()
        self.reads_model = False
        self.restarts = 0
        self._loop = loop
        self._command = command
        self._queue = queue
        self._deadline_s = deadline_s
        self._on_event = on_event
        self._open: dict[int, Asked] = {}
        self._due: deque[Asked] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._starter: asyncio.TimerHandle | None = None
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._count = 0
        self._backoff_s = BACKOFF_S
        self._up_s = 0.0
        self._problem = ""
        self._closed = False

    def __repr__(self) -> str:
        return f"<TagLink {self.state} {len(self._open)} asked, {self.restarts} restarts>"

    @property
    def pid(self) -> int:
        """Of the process; 0 without one."""
        return self._process.pid if self._process is not None else 0

    @property
    def connected(self) -> bool:
        """Whether a socket to it is open."""
        return self._socket is not None

    # -- questions

    def ask(self, ends: Ends, max_tokens: int, then: Then, late: Then, encoder: bool = True, model: str = "") -> str:
        """Put a question; `then` is called once, later, and `late` if more of the answer comes after the deadline. Gives
        why it could not be put, or "": in that case nothing is called."""
        link = self._socket
        if self.state != "up" or link is None:
            return "starting" if self.state in ("starting", "off") and not self.restarts else "down"
        now_s = time.monotonic()
        if self._open:
            oldest_s = now_s - next(iter(self._open.values())).sent_s
            if oldest_s > HUNG_S:
                self._hung()
                return "down"
            if oldest_s > SLOW_S or len(self._open) >= self._queue:
                return "busy"
        self._count += 1
        asked = Asked(self._count, now_s, now_s + self._deadline_s, then, late)
        try:
            key = model_key(model) if self.reads_model else 0
            link.send(encode_question(Question(asked.id, asked.due_s, max_tokens, ends, encoder, key)))
        except BlockingIOError:
            return "busy"
        except OSError:
            self._ended("its socket broke")
            return "down"
        self._open[asked.id] = asked
        self._due.append(asked)
        if len(self._due) == 1:
            self._wake_in(self._deadline_s)  # else it is woken for one before
        return ""

    def _wake_in(self, wait_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(wait_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        now_s = time.monotonic()
        while self._due and (self._due[0].told or self._due[0].due_s <= now_s + 0.0005):
            asked = self._due.popleft()
            if not asked.told:
                self._tell(asked, "late")
        if self._due:
            self._wake_in(max(0.001, self._due[0].due_s - now_s))
        elif self._open:
            left_s = next(iter(self._open.values())).sent_s + HUNG_S - now_s
            if left_s <= 0:
                self._hung()
            else:
                self._wake_in(left_s + 0.001)

    @staticmethod
    def _tell(asked: Asked, cause: str) -> None:
        asked.told, asked.cause, asked.took_s = True, cause, time.monotonic() - asked.sent_s
        asked.then(asked)

    def _readable(self) -> None:
        link = self._socket
        if link is None:
            return
        for _ in range(READS_AT_ONCE):
            try:
                frame = link.recv(FRAME_BYTES_MAX)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                frame = b""
            if not frame:
                self._ended(self._problem or "it ended")
                return
            self._take(frame)
            if self._socket is not link:
                return

    def _take(self, frame: bytes) -> None:
        if frame.startswith(PROBLEM):
            self._problem = frame.removeprefix(PROBLEM).decode(errors="replace")
            self._on_event("problem", self._problem)
            return
        try:
            reply = decode_reply(frame)
        except FrameError:
            self._garbage()
            return
        if reply.id == READY:
            self._ready(tuple(reply.guesses), reply.reads_model)
            return
        asked = self._open.get(reply.id)
        if asked is None:
            return
        asked.take(reply)
        if reply.last:
            del self._open[reply.id]
        if asked.told:
            if reply.last and (reply.guesses or reply.cues is not None):
                asked.late(asked)
        elif reply.last:
            self._tell(asked, asked.faults[0] if asked.faults else "")
        if reply.last:
            asked.forget()

    def _garbage(self) -> None:
        """No frame: the oldest question takes it for its answer."""
        number = next(iter(self._open), None)
        if number is not None:
            asked = self._open.pop(number)
            asked.faults = ("garbage",)
            if not asked.told:
                self._tell(asked, "garbage")

    # -- the process

    def start(self) -> None:
        """Begin, if it has not begun."""
        if self.state == "off" and not self._closed:
            self._begin()

    def _begin(self) -> None:
        self.state, self._starter, self._problem = "starting", None, ""
        made = self._loop.run_in_executor(None, spawn, self._command, self._process)
        made.add_done_callback(self._spawned)

    def _spawned(self, made: "asyncio.Future[Spawned]") -> None:
        if made.cancelled():
            return
        error = made.exception()
        if error is not None:
            self._ended(f"it can't be started: {error}")
            return
        self._process, link = made.result()
        if self._closed:
            link.close()
            self._process.kill()
            self._process.wait()
            return
        self._socket = link
        self._loop.add_reader(link, self._readable)

    def _ready(self, models: tuple[str, ...], reads_model: bool) -> None:
        self.state, self.models, self._up_s = "up", models, time.monotonic()
        self.reads_model = reads_model
        self._on_event("up", ", ".join(models))

    def _hung(self) -> None:
        if self._process is not None:
            self._process.kill()
        self._ended(f"it said nothing for {HUNG_S:g} s")

    def _ended(self, why: str) -> None:
        """The process is gone, or as good as gone."""
        link, self._socket = self._socket, None
        if link is not None:
            self._loop.remove_reader(link)
            link.close()
        lost, self._open = list(self._open.values()), {}
        self._due.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._closed:
            steady = self.state == "up" and time.monotonic() - self._up_s > STEADY_S
            self._backoff_s = BACKOFF_S if steady else min(BACKOFF_MAX_S, self._backoff_s * 2)
            self.state, self.restarts = "down", self.restarts + 1
            self._starter = self._loop.call_later(self._backoff_s, self._begin)
            self._on_event("down", why)
        for asked in lost:
            if not asked.told:
                self._tell(asked, "down")

    def close(self) -> None:
        """End it for good; whoever still waits is told."""
        self._closed = True
        if self._starter is not None:
            self._starter.cancel()
        self._ended("closed")
        self.state = "off"
        process = self._process
        if process is not None:
            process.kill()
            self._loop.run_in_executor(None, partial(process.wait, 5.0))


def spawn(command: Sequence[str], before: "subprocess.Popen[bytes] | None") -> Spawned:
    """A process and our end of its socket; what is left of the one before is ended. Raises OSError."""
    if before is not None:
        before.kill()
        before.wait()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        fd = theirs.fileno()
        devnull = subprocess.DEVNULL
        line = [part.replace("{fd}", str(fd)) for part in command]
        try:
            process = subprocess.Popen(line, pass_fds=(fd,), stdin=devnull, stdout=devnull, stderr=devnull)
        except OSError:
            ours.close()
            raise
    ours.setblocking(False)
    return process, ours
