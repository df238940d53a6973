"""An S3 server on loopback: moto's, which honours conditional puts, and which fails when a test says so."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import struct
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, Self

import boto3
from moto.moto_server.werkzeug_app import (
    DomainDispatcherApplication,
    MotoRequestHandler,
    create_backend_app,
)
from werkzeug.serving import BaseWSGIServer, make_server

_ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": "us-east-1",
}
_RESET = struct.pack("ii", 1, 0)


class _Held:
    """A put that waits, after it was `written` or before."""

    def __init__(self, written: bool) -> None:
        self.written = written
        self.released = threading.Event()
        self.done = threading.Event()


class S3Server:
    """A server with one bucket, found by clients through the usual environment variables.

    Its buckets live in this process, and end with any `mock_aws` there.
    """

    def __enter__(self) -> Self:
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self.bucket = f"journals-{uuid.uuid4().hex}"
        self.requests: Counter[str] = Counter()
        """Requests that were answered, by verb; those that list are `LIST`, not `GET`."""
        self.refuses_segments = False
        """Whether it answers each put of a segment with 503."""
        self._app = DomainDispatcherApplication(create_backend_app)
        self._refused = self._unanswered = self._late = 0
        self._status = ""
        self._seconds = 0.0
        self._held: _Held | None = None
        self._port = 0
        self._lock = threading.Lock()
        self._turns = threading.Lock()  # moto checks the condition of a put, and then writes
        self.start()
        self._before = dict(os.environ)
        os.environ.update(_ENVIRONMENT, AWS_ENDPOINT_URL=self.url)
        boto3.client("s3").create_bucket(Bucket=self.bucket)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        os.environ.clear()
        os.environ.update(self._before)

    @property
    def url(self) -> str:
        """The endpoint."""
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Listen, on the same port as before."""
        self._server: BaseWSGIServer = make_server(
            "127.0.0.1", self._port, self._answer, threaded=True, request_handler=MotoRequestHandler
        )
        self._port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Refuse connections; the buckets stay."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def be_unavailable(self, requests: int) -> None:
        """Answer so many requests with 503, and do nothing for them."""
        self.refuse(requests, "503 Slow Down")

    def refuse(self, requests: int, status: str) -> None:
        """Answer so many requests with a status such as `409 Conflict`, and do nothing for them."""
        self._refused, self._status = requests, status

    def be_late(self, requests: int, seconds: float) -> None:
        """Do what so many requests ask, and answer them after these seconds."""
        self._late, self._seconds = requests, seconds

    def lose_answers(self, requests: int) -> None:
        """Do what so many requests ask, and end their connections without an answer."""
        self._unanswered = requests

    @contextlib.contextmanager
    def holding_a_segment(self, *, written: bool) -> Iterator[None]:
        """Let the next put of a segment wait until the end: for its answer if `written`, else to be written."""
        self._held = held = _Held(written)
        yield
        held.released.set()
        assert held.done.wait(30)

    def _answer(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        with self._lock:
            refused, self._refused = self._refused > 0, max(0, self._refused - 1)
            late, self._late = self._late > 0, max(0, self._late - 1)
            unanswered, self._unanswered = self._unanswered > 0, max(0, self._unanswered - 1)
            listing = "list-type" in environ["QUERY_STRING"]
            self.requests["LIST" if listing else environ["REQUEST_METHOD"]] += 1
            segment = environ["REQUEST_METHOD"] == "PUT" and environ["PATH_INFO"].endswith(".arrow")
            held = self._held if segment else None
            self._held = None if segment else self._held
            if segment and self.refuses_segments:
                refused, self._status = True, "503 Slow Down"
        if refused:
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            start_response(self._status, [("Content-Length", "0")])
            return [b""]
        if held and not held.written:
            held.released.wait()
        with self._turns:
            answer: Iterable[bytes] = [b"".join(self._app(environ, start_response))]
        if held:
            held.released.wait()
            held.done.set()
        if late:
            time.sleep(self._seconds)
        if unanswered:
            connection: socket.socket = environ["werkzeug.socket"]
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            os.close(connection.detach())
            raise ConnectionResetError
        return answer
