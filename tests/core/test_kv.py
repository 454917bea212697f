"""The block ledger: sharing by reference count, idle blocks found again until they are taken, nothing lost."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.kv import BlockLedger


def test_a_prefix_is_found_while_held_and_after() -> None:
    ledger = BlockLedger(8)
    ledger.take(3)
    ledger.name((1, 2))  # the third block is not a full piece of prompt
    assert (ledger.hits((1, 2, 9), 3), ledger.in_use((1, 2)), ledger.free, ledger.cached) == (2, 2, 5, 0)
    assert ledger.hits((1, 2), 1) == 1, "no more than asked for"
    assert ledger.hits((9, 1, 2), 3) == 0, "a prefix counts from its beginning"
    ledger.drop((1, 2))
    ledger.give(1)
    assert (ledger.hits((1, 2), 2), ledger.in_use((1, 2)), ledger.free, ledger.cached) == (2, 0, 8, 2)


def test_a_held_block_is_shared_and_an_idle_one_taken_from_the_free() -> None:
    ledger = BlockLedger(4)
    ledger.take(2)
    ledger.name((1, 2))
    ledger.reuse((1, 2))
    assert ledger.free == 2
    ledger.drop((1, 2))
    assert ledger.free == 2, "the other one still holds them"
    ledger.drop((1, 2))
    ledger.reuse((1,))
    assert (ledger.free, ledger.cached) == (3, 1)


def test_two_copies_computed_at_once_become_one() -> None:
    ledger = BlockLedger(4)
    ledger.take(2)
    ledger.name((7,))
    ledger.name((7,))
    assert ledger.free == 3
    ledger.drop((7,))
    ledger.drop((7,))
    assert (ledger.free, ledger.cached) == (4, 1)
    ledger.take(1)
    ledger.name((7,))
    assert (ledger.free, ledger.cached) == (3, 0), "an idle copy is no longer needed"


def test_what_is_idle_longest_goes_first_and_the_end_of_a_prompt_before_its_beginning() -> None:
    ledger = BlockLedger(4)
    for names in ((1, 2), (3, 4)):
        ledger.take(2)
        ledger.name(names)
        ledger.drop(names)
    ledger.take(1)
    assert (ledger.hits((1, 2), 2), ledger.hits((3, 4), 2)) == (1, 2)
    ledger.take(2)
    assert (ledger.hits((1, 2), 2), ledger.hits((3, 4), 2)) == (0, 1)


def test_forget_and_fork() -> None:
    ledger = BlockLedger(4)
    ledger.take(2)
    ledger.name((1, 2))
    twin = ledger.fork()
    twin.drop((1, 2))
    twin.forget()
    assert (twin.free, twin.cached, twin.hits((1,), 1)) == (4, 0, 0)
    assert (ledger.free, ledger.in_use((1, 2))) == (2, 2)
    assert repr(ledger) == "<BlockLedger free=2 of them cached=0 named=2>"


def test_more_than_there_is_cannot_be_taken() -> None:
    with pytest.raises(AssertionError):
        BlockLedger(2).take(3)


PROMPT = st.tuples(st.integers(0, 3), st.integers(1, 4), st.integers(0, 2))  # which conversation, named blocks, others


@settings(max_examples=150, deadline=None)
@given(st.lists(st.one_of(PROMPT, st.integers(0, 9)), max_size=60))
def test_blocks_are_conserved(steps: list[tuple[int, int, int] | int]) -> None:
    ledger = BlockLedger(12)
    holders: list[tuple[tuple[int, ...], int]] = []
    for step in steps:
        if isinstance(step, int):
            if holders:
                prefix, others = holders.pop(step % len(holders))
                ledger.drop(prefix)
                ledger.give(others)
        else:
            talk, named, others = step
            prefix = tuple(talk * 10 + piece for piece in range(named))
            hits = ledger.hits(prefix, named)
            if named + others - ledger.in_use(prefix[:hits]) > ledger.free:
                continue
            ledger.reuse(prefix[:hits])
            ledger.take(named - hits + others)
            ledger.name(prefix[hits:])
            holders.append((prefix, others))
        held = len({name for prefix, _ in holders for name in prefix}) + sum(others for _, others in holders)
        assert ledger.free + held == 12
        assert 0 <= ledger.cached <= ledger.free
        assert all(ledger.hits(prefix, 9) == len(prefix) for prefix, _ in holders), "what is held is found"
