"""The fault proxy: a TCP relay between gateway and backend that breaks connections on purpose, and tells. Shell.

One fault is armed at a time. It strikes connections that carry a POST (so probes tell nothing of it), at its phase of
each response; faults of phase `connect` strike at accept, before any byte. Everything done is a Touch in the ledger.
"""

import asyncio
import errno
import socket
from random import Random

from tests.faults.backend import reset
from tests.faults.ledger import Ledgers, Touch, Window
from tests.faults.link import Link
from tests.faults.phases import Fault


class FaultProxy:
    """A listener in front of one backend. Its port stays its own, also while it refuses."""

    def __init__(self, name: str, backend_port: int, ledgers: Ledgers, rng: Random) -> None:
        self.name = name
        self.backend_port = backend_port
        self.ledgers = ledgers
        self.rng = rng
        self.fault: Fault | None = None
        self.port = 0
        self.links: set[Link] = set()
        self._socket: socket.socket | None = None
        self._listening = False
        self._clog: list[socket.socket] = []
        self._window: Window | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"<FaultProxy {self.name} :{self.port} {len(self.links)} links, {self.fault}>"

    # -- life

    def start(self) -> None:
        """Listen on a free port."""
        self._loop = asyncio.get_running_loop()
        with socket.create_server(("127.0.0.1", 0)) as chooser:
            self.port = chooser.getsockname()[1]
        # bound by number: the kernel keeps the port for us while we do not listen
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", self.port))
        self._socket.setblocking(False)
        self._listen()

    async def stop(self) -> None:
        """Close everything."""
        self.disarm()
        if self._socket is not None:
            self._loop.remove_reader(self._socket)
            self._socket.close()
        for link in list(self.links):
            link.close()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=1.0)

    def _listen(self) -> None:
        assert self._socket is not None
        self._socket.listen(1024)
        self._listening = True
        self._loop.add_reader(self._socket, self._accept)

    def _accept(self) -> None:
        assert self._socket is not None
        while True:
            try:
                peer, _ = self._socket.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (errno.EINVAL, errno.ECONNABORTED):
                    return
                raise
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._spawn(Link(self, peer))

    def _spawn(self, link: Link) -> None:
        self.links.add(link)
        task = self._loop.create_task(link.run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- faults

    def arm(self, fault: Fault) -> None:
        """Break things from now on. Faults of phase `connect` also reset what idles, so that connects happen."""
        self.disarm()
        self.fault = fault
        self._window = Window(self.name, fault.kind, fault.phase, self._loop.time())
        self.ledgers.windows.append(self._window)
        if fault.phase != "connect":
            return
        self.close_idle()
        if fault.kind == "refuse":
            self._refuse()
        elif fault.kind == "black_hole":
            self._fill_backlog()

    def disarm(self) -> None:
        """Be a good relay again: connections that were left hanging are closed."""
        fault, self.fault = self.fault, None
        if fault is None:
            return
        assert self._window is not None
        self._window.end_s = self._loop.time()
        for clog in self._clog:
            clog.close()
        self._clog.clear()
        self._listen()
        for link in list(self.links):
            if link.silent:
                link.close()

    def die(self) -> None:
        """As if the process was killed: every connection is reset, and nobody listens."""
        self._refuse()
        for link in list(self.links):
            link.touch("reset")
            reset(link.front_transport)

    def close_idle(self) -> None:
        """Reset the connections that carry no request: by a reset, so that a gateway learns no idle limit from it."""
        for link in list(self.links):
            if link.idle:
                reset(link.front_transport)

    def _refuse(self) -> None:
        assert self._socket is not None
        if self._listening:
            self._listening = False
            self._loop.remove_reader(self._socket)
            self._socket.shutdown(socket.SHUT_RDWR)

    def _fill_backlog(self) -> None:
        """Nobody accepts and the backlog is full: the kernel drops each further SYN."""
        assert self._socket is not None
        self._loop.remove_reader(self._socket)
        self._socket.listen(0)
        for _ in range(3):
            clog = socket.socket()
            clog.setblocking(False)
            clog.connect_ex(("127.0.0.1", self.port))
            self._clog.append(clog)

    def note(self, request_id: str, kind: str, answered_bytes: int) -> None:
        """Write down what was done."""
        fault = self.fault
        phase = fault.phase if fault is not None else ""
        self.ledgers.touch(Touch(request_id, self.name, kind, phase, self._loop.time(), answered_bytes))
