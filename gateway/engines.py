"""What is believed of each backend's engine, and its mirror: settings first, then what it says of itself, then its profile,
then a guess that `pace` corrects. Shell only by reading profile files.
"""

from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256

from backends.base import UNSAID, EngineReport, Sizes
from gateway.config import BackendSpec
from gateway.jobs import Job
from gateway.replica import Replica
from predictor.catalog import ProfileError, engine_profile
from predictor.kept import Kept, State
from predictor.kvview import KvView
from predictor.mirror import Mirror
from predictor.pace import COMMON_MIN, Pace
from predictor.profile import EngineLimits, StepProfile
from predictor.slots import Slots

# Twice as fast as a 7B model on one H100: the shape counts, since the factor is learned.
GUESSED_STEPS = StepProfile(3.11e-3, 9.0e-6, 5.4e-6, 9.25e-9, 346e-12, 160, 0.0, "h")
# What nothing is known of must hold nobody back.
GUESSED_LIMITS = EngineLimits(262_144, 16, 1024, 2048, 131072)
NOT_REPORTED = EngineReport()


def believed(
    spec: BackendSpec, report: EngineReport, max_model_len: int, step_tokens: int = 0, sizes: Sizes = UNSAID, slots: int = 0
) -> tuple[StepProfile, EngineLimits]:
    """Step times and limits of a backend's engine. `sizes` are its own words (and go before its metrics, which may round a
    block away); `step_tokens` is the budget of its steps, `slots` how many requests run at once, as found out where it says
    none, 0 if that was not.
    Raises ProfileError when its profile can't be used."""
    steps, limits = GUESSED_STEPS.scaled(1.0 / spec.weight), GUESSED_LIMITS
    if spec.profile:
        found = engine_profile(spec.profile)
        steps, limits = found.step, found.limits or limits
    held = sizes if sizes.kv_blocks else report
    kv_blocks = spec.kv_blocks or held.kv_blocks or limits.kv_blocks
    block_size = spec.block_size or held.block_size or limits.block_size
    step_tokens = sizes.max_num_batched_tokens or step_tokens
    seqs = spec.max_num_seqs or sizes.max_num_seqs or slots or min(limits.max_num_seqs, step_tokens or limits.max_num_seqs)
    tokens = max(seqs, spec.max_num_batched_tokens or step_tokens or limits.max_num_batched_tokens)
    length = min(max_model_len or limits.max_model_len, kv_blocks * block_size)
    limits = replace(
        limits,
        kv_blocks=kv_blocks,
        block_size=block_size,
        max_num_seqs=seqs,
        max_num_batched_tokens=tokens,
        max_model_len=length,
        watermark_blocks=min(limits.watermark_blocks, kv_blocks - 1),
    )
    return steps, limits


SURPLUS_REPORTS = 3
ENGINES_KEPT = 4096


def same(replica: Replica, mirror: Mirror) -> str:
    """What must be as it was for an engine's pace to hold in another life of the gateway."""
    identity = replica.identity
    told = (identity.engine, identity.version, *sorted(identity.models), repr(mirror.profile))
    return sha256("\n".join(told).encode()).hexdigest()[:32]


class Heard:
    """What one engine has said of itself, report by report."""

    __slots__ = ("last", "missed", "slots", "surplus", "there")

    def __init__(self) -> None:
        self.last = NOT_REPORTED
        self.missed = 0  # reports in a row that did not tell its requests
        self.surplus: deque[int] = deque(maxlen=SURPLUS_REPORTS)  # by how many more it told than are ours
        self.slots = Slots()
        self.there: set[str] | None = None  # our requests at the last report


class Engines:
    """Gives replicas their mirrors, and keeps those true to what becomes known. `problems` tell of profiles that can't
    be used."""

    def __init__(self) -> None:
        self._heard: dict[str, Heard] = {}
        self._known_by: dict[str, tuple[BackendSpec, Sizes, int]] = {}  # what mirrors were made from
        self.problems: list[str] = []
        self.fresh: list[Mirror] = []  # without lessons enough of their own
        self._common: dict[StepProfile, Pace] = {}
        self.views: dict[str, KvView] = {}  # of engines that publish what their KV holds
        self._known: dict[str, Replica] = {}  # those with a mirror
        self._earlier: OrderedDict[str, Kept] = OrderedDict()  # learnt in an earlier life, of engines not seen in this one

    def view(self, replica: Replica) -> KvView:
        """A new view of the replica's KV, for whoever reads its engine's events."""
        made = self.views[replica.name] = KvView(self.mirror(replica).index)
        return made

    def blind(self, name: str) -> None:
        """Nobody reads that engine's events any more."""
        self.views.pop(name, None)

    def sent(self, name: str, job: Job) -> None:
        """A job goes to that engine."""
        view = self.views.get(name)
        if view is not None:
            view.answers_at_once = name in self._known and self._known[name].identity.body_session
            view.sent(job)

    def computed(self, job: Job) -> None:
        """The job's first token came."""
        for view in self.views.values():
            view.computed(job.request_id)

    def ended(self, job: Job) -> None:
        """The job is over."""
        for view in self.views.values():
            view.gone(job.request_id)

    def mirror(self, replica: Replica) -> Mirror:
        """The replica's mirror, made when first asked for."""
        mirror = replica.mirror
        known = (replica.spec, replica.identity.sizes, replica.identity.max_model_len)
        if mirror is not None and self._known_by.get(replica.name) != known:
            mirror.retune(*self._believed(replica))  # its settings were changed while it works, or it says what it is
        self._known_by[replica.name] = known
        if mirror is None:
            steps, limits = self._believed(replica)
            common = self._common.setdefault(steps, Pace(COMMON_MIN))
            mirror = replica.mirror = Mirror(steps, limits, learns=True, common=common)
            mirror.take_pace()
            self.fresh.append(mirror)
        mirror.scheduling = replica.scheduling
        self._known[replica.name] = replica
        if self._earlier and replica.state == "ready":  # before that its identity is not known
            self._recall(replica, mirror)
        return mirror

    def _recall(self, replica: Replica, mirror: Mirror) -> None:
        earlier = self._earlier.pop(replica.name, None)
        if earlier is not None and earlier.text("same") == same(replica, mirror):
            mirror.learned.restore(earlier)
            mirror.take_pace()

    def states(self) -> Iterator[State]:
        """What is learnt of engines, in pieces (predictor.kept), and what is still known of others."""
        for name, replica in list(self._known.items()):
            mirror = replica.mirror
            if mirror is not None:
                yield {"name": name, "same": same(replica, mirror), **mirror.learned.state()}
        for name in list(self._earlier):
            earlier = self._earlier.get(name)
            if earlier is not None:
                yield earlier.state

    def restore(self, kept: Kept) -> None:
        """Take one piece over, for when that engine comes back. Raises KeptError."""
        name = kept.text("name")
        kept.text("same")
        Pace().restore(kept)
        self._earlier[name] = kept
        if len(self._earlier) > ENGINES_KEPT:
            self._earlier.popitem(last=False)

    def teach(self) -> None:
        """Somebody learned something: those without enough lessons of their own go by all of them."""
        self.fresh = [mirror for mirror in self.fresh if mirror.take_pace()]

    def reported(self, replica: Replica, report: EngineReport, now_s: float) -> None:
        """What the engine says of itself."""
        heard, mirror = self._heard_of(replica.name), replica.mirror
        known, heard.last = heard.last, report
        if mirror is None:
            return
        step_tokens = mirror.budget.tokens
        found = mirror.budget.report(report.steps, now_s) != step_tokens
        if report.waiting >= 0:
            found = _slots_found(heard, mirror, report) or found
        if found or (known.kv_blocks, known.block_size) != (report.kv_blocks, report.block_size):
            mirror.retune(*self._believed(replica))
        if report.requests >= 0:
            # A report is a moment old: what ended or came meanwhile is nobody else's traffic. That lasts.
            heard.missed = 0
            heard.surplus.append(report.requests - max(len(mirror), replica.in_flight))
            others = min(heard.surplus) if len(heard.surplus) == SURPLUS_REPORTS else 0
            mirror.reported(len(mirror) + max(0, others), max(0.0, report.kv_usage))

    def unreported(self, replica: Replica) -> None:
        """It did not say how many requests it has. Where that lasts, nobody would ever tell that the others' are over."""
        heard = self._heard_of(replica.name)
        heard.missed += 1
        if heard.missed >= SURPLUS_REPORTS and replica.mirror is not None:
            heard.surplus.clear()
            replica.mirror.reported(0, 0.0)

    def _heard_of(self, name: str) -> Heard:
        return self._heard.setdefault(name, Heard())

    def take_problems(self) -> list[str]:
        """What went wrong since the last call."""
        taken, self.problems = self.problems, []
        return taken

    def forget(self, name: str) -> None:
        """The backend is gone."""
        self._heard.pop(name, None)
        self._known_by.pop(name, None)
        self._known.pop(name, None)
        self._earlier.pop(name, None)

    def _believed(self, replica: Replica) -> tuple[StepProfile, EngineLimits]:
        spec, heard = replica.spec, self._heard_of(replica.name)
        try:
            found = replica.mirror.budget.tokens if replica.mirror is not None else 0
            identity = replica.identity
            return believed(spec, heard.last, identity.max_model_len, found, identity.sizes, heard.slots.limit)
        except (ProfileError, ValueError) as error:
            self.problems.append(f"{spec.name}: {error}")
            return GUESSED_STEPS, GUESSED_LIMITS


def _slots_found(heard: Heard, mirror: Mirror, report: EngineReport) -> bool:
    """Whether its number of slots is believed to be another than before."""
    there = {seat.id for seat in mirror.seats}
    before, ends = heard.slots.limit, 0 if heard.there is None else len(heard.there - there)
    heard.there = there
    return heard.slots.report(report.requests - report.waiting, report.waiting, report.kv_usage, ends) != before
