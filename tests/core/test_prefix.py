"""The index of prefix blocks: hits from the beginning, the oldest forgotten first, a prompt's last block before its first."""

from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.prefix import PrefixIndex


def index(capacity: int, *prompts: tuple[int, ...]) -> PrefixIndex:
    made = PrefixIndex(capacity)
    for prompt in prompts:
        made.touch(prompt)
    return made


def test_hits_count_from_the_beginning() -> None:
    made = index(10, (1, 2, 3))
    assert [made.hit_blocks(p) for p in ((1, 2, 3), (1, 2, 9, 3), (9, 2, 3), (), (1,))] == [3, 2, 0, 0, 1]


def test_the_oldest_go_first_and_a_prompt_s_end_before_its_beginning() -> None:
    made = index(4, (1, 2, 3), (10, 11))
    assert (made.hit_blocks((1, 2, 3)), made.hit_blocks((10, 11)), len(made)) == (2, 2, 4)
    made.touch((1, 2))
    made.touch((20,))
    assert (made.hit_blocks((1, 2)), made.hit_blocks((10, 11)), made.hit_blocks((20,))) == (2, 1, 1)


def test_a_prompt_larger_than_the_index_keeps_its_beginning() -> None:
    made = index(3, tuple(range(100)))
    assert made.hit_blocks(tuple(range(100))) == 3


def test_what_the_engine_says_counts() -> None:
    made = index(10, (1, 2, 3, 4))
    made.drop((3, 77))
    assert made.hit_blocks((1, 2, 3, 4)) == 2
    made.resize(1)
    assert (made.hit_blocks((1, 2)), len(made), repr(made)) == (1, 1, "<PrefixIndex 1/1 blocks>")
    made.forget()
    assert (made.hit_blocks((1,)), len(made)) == (0, 0)
    assert index(0, (1, 2)).hit_blocks((1,)) == 0


def test_each_change_has_its_version() -> None:
    made, seen = PrefixIndex(5), set()
    for change in (lambda: None, lambda: made.touch((1,)), lambda: made.drop((1,)), lambda: made.resize(6), made.forget):
        change()
        seen.add(made.version)
    assert len(seen) == 5
    made.touch(())
    assert made.version in seen


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 6), st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5)), max_size=30))
def test_it_is_an_lru_of_chains(capacity: int, uses: list[tuple[int, int]]) -> None:
    """Against a list kept by hand: chains share no blocks here, so what is held of one is its beginning."""
    made, order = PrefixIndex(capacity), list[int]()
    for chain, length in uses:
        prompt = tuple(chain * 100 + i for i in range(length))
        made.touch(prompt)
        for block in reversed(prompt):
            if block in order:
                order.remove(block)
            order.append(block)
        del order[: max(0, len(order) - capacity)]
        assert len(made) == len(order) <= capacity
        for other in range(4):
            whole = tuple(other * 100 + i for i in range(5))
            held = [block in order for block in whole]
            assert made.hit_blocks(whole) == (held.index(False) if False in held else 5)
