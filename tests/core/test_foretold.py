"""Lengths that gateways foretold count for requests that an engine shows with all they might generate."""

from dataclasses import replace

from predictor.foretold import KEPT_MAX, Foretold
from predictor.oracle import FixedPace, Oracle
from predictor.profile import PRESETS
from predictor.request import LengthEstimate
from predictor.rest import Rest
from predictor.sighting import Sighting
from predictor.snapshot import Resident, Snapshot
from predictor.wire import Ask

LENGTHS = LengthEstimate(50, 100, 400, "t")
DEMO = PRESETS["demo-fast"]
LIMITS = DEMO.limits


def state(*running: Resident, waiting: tuple[Resident, ...] = (), taken_s: float = 1.0) -> Snapshot:
    held = sum(-(-(one.computed_tokens or one.prompt_tokens) // LIMITS.block_size) for one in running)
    return Snapshot(taken_s, LIMITS, running, waiting, LIMITS.kv_blocks - held, 0, 0.0, 0)


def outputs(lengths: Foretold, *running: Resident, waiting: tuple[Resident, ...] = ()) -> list[int]:
    found = lengths.corrected(state(*running, waiting=waiting))
    return [one.output_tokens for one in (*found.running, *found.waiting)]


def test_an_answer_under_way_goes_on_as_those_do_that_got_so_far() -> None:
    lengths = Foretold()
    lengths.told("a", LENGTHS)
    for generated in (0, 1, 99, 100, 399, 400):
        one = Resident("a", 10, 10 + generated, generated, 2000)
        expected = generated + Rest(LENGTHS).tokens(generated)
        assert expected > max(99, generated)
        assert outputs(lengths, one, waiting=(replace(one, id="b"),)) == [expected, 2000]
    assert outputs(lengths, Resident("a", 10, 11, 1, 80)) == [80], "what the engine knows better stays"


def test_kept_while_the_request_is_there() -> None:
    lengths = Foretold()
    lengths.told("a", LENGTHS)
    lengths.told("b", LENGTHS)
    lengths.saw(["other"])
    assert len(lengths) == 2, "not come yet"
    lengths.saw(["a", "other"])
    lengths.saw(["a", "b"])
    lengths.saw(["b"])
    assert outputs(lengths, Resident("a", 10, 11, 1, 900), Resident("b", 10, 11, 1, 900)) == [900, 100]
    lengths.saw([])
    assert len(lengths) == 0


def test_bounded() -> None:
    lengths = Foretold()
    for number in range(KEPT_MAX + 10):
        lengths.told(str(number), LENGTHS)
    assert len(lengths) == KEPT_MAX
    assert outputs(lengths, Resident("9", 10, 11, 1, 900), Resident("10", 10, 11, 1, 900)) == [900, 100]


def ask(name: str) -> Ask:
    return Ask(name, "m", 64, LENGTHS)


def test_a_request_that_was_reserved_counts_with_its_length_once_it_runs() -> None:
    """A full batch of requests that might generate 3,000 tokens each, but were foretold 100: the next one waits for
    one of them, not for 3,000 steps."""
    batch = [Resident(f"r{number}", 64, 64, 1, 3000) for number in range(LIMITS.max_num_seqs)]
    waits = {}
    for told in (False, True):
        oracle = Oracle(FixedPace(DEMO.profile))
        oracle.saw(Sighting(1, "test", state()))
        if told:
            for one in batch:
                oracle.reserve(ask(one.id), 1.0)
        oracle.saw(Sighting(2, "test", state(*batch, taken_s=1.5)))
        waits[told] = oracle.reply(ask("next"), 1.5).estimate.ttft_s
    assert waits[True] < waits[False] / 10
