"""Client keys: who is let in, by which header, and what a reload keeps."""

import hashlib

import pytest

from gateway.auth import Client, Keyring
from gateway.config import KeyLimits, KeySpec

KEY, OTHER = b"sk-leeway-canary-1", b"sk-leeway-canary-2"


def spec(key: bytes, name: str = "", concurrent: int = 0) -> KeySpec:
    return KeySpec(hashlib.sha256(key).hexdigest(), name, limits=KeyLimits(concurrent=concurrent))


RING = Keyring((spec(KEY, "one"), spec(OTHER, "two")))


@pytest.mark.parametrize(
    ("authorization", "api_key", "name"),
    [
        (b"Bearer " + KEY, None, "one"),
        (b"bearer " + OTHER, None, "two"),
        (b"BEARER   " + KEY + b" ", None, "one"),
        (None, KEY, "one"),
        (None, b" " + OTHER + b" ", "two"),
        (b"Basic abc", KEY, "one"),
        (b"Bearer " + KEY, OTHER, "one"),
        (b"Bearer wrong", KEY, None),
        (None, None, None),
        (b"Bearer ", None, None),
        (b"Bearer", KEY, "one"),
        (b"", None, None),
        (None, b"", None),
        (KEY, None, None),
        (b"Token " + KEY, None, None),
        (b"Bearer " + KEY[:-1], None, None),
        (b"Bearer " + KEY + b"x", None, None),
        (b"Bearer " + KEY.upper(), None, None),
        (b"Bearer " + hashlib.sha256(KEY).hexdigest().encode(), None, None),
        (b"Bearer \xff\x00'; drop table keys; --", None, None),
        (b"Bearer " + KEY + b" " * 2000, None, "one"),
        (b"Bearer " + b"k" * 2000, None, None),
    ],
)
def test_who_is_let_in(authorization: bytes | None, api_key: bytes | None, name: str | None) -> None:
    client = RING.find(authorization, api_key)
    assert (client.spec.name if client else None) == name


def test_a_gateway_without_keys_lets_everybody_in_as_one() -> None:
    ring = Keyring(())
    client = ring.find(None, None)
    assert client is ring.find(b"Bearer anything", b"else") is not None
    assert client.spec.name == "anonymous"


def test_concurrency_is_limited_by_key() -> None:
    limited, free = Client(spec(KEY, concurrent=2)), Client(spec(OTHER))
    assert [limited.enter() for _ in range(3)] == [True, True, False]
    limited.in_flight -= 1
    assert [limited.enter() for _ in range(2)] == [True, False]
    assert all(free.enter() for _ in range(1000))


def test_a_reload_keeps_the_counts_and_takes_the_new_settings() -> None:
    old = Keyring((spec(KEY, "one"), spec(OTHER, "two")))
    one, two = old.find(None, KEY), old.find(None, OTHER)
    assert one is not None
    assert two is not None
    one.in_flight, two.in_flight = 3, 4
    new = Keyring((spec(KEY, "renamed", concurrent=3),))
    old.adopted_by(new)
    assert new.find(None, KEY) is one, "requests in flight release the same count"
    assert (one.spec.name, one.in_flight, one.enter()) == ("renamed", 3, False)
    assert new.find(None, OTHER) is None
    fresh = Keyring((spec(OTHER, "two"),))
    new.adopted_by(fresh)
    back = fresh.find(None, OTHER)
    assert back is not two
    assert back is not None
    assert back.in_flight == 0


def test_an_open_gateway_keeps_its_count_and_does_not_leak_it_into_keys() -> None:
    old, new, keyed = Keyring(()), Keyring(()), Keyring((spec(KEY),))
    everybody = old.find(None, None)
    assert everybody is not None
    everybody.in_flight = 5
    old.adopted_by(new)
    assert new.find(None, None) is everybody
    new.adopted_by(keyed)
    assert keyed.find(None, None) is None
    keyed.adopted_by(Keyring(()))


def test_no_repr_shows_a_key_or_its_digest() -> None:
    client = RING.find(None, KEY)
    for shown in (repr(client), repr(spec(KEY)), repr(RING)):
        assert KEY.decode() not in shown
        assert hashlib.sha256(KEY).hexdigest() not in shown
