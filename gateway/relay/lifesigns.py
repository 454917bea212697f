"""Signs of life that the kernel asks silent peers for: a machine without power says no goodbye, and whoever waits for its
answer would wait to the last limit. They also keep a long silence from being forgotten by a NAT between. Shell.
"""

import socket
from typing import Final

OF_BACKENDS_S: Final = 15
OF_CLIENTS_S: Final = 60
EVERY_S: Final = 5
MISSED: Final = 3


def ask_for_signs(sock: socket.socket | None, silent_s: int) -> None:
    """After so much silence, and every EVERY_S; who misses MISSED of them is gone. A listener's connections inherit it."""
    if sock is None:
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in ((socket.TCP_KEEPIDLE, silent_s), (socket.TCP_KEEPINTVL, EVERY_S), (socket.TCP_KEEPCNT, MISSED)):
        sock.setsockopt(socket.IPPROTO_TCP, option, value)
