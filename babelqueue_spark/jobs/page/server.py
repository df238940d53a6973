"""The web server of the page: on the loopback interface, for who has the token.

    GET  /              the page; holds nothing of any queue
    GET  /api/state     server-sent events: the parts of the state, and each that is new
    POST /api/messages  {"queue": …} → its first messages, without bodies
    POST /api/body      {"queue": …, "name": …} → a message as it is
    POST /api/redrive   {"queue": …, "chosen": [name, …]} → where they went
    POST /api/drop      {"queue": …, "chosen": [name, …]} → how many are gone

All under `/api/` need the token, as `Authorization: Bearer …`. Names of queues and messages travel in bodies
of requests, so that they are in no log of URLs.
"""

import base64
import hashlib
import sys
from collections.abc import Callable, Mapping
from email.message import Message
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from babelqueue_spark.errors import BabelQueueError, OptionError
from babelqueue_spark.jobs.page.actions import Actions
from babelqueue_spark.jobs.page.guard import Guard, Refused, Strangers
from babelqueue_spark.jobs.page.hub import Hub

_FOLDER = Path(__file__).parent / "browser"
_SCRIPTS = ("dom.js", "queues.js", "queries.js", "messages.js", "main.js")
_MOST_BYTES = 1 << 20
_HEARTBEAT = 5.0
_MOST_STRANGERS = 32
_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class _Queue(msgspec.Struct, forbid_unknown_fields=True):
    queue: str


class _One(_Queue):
    name: str


class _Chosen(_Queue):
    chosen: list[str]


_Request = TypeVar("_Request", bound=msgspec.Struct)
Act = Callable[[bytes], dict[str, Any]]


class LiveServer(ThreadingHTTPServer):
    """Serves the page on a port of 127.0.0.1; 0 takes a free one, and one that is taken is an `OSError`."""

    def __init__(self, port: int, hub: Hub, actions: Actions) -> None:
        self.guard, self.hub, self.page = Guard(), hub, load_page()
        self.strangers = Strangers(_MOST_STRANGERS)
        self.acts: dict[str, Act] = {
            "/api/messages": lambda body: actions.messages(_decode(body, _Queue).queue),
            "/api/body": lambda body: actions.body(*msgspec.structs.astuple(_decode(body, _One))),
            "/api/redrive": lambda body: actions.redrive(*msgspec.structs.astuple(_decode(body, _Chosen))),
            "/api/drop": lambda body: actions.drop(*msgspec.structs.astuple(_decode(body, _Chosen))),
        }
        super().__init__(("127.0.0.1", port), _Handler)

    @property
    def url(self) -> str:
        """Where the page is, with the token behind the `#`, which no browser sends anywhere."""
        return f"http://127.0.0.1:{self.server_port}/#token={self.guard.token}"

    def process_request(self, request: Any, client_address: Any) -> None:
        self.strangers.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self.strangers.remove(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a browser that went away, or stalled, before it had its answer."""
        if not isinstance(sys.exception(), (ConnectionError, TimeoutError)):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: LiveServer
    timeout = 30.0

    def version_string(self) -> str:
        return "babelqueue-spark"

    def log_message(self, *_: Any) -> None:
        """Log no requests."""

    def do_GET(self) -> None:
        if self.path == "/":
            self._guarded(self.server.guard.check_page, lambda: self._send(HTTPStatus.OK, *self.server.page))
        elif self.path == "/api/state":
            self._guarded(self._check, self._send_events)
        else:
            self._send_json(HTTPStatus.NOT_FOUND, {"error": "there is no such page"})

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > _MOST_BYTES:
            self._send_json(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, {"error": "choose fewer messages at once"})
            return
        # Read before it is refused: who is still sending would not hear why.
        body = self.rfile.read(int(length))
        self._guarded(self._check, lambda: self._act(body))

    def _check(self, headers: Message) -> None:
        self.server.guard.check(headers)
        self.server.strangers.remove(self.connection)

    def _guarded(self, check: Callable[[Message], None], answer: Callable[[], None]) -> None:
        try:
            check(self.headers)
        except Refused as refusal:
            self._send_json(HTTPStatus.FORBIDDEN, {"error": str(refusal)})
        else:
            answer()

    def _act(self, body: bytes) -> None:
        act = self.server.acts.get(self.path)
        if act is None:
            self._send_json(HTTPStatus.NOT_FOUND, {"error": "there is no such page"})
        else:
            self._send_json(*_result(act, body))

    def _send_json(self, status: HTTPStatus, value: Any) -> None:
        self._send(status, msgspec.json.encode(value), {"Content-Type": "application/json"})

    def _send(self, status: HTTPStatus, content: bytes, headers: Mapping[str, str]) -> None:
        self._send_head(status, {**headers, "Content-Length": str(len(content))})
        self.wfile.write(content)

    def _send_head(self, status: HTTPStatus, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in {**_HEADERS, **headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def _send_events(self) -> None:
        """All parts of the state, then each that is new; a comment now and then finds out who has gone."""
        self._send_head(HTTPStatus.OK, {"Content-Type": "text/event-stream"})
        hub, sent = self.server.hub, 0
        while not hub.closed:
            sent, parts = hub.wait(sent, _HEARTBEAT)
            event = b"data: " + msgspec.json.encode(parts) if parts else b": still here"
            self.wfile.write(event + b"\n\n")


def _result(act: Act, body: bytes) -> tuple[HTTPStatus, dict[str, Any]]:
    try:
        return HTTPStatus.OK, act(body)
    except (msgspec.DecodeError, OptionError) as error:
        return HTTPStatus.BAD_REQUEST, {"error": str(error)}
    except (BabelQueueError, OSError) as error:
        return HTTPStatus.BAD_GATEWAY, {"error": str(error)}


def _decode(body: bytes, kind: type[_Request]) -> _Request:
    return msgspec.json.decode(body, type=kind)


def load_page() -> tuple[bytes, dict[str, str]]:
    """Return the page with its style and script, and headers that let no other run, and nothing be loaded."""
    style = _text("page.css")
    script = "\n".join(map(_text, _SCRIPTS))
    content = _text("page.html").replace("/* style */", style).replace("/* script */", script)
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return content.encode(), {"Content-Type": "text/html; charset=utf-8", "Content-Security-Policy": policy}


def _text(name: str) -> str:
    return (_FOLDER / name).read_text("utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
