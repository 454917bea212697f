"""What a body tells of its prompt: shared beginnings share hashes, whatever order its members stand in."""

import json

import pytest

from gateway.prompt import BLOCK_CHARS, PREFIX_CHARS_MAX, prefix_hashes, prompt_tokens
from gateway.relay.splice import parse_small


def body(**members: object) -> bytes:
    return json.dumps({"model": "m", **members}, separators=(",", ":")).encode()


def hashes(text: bytes) -> tuple[int, ...]:
    fields = parse_small(text)
    assert fields is not None
    return prefix_hashes(text, fields.parts)


def common(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    return next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def turns(*texts: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text} for text in texts]


LONG = "once upon a time there was a gateway " * 300  # 5.4 blocks
TOOLS = [{"type": "function", "function": {"name": f"tool{n}", "description": "does a thing " * 40}} for n in range(8)]


def test_short_bodies_cost_nothing() -> None:
    assert hashes(body(messages=turns("hi"))) == ()
    assert hashes(body(messages=turns("x" * (BLOCK_CHARS - 100)))) == ()


def test_a_conversation_that_goes_on_keeps_its_beginning() -> None:
    first, second = body(messages=turns(LONG)), body(messages=turns(LONG, "and then?" * 500))
    assert len(hashes(first)) == 5
    assert common(hashes(first), hashes(second)) == 5
    assert common(hashes(first), hashes(body(messages=turns("Now " + LONG)))) == 0


def test_what_stands_before_the_messages_in_the_body_does_not_matter() -> None:
    one = body(messages=turns(LONG), stream=True)
    other = body(temperature=0.5, max_tokens=77, user="somebody else", messages=turns(LONG))
    assert common(hashes(one), hashes(other)) == 5


@pytest.mark.parametrize("order", [("tools", "system", "messages"), ("messages", "system", "tools")])
def test_tools_and_system_come_first_in_the_prompt_wherever_they_stand(order: tuple[str, ...]) -> None:
    def ask(text: str) -> bytes:
        members = {"tools": TOOLS, "system": LONG, "messages": turns(text)}
        return body(**{name: members[name] for name in order})

    one, other = hashes(ask("what is this? " * 200)), hashes(ask("another question " * 200))
    assert common(one, other) == len(one) - 1, "all but the question's own block"
    assert hashes(body(system="other", messages=turns(LONG)))[0] != hashes(body(system="one", messages=turns(LONG)))[0]


@pytest.mark.parametrize("name", ["prompt", "input"])
def test_other_faces(name: str) -> None:
    assert common(hashes(body(**{name: LONG + "a"})), hashes(body(**{name: LONG + "b"}))) == 5
    assert prefix_hashes(b'{"model":"m","else":"' + b"x" * 5000 + b'"}') == ()


def test_large_bodies_are_read_to_a_bound() -> None:
    large = body(messages=turns("many words " * 200_000))
    assert len(prefix_hashes(large)) == PREFIX_CHARS_MAX // BLOCK_CHARS


def test_tokens_are_estimated() -> None:
    assert [prompt_tokens(size) for size in (0, 3, 4, 4000)] == [1, 1, 1, 1000]


def test_every_process_means_the_same_by_a_hash() -> None:
    assert prefix_hashes(b'{"messages":' + b"a" * 3000 + b"}") == (466753958,)
