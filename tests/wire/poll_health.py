"""Polls /health of 127.0.0.1:PORT every 10 ms until its standard input ends, then prints how long each answer took, s.

A process of its own, so that what a test does meanwhile is not in the figures. Standard library only: it starts at once.
"""

import json
import select
import socket
import sys
import time

EVERY_S = 0.01
REQUEST = b"GET /health HTTP/1.1\r\nhost: gateway\r\n\r\n"


def main() -> None:
    """See the module's words."""
    times_s = []
    with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as sock:
        while not select.select([sys.stdin], [], [], EVERY_S)[0]:
            started_s = time.monotonic()
            sock.sendall(REQUEST)
            answer = sock.recv(65536)
            times_s.append(time.monotonic() - started_s)
            assert answer.startswith(b"HTTP/1.1 200 OK\r\n"), answer
    print(json.dumps(times_s))


if __name__ == "__main__":
    main()
