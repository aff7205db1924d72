"""`ersac report --serve`: a report on this machine that follows its runs.

The server listens on 127.0.0.1 only and has two fixed paths, so no request can name a file. It
answers GET and HEAD, and only where the Host header names this machine: a page of another site,
whose name was pointed here, is refused.
"""

import hashlib
import sys
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from ersac.report import page
from ersac.report.collect import ReportRun
from ersac.runs import disk

ADDRESS = "127.0.0.1"
POLL_SECONDS = 3.0  # between two requests of a page for news
SCAN_SECONDS = 2.0  # for which the runs are not read again
REQUEST_SECONDS = 10.0  # a client that is slower is cut off
HEADERS = {
    "Cache-Control": "no-cache",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Response(NamedTuple):
    """What a path returns."""

    body: bytes
    media_type: str
    tag: str  # changes with the body


class ReportSource:
    """The pages of a report, made again when its runs have changed."""

    def __init__(self, collect: Callable[[], list[ReportRun]]) -> None:
        self.collect = collect
        self.lock = threading.Lock()
        self.runs: list[ReportRun] = []
        self.responses: dict[str, Response] = {}
        self.next = 0.0

    def get(self, path: str) -> Response | None:
        """Return what a path has now; None where there is no such path."""
        make = {"/": self._page, "/content.json": self._content}.get(path)
        if make is None:
            return None
        with self.lock:
            self._scan()
            if path not in self.responses:
                self.responses[path] = make()
            return self.responses[path]

    def _scan(self) -> None:
        """Read the runs again, unless that was done a moment ago."""
        if time.monotonic() < self.next:
            return
        runs = self.collect()
        is_same = len(runs) == len(self.runs) and all(
            new is old or (new.record is None and new == old)
            for new, old in zip(runs, self.runs, strict=True)
        )
        if not is_same:
            self.runs, self.responses = runs, {}
        self.next = time.monotonic() + SCAN_SECONDS

    def _page(self) -> Response:
        title = page.page_title(self.runs)
        body = page.render_report(self.runs, title, POLL_SECONDS).encode()
        return _response(body, "text/html; charset=utf-8")

    def _content(self) -> Response:
        return _response(page.encode_content(self.runs), "application/json")


def _response(body: bytes, media_type: str) -> Response:
    return Response(body, media_type, f'"{hashlib.sha256(body).hexdigest()[:32]}"')


def allowed_hosts(port: int) -> set[str]:
    """Return the Host headers of requests that are answered."""
    return {f"{name}:{port}" for name in ("localhost", ADDRESS, "[::1]")}


class ReportHandler(BaseHTTPRequestHandler):
    """Answers one request."""

    source: ReportSource  # set by `make_server`
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "ersac", ""
    timeout = REQUEST_SECONDS

    def do_GET(self) -> None:
        """Send a page."""
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        """Send the headers of a page."""
        self._answer(with_body=False)

    def _answer(self, with_body: bool) -> None:
        assert isinstance(self.server, ThreadingHTTPServer)
        hosts = self.headers.get_all("Host") or []
        if len(hosts) != 1 or hosts[0].lower() not in allowed_hosts(self.server.server_port):
            self.send_error(HTTPStatus.MISDIRECTED_REQUEST, "this host is not served")
            return
        try:
            found = self.source.get(self.path)
        except Exception as error:  # a run may be removed while it is read
            self.send_error(HTTPStatus.INTERNAL_SERVER_ERROR, type(error).__name__)
            return
        if found is None:
            self.send_error(HTTPStatus.NOT_FOUND, "no such page")
        elif self.headers.get("If-None-Match") == found.tag:
            self._send(HTTPStatus.NOT_MODIFIED, found, b"")
        else:
            self._send(HTTPStatus.OK, found, found.body if with_body else b"")

    def _send(self, status: HTTPStatus, found: Response, body: bytes) -> None:
        self.send_response(status)
        for name, value in {**HEADERS, "ETag": found.tag, "Content-Type": found.media_type}.items():
            self.send_header(name, value)
        if status == HTTPStatus.OK:
            self.send_header("Content-Length", str(len(found.body)))
        self.end_headers()
        self.wfile.write(body)

    def refuse(self) -> None:
        """Refuse a method that could change something."""
        self.close_connection = True
        self.send_error(HTTPStatus.METHOD_NOT_ALLOWED, "GET and HEAD only")

    do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_TRACE = do_CONNECT = refuse

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Send an error as one line of text, and nothing that the request said."""
        self.close_connection = True
        body = f"{int(code)} {HTTPStatus(code).phrase}\n".encode()
        self.send_response(code)
        for name, value in {**HEADERS, "Content-Type": "text/plain", "Connection": "close"}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""


class ReportServer(ThreadingHTTPServer):
    """A server whose clients may go away at any time."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing where a client closed its connection early."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def make_server(collect: Callable[[], list[ReportRun]], port: int) -> ReportServer:
    """Return a server of the report on these runs; port 0 takes any that is free."""
    handler = type("Handler", (ReportHandler,), {"source": ReportSource(collect)})
    try:
        return ReportServer((ADDRESS, port), handler)
    except OSError as error:
        reason = f"{error.strerror}; --port 0 takes one that is free"
        raise disk.DiskError(f"cannot serve on {ADDRESS}:{port}: {reason}", error.errno) from error
