"""Text joined to an engine's blocks: what the engine lets go of is no longer believed, and nothing else is forgotten."""

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.kvview import CHAIN_MAX, CLAIMS_MAX, KvView
from predictor.prefix import PrefixIndex

TEXT_TOKENS = 64  # of a text block, as the gateway estimates; engine blocks have 16


@dataclass(frozen=True)
class Sent:
    request_id: str
    prefix: tuple[int, ...]
    prompt_tokens: int
    block_tokens: int = TEXT_TOKENS
    session: str = ""


def view(capacity: int = 100) -> KvView:
    return KvView(PrefixIndex(capacity))


def send(to: KvView, name: str, prefix: tuple[int, ...], rest: int = 10, session: str = "") -> Sent:
    job = Sent(name, prefix, TEXT_TOKENS * len(prefix) + rest, session=session)
    to.index.touch(prefix)
    to.sent(job)
    return job


def chain(name: str, count: int) -> list[bytes]:
    return [f"{name}{place}".encode() for place in range(count)]


def test_the_end_of_a_chain_costs_the_end_of_the_text() -> None:
    made = view()
    send(made, "a", (1, 2, 3))
    blocks = chain("x", 12)  # 192 tokens: as estimated
    made.stored("a", blocks[:8], None, 16)
    made.stored("a", blocks[8:], blocks[7], 16)
    made.computed("a")
    made.gone("a")
    assert (made.joined, made.tokens, made.index.hit_blocks((1, 2, 3))) == (1, 192, 3)
    made.removed([blocks[11]])
    assert made.index.hit_blocks((1, 2, 3)) == 2
    made.removed([blocks[0]])
    assert (made.index.hit_blocks((1, 2, 3)), made.tokens) == (0, 160)


def test_text_that_has_more_tokens_than_estimated_covers_more_blocks() -> None:
    made = view()
    send(made, "a", (1, 2), rest=0)
    blocks = chain("x", 16)  # 256 tokens for 128 estimated
    made.stored("a", blocks, None, 16)
    made.computed("a")
    made.gone("a")
    made.removed([blocks[8]])
    assert made.index.hit_blocks((1, 2)) == 1
    made.removed([blocks[7]])
    assert made.index.hit_blocks((1, 2)) == 0


def test_blocks_of_the_answer_hold_none_of_the_prompt() -> None:
    made = view()
    send(made, "a", (1, 2), rest=0)
    blocks = chain("x", 12)
    made.stored("a", blocks[:8], None, 16)
    made.computed("a")
    for place in range(8, 12):
        made.stored("a", [blocks[place]], blocks[place - 1], 16)
    made.removed(blocks[8:])
    assert (made.joined, made.index.hit_blocks((1, 2))) == (1, 2)


def test_an_answer_that_is_told_in_one_piece_holds_none_of_the_prompt() -> None:
    made = view()
    made.answers_at_once = True
    send(made, "a", (1, 2, 3))
    blocks = chain("x", 12)
    made.stored("a", blocks, None, 16)
    made.computed("a")
    made.stored("a", chain("answer", 40), blocks[-1], 16)
    made.gone("a")
    assert (made.joined, made.index.hit_blocks((1, 2, 3))) == (1, 3)
    made.removed(chain("answer", 40))
    assert made.index.hit_blocks((1, 2, 3)) == 3
    made.removed(blocks[8:])
    assert made.index.hit_blocks((1, 2, 3)) == 2


def test_the_rest_of_a_prompt_that_is_told_late_is_no_answer() -> None:
    made = view()
    made.answers_at_once = True
    send(made, "a", (1, 2, 3), rest=0)
    blocks = chain("x", 12)
    made.stored("a", blocks[:3], None, 16)  # a quarter of it
    made.computed("a")
    made.stored("a", blocks[3:], blocks[2], 16)
    made.stored("a", chain("answer", 40), blocks[-1], 16)
    made.gone("a")
    assert made.joined == 1
    made.removed(chain("answer", 40))
    assert made.index.hit_blocks((1, 2, 3)) == 3
    made.removed([blocks[-1]])
    assert made.index.hit_blocks((1, 2, 3)) == 2


def test_without_a_first_token_seen_the_chain_ends_where_such_prompts_do() -> None:
    made = view()
    send(made, "a", (1, 2), rest=0)
    blocks = chain("x", 12)
    made.stored("a", blocks, None, 16)  # 8 of the prompt, 4 of the answer
    made.gone("a")
    made.removed(blocks[8:])
    assert made.index.hit_blocks((1, 2)) == 2
    made.removed(blocks[4:5])
    assert made.index.hit_blocks((1, 2)) == 1


def test_events_that_come_after_the_end_are_joined_as_well() -> None:
    for tells_first_token in (True, False):
        made = view()
        send(made, "a", (1, 2), rest=0)
        if tells_first_token:
            made.computed("a")
        made.gone("a")
        blocks = chain("x", 12)
        made.stored("a", blocks[:4], None, 16)
        assert made.joined == 0, "half a prompt"
        made.stored("a", blocks[4:8], blocks[3], 16)
        assert made.joined == 1
        for place in range(8, 12):
            made.stored("a", [blocks[place]], blocks[place - 1], 16)
        made.removed(blocks[8:])
        assert made.index.hit_blocks((1, 2)) == 2
        made.removed(blocks[4:5])
        assert made.index.hit_blocks((1, 2)) == 1


def test_a_shared_block_counts_for_every_text_in_it() -> None:
    made = view()
    shared = chain("s", 4)
    for name, prefix in (("a", (1, 2)), ("b", (1, 3))):
        send(made, name, prefix, rest=0)
        own = chain(name, 4)
        made.stored(name, shared, None, 16)  # the second time as a block that is used again
        made.stored(name, own, shared[-1], 16)
        made.computed(name)
        made.gone(name)
    assert made.tokens == 192
    made.removed([b"b0"])
    assert (made.index.hit_blocks((1, 2)), made.index.hit_blocks((1, 3))) == (2, 1)
    made.removed(shared[:1])
    assert (made.index.hit_blocks((1, 2)), made.index.hit_blocks((1, 3))) == (0, 0)


def test_what_cannot_be_joined_is_bounded_by_what_the_engine_holds() -> None:
    made = view()
    made.sent(Sent("", (), 10))
    for number in range(10):
        made.index.touch((number,))
    others = chain("o", 16)
    made.stored("somebody", others, None, 16)
    made.removed(others[:1])
    assert len(made.index) <= 5, "240 tokens hold no ten texts of 64"
    assert made.index.hit_blocks((9,)) == 1, "the last used stay"


def test_a_chain_without_its_beginning_is_not_joined() -> None:
    made = view()
    send(made, "a", (1, 2), rest=0)
    made.stored("a", chain("x", 8), b"never heard of", 16)
    made.computed("a")
    made.gone("a")
    assert made.joined == 0


def test_a_chain_that_is_too_long_to_follow_is_not_joined() -> None:
    made = view()
    for name, blocks in (("a", CHAIN_MAX), ("b", CHAIN_MAX + 1)):
        made.sent(Sent(name, (1, 2, 3), blocks))
        made.stored(name, chain(name, blocks), None, 1)
        made.computed(name)
        made.gone(name)
    assert made.joined == 1


def test_a_client_s_own_session_joins_as_long_as_it_has_one_request_in_flight() -> None:
    made = view()
    for turn in ("a", "b"):
        send(made, turn, (1, 2), rest=0, session="chat")
        made.stored("chat", chain("x", 8), None, 16)
        made.computed(turn)
        made.gone(turn)
    assert made.joined == 2
    made.removed(chain("x", 8)[4:])
    assert made.index.hit_blocks((1, 2)) == 1
    for name in ("c", "d"):
        send(made, name, (7, 8), rest=0, session="chat")
    made.stored("chat", chain("y", 8), None, 16)
    for name in ("c", "d"):
        made.computed(name)
        made.gone(name)
    assert made.joined == 2, "of two, nobody can tell whose"
    send(made, "e", (1, 2), rest=0, session="chat")
    made.stored("chat", chain("x", 8), None, 16)
    made.computed("e")
    made.gone("e")
    assert made.joined == 3


def test_clearing_and_losing_forget_everything() -> None:
    for forget in ("cleared", "lost"):
        made = view()
        send(made, "a", (1, 2))
        made.stored("a", chain("x", 8), None, 16)
        getattr(made, forget)()
        assert (made.tokens, len(made), made.index.hit_blocks((1, 2)), made.forgotten) == (0, 0, 0, 1)
        made.gone("a")
        assert made.joined == 0


def test_claims_are_bounded() -> None:
    made = view()
    for number in range(CLAIMS_MAX + 5):
        made.sent(Sent(f"r{number}", (number,), 64))
        made.computed(f"r{number}")
    assert f"{CLAIMS_MAX} not joined" in repr(made)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("srcgf"), st.integers(0, 5), st.integers(1, 6)), max_size=60))
def test_tokens_are_those_of_the_blocks_and_hits_never_grow_by_a_removal(story: list[tuple[str, int, int]]) -> None:
    made = view()
    prefixes = {f"r{number}": tuple(range(10 * number, 10 * number + 4)) for number in range(6)}
    for what, number, count in story:
        name = f"r{number}"
        blocks = chain(name, 16)
        if what == "s":
            send(made, name, prefixes[name])
            made.stored(name, blocks[:count], None, 16)
        elif what == "r":
            made.removed([])  # joins those whose prompts are computed
            before = {who: made.index.hit_blocks(prefix) for who, prefix in prefixes.items()}
            made.removed(blocks[count : count + 3])
            assert all(made.index.hit_blocks(prefix) <= before[who] for who, prefix in prefixes.items())
        elif what == "c":
            made.computed(name)
        elif what == "g":
            made.gone(name)
        elif count == 6:
            made.cleared()
        assert made.tokens == 16 * len(made)
