"""An S3 server on loopback: moto's, which honours conditional puts, and which fails when a test says so."""

from __future__ import annotations

import logging
import os
import socket
import struct
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterable
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


class S3Server:
    """A server with one bucket, found by clients through the usual environment variables.

    Its buckets live in this process, and end with any `mock_aws` there.
    """

    def __enter__(self) -> Self:
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self.bucket = f"journals-{uuid.uuid4().hex}"
        self.requests: Counter[str] = Counter()
        """Requests that were answered, by verb; those that list are `LIST`, not `GET`."""
        self._app = DomainDispatcherApplication(create_backend_app)
        self._unavailable = self._unanswered = 0
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
        self._unavailable = requests

    def lose_answers(self, requests: int) -> None:
        """Do what so many requests ask, and end their connections without an answer."""
        self._unanswered = requests

    def _answer(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        with self._lock:
            unavailable, self._unavailable = self._unavailable > 0, max(0, self._unavailable - 1)
            unanswered, self._unanswered = self._unanswered > 0, max(0, self._unanswered - 1)
            listing = "list-type" in environ["QUERY_STRING"]
            self.requests["LIST" if listing else environ["REQUEST_METHOD"]] += 1
        if unavailable:
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            start_response("503 Slow Down", [("Content-Length", "0")])
            return [b""]
        with self._turns:
            answer: Iterable[bytes] = [b"".join(self._app(environ, start_response))]
        if unanswered:
            connection: socket.socket = environ["werkzeug.socket"]
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            os.close(connection.detach())
            raise ConnectionResetError
        return answer
