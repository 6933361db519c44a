"""`packtrain watch`: the report of running experiments, served to a browser on this machine.

The server listens on the loopback interface only. The page's address contains a random token; every other address, and
every request that names another host, gets 404. It answers GET and HEAD only; nothing can be written.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from packtrain.errors import ConfigError, Error
from packtrain.metrics.reading import METRICS_FILE, seed_folders
from packtrain.studies.report import report_page
from packtrain.studies.report_data import run_folders

HOST = "127.0.0.1"
_REQUEST_SECS = 10.0  # time limit for a request to arrive


class LivePage:
    """The report of some runs, rebuilt when one of their files has changed."""

    def __init__(self, runs: Sequence[Path], compare: str | None, every_secs: float):
        self._runs, self._compare, self._every = runs, compare, every_secs
        self._lock = threading.Lock()
        self._state: object = None
        self._page, self._tag = b"", ""

    def get(self) -> tuple[bytes, str]:
        """Return the page and its entity tag."""
        with self._lock:  # several browser windows must not build it at the same time
            folders = [folder for run in self._runs for folder in run_folders(run)]
            state = [_state(file) for folder in folders for file in _files(folder)]
            if state != self._state:
                self._page = report_page(folders, self._compare, live_secs=self._every).encode()
                self._tag = f'"{hashlib.sha256(self._page).hexdigest()[:32]}"'
                self._state = state
            return self._page, self._tag


def _files(folder: Path) -> list[Path]:
    return [seed / name for seed in seed_folders(folder) for name in (METRICS_FILE, "eval.json")]


def _state(path: Path) -> tuple[str, int, int]:
    try:
        found = path.stat()
    except OSError:
        return str(path), 0, 0
    return str(path), found.st_mtime_ns, found.st_size


class Server(ThreadingHTTPServer):
    """Serves one live page on the loopback interface under a secret address."""

    daemon_threads = True
    allow_reuse_address = False

    def __init__(self, page: LivePage, port: int = 0):
        self.page, self.token = page, secrets.token_urlsafe(24)
        try:
            super().__init__((HOST, port), _Handler)
        except (OSError, OverflowError) as error:
            raise ConfigError(f"--port {port} cannot be used: {getattr(error, 'strerror', None) or error}") from error

    @property
    def url(self) -> str:
        """Return the address of the page."""
        return f"http://{HOST}:{self.server_port}/{self.token}/"


class _Handler(BaseHTTPRequestHandler):
    server: Server
    server_version, sys_version = "packtrain", ""
    timeout = _REQUEST_SECS

    def do_GET(self) -> None:
        """Answer with the page, or 404."""
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        """Answer with the page's headers, or 404."""
        self._answer(with_body=False)

    def _answer(self, with_body: bool) -> None:
        hosts = (f"{HOST}:{self.server.server_port}", f"localhost:{self.server.server_port}")
        expected = f"/{self.server.token}/".encode()
        known = hmac.compare_digest(self.path.encode("utf-8", "replace"), expected)
        # Another host: a page that was rebound to this address (DNS rebinding).
        if not known or self.headers.get("Host") not in hosts:
            return self._send(404, b"not found\n", "text/plain", with_body)
        try:
            page, tag = self.server.page.get()
        except Error as error:
            return self._send(503, f"{error}\n".encode(), "text/plain", with_body)
        if self.headers.get("If-None-Match") == tag:
            return self._send(304, b"", "text/html", False, tag)
        return self._send(200, page, "text/html", with_body, tag)

    def _send(self, status: int, body: bytes, kind: str, with_body: bool, tag: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("X-Frame-Options", "DENY")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        if tag:
            self.send_header("ETag", tag)
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, format: str, *_: object) -> None:
        """Print nothing: log lines would contain the secret address."""


def watch(runs: Sequence[Path], compare: str | None = None, port: int = 0, every_secs: float = 5.0) -> int:
    """Serve the live report until Ctrl-C; return the exit code.

    Args:
      runs: run folders, or folders that contain run folders; runs that appear in these later are shown too.
      compare: as in `write_report`.
      port: to listen on; 0: any free one.
      every_secs: interval in seconds at which the page checks for changes.
    """
    page = LivePage(runs, compare, every_secs)
    page.get()  # errors in reading are reported before the server starts
    with Server(page, port) as server:
        print(f"{server.url}\nopen this address in a browser on this machine; Ctrl-C ends the server", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print("\nended")
    return 0
