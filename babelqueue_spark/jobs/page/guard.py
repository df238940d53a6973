"""Who may ask: nobody but the page itself, opened by somebody who has the token."""

import hmac
import secrets
import socket
import threading
from contextlib import suppress
from email.message import Message
from urllib.parse import urlsplit

HOSTS = frozenset({"127.0.0.1", "localhost"})


class Refused(Exception):  # noqa: N818 (as an answer, not a failure)
    """A request is answered with 403, and this text."""


class Guard:
    """Checks requests by their headers.

    Attributes:
        token: random; it comes with the URL that the job prints, and goes back in a header.
    """

    def __init__(self) -> None:
        self.token = secrets.token_urlsafe(24)

    def check_page(self, headers: Message) -> None:
        """Refuse another name for this host: a site that has its name lead here would be of our origin."""
        if _hostname(headers.get("Host", "")) not in HOSTS:
            raise Refused(
                "the page is served to 127.0.0.1 and localhost only: open it under one of these names"
            )

    def check(self, headers: Message) -> None:
        """Refuse what does not come from the page, and who has no token.

        No other site can send the header without being asked first, and nobody answers such a question.
        """
        self.check_page(headers)
        origin = headers.get("Origin")
        if origin is not None and origin != f"http://{headers['Host']}":
            raise Refused("another site sent this request")
        if headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
            raise Refused("another site sent this request")
        kind, _, given = headers.get("Authorization", "").partition(" ")
        if kind != "Bearer" or not hmac.compare_digest(given.encode(), self.token.encode()):
            raise Refused(
                "the token is missing or wrong: it stands in the URL that babelqueue-spark serve printed"
            )


class Strangers:
    """Connections that have not shown the token yet: where they are too many, the oldest is cut."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: dict[socket.socket, None] = {}
        self._lock = threading.Lock()

    def add(self, connection: socket.socket) -> None:
        """Count a new one; the thread of one that is cut reads its end."""
        with self._lock:
            self._waiting[connection] = None
            if len(self._waiting) > self._most:
                oldest = next(iter(self._waiting))
                del self._waiting[oldest]
                with suppress(OSError):  # it ended by itself
                    oldest.shutdown(socket.SHUT_RDWR)

    def remove(self, connection: socket.socket) -> None:
        """Count one no more: it has shown the token, or has ended."""
        with self._lock:
            self._waiting.pop(connection, None)


def _hostname(host: str) -> str | None:
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None
