"""A gateway that leaks, for trials of what is to find leaks: `python tests/faults/leaky.py BYTES serve FILE`.

Each request that has its line in the access log costs that many bytes for good.
"""

import sys

from gateway import __main__
from gateway.accounts import Account
from gateway.logs import Logs


def leak(size_bytes: int) -> None:
    """From now on."""
    lost: list[bytearray] = []
    write = Logs.access

    def lose_and_write(self: Logs, account: Account) -> None:
        lost.append(bytearray(size_bytes))
        write(self, account)

    Logs.access = lose_and_write  # type: ignore[method-assign]


if __name__ == "__main__":
    leak(int(sys.argv.pop(1)))
    __main__.main()
