"""The end of a listener that shares its port: whoever the kernel has let in already is served, not reset. Shell.

A connection is this listener's own from its handshake on. Closing resets those that nobody has accepted yet, however many
other processes listen on the port (but for Linux' net.ipv4.tcp_migrate_req = 1, which hands them over).
"""

import os
import socket
from collections.abc import Iterable


def queued(fds: Iterable[int]) -> list[socket.socket]:
    """The connections that wait to be accepted on these listening sockets now."""
    found = []
    for fd in fds:
        with socket.socket(fileno=os.dup(fd)) as listener:
            listener.setblocking(False)
            try:
                while True:
                    found.append(listener.accept()[0])
            except OSError:  # no more of them, or no descriptor left for one
                continue
    return found
