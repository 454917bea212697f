"""What a limit of open files leaves for clients: never all of it."""

import pytest

from gateway.descriptors import clients_of


@pytest.mark.parametrize(
    ("descriptors", "clients"), [(64, 16), (256, 64), (1024, 448), (65536, 32704), (1 << 31, (1 << 30) - 64)]
)
def test_a_backends_connection_is_left_for_each_client(descriptors: int, clients: int) -> None:
    assert clients_of(descriptors) == clients
    assert 2 * clients < descriptors
