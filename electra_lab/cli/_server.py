"""The server of a page with a form, which only this machine can reach, and no other page can use.

A page of another site can send requests to any address. So the server refuses names that are not this machine's, by
which a site could pass for it (DNS rebinding), and forms of other pages.
"""

import sys
import traceback
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from electra_lab.version import __version__
from registry.errors import ConfigError

HOST = "127.0.0.1"
NAMES = (HOST, "localhost")
MOST_BYTES = 1 << 18  # of a form
MOST_DIGITS = 20  # of its length; Python refuses to convert thousands
FORM = "application/x-www-form-urlencoded"
Answer = Callable[[Mapping[str, str]], str]  # from the fields of a form, which is empty at first, to a page
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; "
    "frame-ancestors 'none'; base-uri 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "same-origin",  # with no-referrer, browsers send their own forms without an origin
    "X-Content-Type-Options": "nosniff",
}


class Server(ThreadingHTTPServer):
    """Answers one form at a time; browsers also open connections that they do not use. Raises ConfigError."""

    daemon_threads = True

    def __init__(self, port: int, answer: Answer) -> None:
        self.answer, self.one_at_a_time = answer, Lock()
        try:
            super().__init__((HOST, port), _Request)
        except OSError as error:
            reason = f"cannot be used ({error.strerror}). Choose another one, or 0 for any that is free"
            raise ConfigError(f"--port {port}: {reason}.") from None
        self.address = f"http://{HOST}:{self.server_port}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):  # the browser has left
            super().handle_error(request, client_address)


class _Request(BaseHTTPRequestHandler):
    server: Server
    server_version, sys_version = f"electra-lab/{__version__}", ""
    timeout = 30  # seconds without a byte

    def do_GET(self) -> None:
        if not self._refused():
            self._page({})

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if self._refused():
            return
        if self.headers.get("Origin") not in (None, f"http://{self.headers['Host']}"):
            self._send(403, "The form is of another page.")
        elif self.headers.get_content_type() != FORM:
            self._send(415, f"The form must be {FORM}.")
        elif not (length.isascii() and length.isdecimal()):
            self._send(411, "The request has no length.")
        elif len(length) > MOST_DIGITS or int(length) > MOST_BYTES:
            self._send(413, f"The form is too long: at most {MOST_BYTES:,} bytes are read.")
        else:
            try:
                text = self.rfile.read(int(length)).decode("ascii")
                fields = dict(parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=20))
            except ValueError:
                self._send(400, "The form cannot be read.")
                return
            self._page(fields)

    def _refused(self) -> bool:
        """Refuse a request for another host or page."""
        try:
            name = urlsplit(f"//{self.headers.get('Host', '')}").hostname
        except ValueError:
            name = None
        if name not in NAMES:
            self._send(403, f"This server answers at {self.server.address} alone.")
        elif self.path != "/":
            self._send(404, f"There is only one page: {self.server.address}")
        return name not in NAMES or self.path != "/"

    def _page(self, fields: Mapping[str, str]) -> None:
        try:
            with self.server.one_at_a_time:
                page = self.server.answer(fields)
        except Exception:
            traceback.print_exc()
            self._send(500, "An internal error; the terminal shows it.")
            return
        self._send(200, page, "text/html")

    def _send(self, status: int, text: str, kind: str = "text/plain") -> None:
        body = text.encode("utf-8", "replace")
        self.send_response(status)
        headers = {**HEADERS, "Content-Type": f"{kind}; charset=utf-8", "Content-Length": str(len(body))}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Print nothing about requests."""
