"""The errors of the connector. Each message is one line that says what to do, and holds no secret.

    BabelQueueError
    ├── OptionError (also a ValueError)
    ├── MissingPackageError (also an ImportError)
    ├── BrokerError
    │   ├── BrokerAuthenticationError
    │   ├── BrokerUnreachableError
    │   ├── BrokerFullError
    │   ├── QueueNotFoundError
    │   ├── QueueForbiddenError
    │   ├── MessageTooLargeError
    │   └── QueuesFailedError
    ├── InvalidPayloadError
    ├── CatalogError
    ├── JobClaimedError
    ├── RequestFailedError
    ├── RequestTimeoutError (also a TimeoutError)
    ├── EventStoreError
    │   └── EventConflictError
    └── JournalError
        ├── JournalMissingError
        ├── JournalTakenOverError
        └── DataLossError
            └── LogEndedError

Each class has a `condition`: a stable name that a program can compare. It begins the message, as in Spark's
own errors, and orders the troubleshooting page.
"""

from __future__ import annotations

import re
from typing import ClassVar
from urllib.parse import unquote, urlsplit

_SHORTEST = 4
_HARMLESS = re.compile(r"[\d.,\s]{0,7}(ms|s|m|min|h|d|[kmgt]i?b?)?|true|false|none|null", re.IGNORECASE)

_hidden: dict[str, str] = {}
"""Value that came by reference (`env:NAME`, `file:/path`) → the reference, which errors show instead."""


class BabelQueueError(Exception):
    """Base of every error the connector raises on purpose."""

    condition: ClassVar[str] = "BABELQUEUE_ERROR"

    def __init__(self, message: str = "") -> None:
        super().__init__(without_hidden(message))

    @property
    def text(self) -> str:
        """The message without its condition."""
        return super().__str__()

    def __str__(self) -> str:
        return f"[{self.condition}] {self.text}"


class OptionError(BabelQueueError, ValueError):
    """An option is unknown, missing, or has an invalid value."""

    condition = "BABELQUEUE_INVALID_OPTION"


class MissingPackageError(BabelQueueError, ImportError):
    """A Python package that an extra brings is missing, or too old."""

    condition = "BABELQUEUE_PACKAGE_MISSING"


class BrokerError(BabelQueueError):
    """The broker refused a request for another reason than those of the classes below."""

    condition = "BABELQUEUE_BROKER_FAILED"


class BrokerAuthenticationError(BrokerError):
    """The broker refused the login. Retrying does not help."""

    condition = "BABELQUEUE_BROKER_AUTHENTICATION"


class BrokerUnreachableError(BrokerError):
    """The broker cannot be reached, does not answer in time, or the connection was lost. A retry may help."""

    condition = "BABELQUEUE_BROKER_UNREACHABLE"


class BrokerFullError(BrokerError):
    """The broker has no memory, disk or quota left, or throttles. A retry may help."""

    condition = "BABELQUEUE_BROKER_FULL"


class QueueNotFoundError(BrokerError):
    """The queue, topic, exchange or database does not exist, and the connector may not create it."""

    condition = "BABELQUEUE_QUEUE_NOT_FOUND"


class QueueForbiddenError(BrokerError):
    """The user may not do that with this queue; it may with others. Retrying does not help."""

    condition = "BABELQUEUE_QUEUE_FORBIDDEN"


class MessageTooLargeError(BrokerError):
    """A message is larger than the broker takes."""

    condition = "BABELQUEUE_MESSAGE_TOO_LARGE"


class QueuesFailedError(BrokerError):
    """Some of the queues of a write failed; the others have their messages.

    Attributes:
        failed: queue → why.
        done: what the call would have returned: its counts of what was published.
    """

    condition = "BABELQUEUE_QUEUES_FAILED"

    def __init__(self, message: str = "", failed: dict[str, str] | None = None, done: object = None) -> None:
        super().__init__(message)
        self.failed = failed or {}
        self.done = done

    @classmethod
    def of(cls, failed: dict[str, str], done: object, published: int) -> QueuesFailedError:
        """Name the queues of a write that failed, each with the reason, and tell what was published."""
        lines = "; ".join(f"{queue}: {text}" for queue, text in failed.items())
        return cls(
            f"{len(failed)} queues failed, the others have their messages: {published:,} were published "
            f"({lines})",
            failed,
            done,
        )


class JobClaimedError(BabelQueueError):
    """A release is publishing scheduled jobs that were to be replaced.

    Attributes:
        claimed: their ids.
        scheduled: the ids of the same call that were scheduled.
    """

    condition = "BABELQUEUE_JOB_CLAIMED"

    def __init__(
        self, message: str = "", claimed: list[str] | None = None, scheduled: list[str] | None = None
    ) -> None:
        super().__init__(message)
        self.claimed = claimed or []
        self.scheduled = scheduled or []


class InvalidPayloadError(BabelQueueError):
    """A payload does not match the schema of its URN; nothing of its partition was sent."""

    condition = "BABELQUEUE_INVALID_PAYLOAD"


class CatalogError(BabelQueueError):
    """The tables of a catalog cannot be written as its schemas are."""

    condition = "BABELQUEUE_CATALOG_FAILED"


class RequestFailedError(BabelQueueError):
    """The responder of a request raised, and replied so.

    Attributes:
        reason: why, as in a dead letter: `failed`, or the reason of a `Reject`.
        exception: the class of what it raised.
        error: its text.
    """

    condition = "BABELQUEUE_REQUEST_FAILED"

    def __init__(
        self,
        message: str = "",
        reason: str | None = None,
        exception: str | None = None,
        error: str | None = None,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.exception = exception
        self.error = error


class RequestTimeoutError(BabelQueueError, TimeoutError):
    """No reply came in time. The request may still be handled."""

    condition = "BABELQUEUE_REQUEST_TIMEOUT"


class EventStoreError(BabelQueueError):
    """The storage or the content of an event store cannot be used."""

    condition = "BABELQUEUE_EVENT_STORE_FAILED"


class EventConflictError(EventStoreError):
    """A stream has got another event than a writer expected, or has one with the same id."""

    condition = "BABELQUEUE_EVENT_CONFLICT"


class JournalError(BabelQueueError):
    """The journal's storage or content cannot be used."""

    condition = "BABELQUEUE_JOURNAL_FAILED"


class JournalMissingError(JournalError):
    """The journal is not there: deleted, not mounted, or on a disk that driver and executors do not share."""

    condition = "BABELQUEUE_JOURNAL_MISSING"


class JournalTakenOverError(JournalError):
    """Another query owns the journal now."""

    condition = "BABELQUEUE_JOURNAL_TAKEN_OVER"


class DataLossError(JournalError):
    """Spark asks for messages that neither the journal nor the log holds any more."""

    condition = "BABELQUEUE_DATA_LOSS"


class LogEndedError(DataLossError):
    """A log ends before an offset that it once had; the messages that remain were read."""


def line_of(error: Exception) -> str:
    """Return the connector's own line out of what Spark wraps around it, else the first line."""
    text = str(error)
    own = re.findall(r"babelqueue_spark\.errors\.\w+: (.+)", text)
    return own[-1] if own else next(iter(text.splitlines()), type(error).__name__)


def hide(value: str, reference: str) -> None:
    """Show `reference` in place of a value from now on, and of the password in it if it is a URL.

    Short numbers, times, sizes and texts of less than four characters stay: they tell nothing.
    """
    for part in (value, *_passwords(value)):
        if len(part) >= _SHORTEST and not _HARMLESS.fullmatch(part):
            _hidden[part] = reference


def without_hidden(text: str) -> str:
    """Return the text with references in place of what is hidden."""
    for value in sorted(_hidden, key=len, reverse=True):
        text = text.replace(value, _hidden[value])
    return text


def _passwords(value: str) -> list[str]:
    try:
        password = urlsplit(value).password or ""
    except ValueError:
        return []
    return [password, unquote(password)]
