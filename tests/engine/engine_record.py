"""A recording HTTP proxy between the gateway and one engine: what the engine really said in this very exchange.

Two runs of one prompt need not be cut into the same chunks (a busy engine joins tokens), so the relay's bytes are held
against the engine's own of the same run, ids and times included.
"""

import http.client
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

_HOP = {"connection", "transfer-encoding", "content-length", "host", "keep-alive"}


class Recorder:
    """Serves at `url`; `asked` and `said` hold the bodies of the last POST of each path. `whole`: answers are passed on in
    one piece with a Content-Length, not piece by piece."""

    def __init__(self, engine_url: str, whole: bool = False) -> None:
        self.asked: dict[str, bytes] = {}
        self.said: dict[str, bytes] = {}
        recorder = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._pass_on(b"")

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                recorder.asked[self.path], recorder.said[self.path] = body, b""
                self._pass_on(body)

            def _pass_on(self, body: bytes) -> None:
                engine = http.client.HTTPConnection(urlsplit(engine_url).netloc)
                headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP}
                engine.request(self.command, self.path, body or None, headers)
                response = engine.getresponse()
                self.send_response_only(response.status)
                for name, value in response.getheaders():
                    if name.lower() not in _HOP:
                        self.send_header(name, value)
                if whole:
                    said = recorder.said[self.path] = response.read()
                    self.send_header("content-length", str(len(said)))
                    self.end_headers()
                    self.wfile.write(said)
                    engine.close()
                    return
                self.send_header("transfer-encoding", "chunked")
                self.end_headers()
                while piece := response.read1(65536):
                    if self.command == "POST":
                        recorder.said[self.path] += piece
                    self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                self.wfile.write(b"0\r\n\r\n")
                engine.close()

            def log_message(self, *_: object) -> None:
                """Nothing on the terminal."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
