"""The HTTP server: the standard library's, with the headers that WebAssembly threads need."""

from __future__ import annotations

import gzip
import http.server
import ipaddress
import threading
from types import TracebackType
from typing import Any
from urllib.parse import unquote, urlsplit

from .site import File, Site, SiteError

POLICY = (
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; worker-src 'self' blob:; "
    "connect-src 'self' blob:; style-src 'self'; img-src 'self' data: blob:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": POLICY,
    "Permissions-Policy": "camera=(self), microphone=(), geolocation=()",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
"""The first two isolate the page, which browsers ask for before they allow shared memory; the
policy lets the page talk to this server and to nobody else, and ask for the camera only."""


class Server:
    """Serves a site until it is closed; use it in a ``with`` statement or call `run`.

    Args:
        site: what is served.
        host: address to listen on; the default is this machine only.
        port: 0 takes a free one.

    Example:
        >>> with Server(site) as server:  # doctest: +SKIP
        ...     print(server.url)
    """

    def __init__(self, site: Site, host: str = "127.0.0.1", port: int = 0) -> None:
        try:
            self._http = _HTTPServer((host, port), site)
        except OSError as error:
            raise SiteError(
                f"Cannot listen on {host}:{port}: {error.strerror}. Choose another --port (0 takes "
                "a free one)."
            ) from error
        self.host, self.port = str(self._http.server_address[0]), int(self._http.server_address[1])
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://{self.host}:{self.port}/"

    def run(self) -> None:
        """Serve in this thread, until interrupted."""
        try:
            self._http.serve_forever(poll_interval=0.2)
        finally:
            self._http.server_close()

    def __enter__(self) -> Server:
        self._thread = threading.Thread(
            target=self._http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        )
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._http.shutdown()
        if self._thread is not None:
            self._thread.join()
        self._http.server_close()


class _HTTPServer(http.server.ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], site: Site) -> None:
        self.site = site
        super().__init__(address, _Handler)

    def accepts(self, host: str) -> bool:
        """Whether a Host header names this server.

        A page elsewhere may let its own name point to this machine (DNS rebinding); its requests
        then carry that name. Names are checked when only this machine is listened to.
        """
        if not ipaddress.ip_address(str(self.server_address[0])).is_loopback:
            return True
        name, port = host.lower(), str(self.server_address[1])
        return name in {f"{n}:{port}" for n in ("127.0.0.1", "localhost", "[::1]")}


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "onnxtrain"
    sys_version = ""
    timeout = 30
    server: _HTTPServer

    def do_GET(self) -> None:
        self._respond(body=True)

    def do_HEAD(self) -> None:
        self._respond(body=False)

    def _respond(self, *, body: bool) -> None:
        if not self.server.accepts(self.headers.get("Host", "")):
            self._send(403, File(b"This server answers to its own address only.\n", "text/plain"))
            return
        file = self.server.site.find(unquote(urlsplit(self.path).path, errors="replace"))
        if file is None:
            self._send(404, File(b"Not found.\n", "text/plain"), body=body)
        else:
            self._send(200, file, body=body)

    def _send(self, status: int, file: File, *, body: bool = True) -> None:
        content, gzipped = file.content, file.gzipped
        if gzipped and "gzip" not in self.headers.get("Accept-Encoding", ""):
            content, gzipped = gzip.decompress(content), False
        self.send_response(status)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", file.type)
        self.send_header("Content-Length", str(len(content)))
        if gzipped:
            self.send_header("Content-Encoding", "gzip")
        self.end_headers()
        if body:
            self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Say nothing: who trains what is nobody's business."""
