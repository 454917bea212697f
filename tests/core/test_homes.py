"""Stored responses are found where they were made, by their owner only, and there are never too many."""

import pytest

from gateway.homes import ResponseHomes

CREATED = b'event: response.created\ndata: {"type":"response.created","response":{"id":"%b","object":"response"}}\n\n'


@pytest.mark.parametrize(
    ("first_bytes", "response_id"),
    [
        (b'{"id":"resp_1","object":"response"}', "resp_1"),
        (b'{ "object":"response", "id" : "resp_a-B_9" }', "resp_a-B_9"),
        (CREATED % b"resp_2", "resp_2"),
        (b'{"id":"resp_first","previous":{"id":"resp_second"}}', "resp_first"),
        (b'{"id":"chatcmpl-1"}', None),
        (b'{"id":"resp_"}', None),
        (b'{"id":"resp_' + b"a" * 201 + b'"}', None),
        (b'{"id":"resp_a/../b"}', None),
        (b'{"text":"\\"id\\":\\"resp_3\\""}', None),
        (b" " * 65536 + b'{"id":"resp_4"}', None),
        (b"", None),
    ],
)
def test_the_id_is_taken_from_the_first_bytes(first_bytes: bytes, response_id: str | None) -> None:
    homes = ResponseHomes(10)
    homes.remember(first_bytes, "a", "")
    assert len(homes) == (response_id is not None)
    if response_id is not None:
        assert homes.find(response_id, "") == "a"


def test_only_the_owner_finds_it() -> None:
    homes = ResponseHomes(10)
    homes.remember(CREATED % b"resp_1", "a", "owner")
    assert homes.find("resp_1", "owner") == "a"
    assert homes.find("resp_1", "other") is None
    assert homes.find("resp_1", "") is None
    assert homes.find("resp_2", "owner") is None


def test_the_oldest_are_forgotten_first() -> None:
    homes = ResponseHomes(3)
    for number in range(5):
        homes.remember(CREATED % b"resp_%d" % number, f"b{number}", "")
    assert [homes.find(f"resp_{number}", "") for number in range(5)] == [None, None, "b2", "b3", "b4"]
    assert len(homes) == 3
    none = ResponseHomes(0)
    none.remember(CREATED % b"resp_1", "a", "")
    assert (len(none), none.find("resp_1", "")) == (0, None)
