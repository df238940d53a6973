"""Connections to Service Bus, and errors that say what to do.

azure-servicebus settles one message a round trip, keeps the credit of a link when a receive ends, and shows
messages only to who has a link to the entity. `Link` goes below its public interface for these three, and
for little else; pyproject.toml pins the release that it was written for.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from azure.core.exceptions import AzureError, ClientAuthenticationError
from azure.servicebus import (
    NEXT_AVAILABLE_SESSION,
    ServiceBusClient,
    ServiceBusMessageBatch,
    ServiceBusReceivedMessage,
    ServiceBusSender,
    TransportType,
    exceptions,
)
from azure.servicebus._common import constants, mgmt_handlers
from azure.servicebus._pyamqp.error import AMQPException, AuthenticationException
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport

from babelqueue_spark.bindings.advice import Advice, denied, forbidden, full, missing, too_large, unreachable
from babelqueue_spark.bindings.servicebus.options import ServiceBusOptions
from babelqueue_spark.bindings.servicebus.transport import bounded
from babelqueue_spark.errors import BrokerError

PAGE = 250
"""Most messages of one peek, as far as Service Bus goes."""

_GROUP = 500
_DEAD_LETTERS = "/$deadletterqueue"

_ADVICE: Mapping[type[BaseException] | tuple[type[BaseException], ...], Advice] = {
    exceptions.MessagingEntityNotFoundError: missing("it does not exist: create it, or check its name"),
    exceptions.MessagingEntityDisabledError: Advice("it is disabled: enable it"),
    (exceptions.ServiceBusAuthenticationError, ClientAuthenticationError): denied(
        "it refused the credentials: check key name and key, or what Azure AD is asked with"
    ),
    exceptions.ServiceBusAuthorizationError: forbidden(
        "these credentials may not do that: allow Listen to read and Send to write"
    ),
    exceptions.ServiceBusQuotaExceededError: full("it is full, or has too many connections: read from it"),
    exceptions.ServiceBusServerBusyError: full(
        "it throttles requests: lower numPartitions, or ask for more units"
    ),
    exceptions.MessageSizeExceededError: too_large(
        "a message is larger than the namespace takes: send its address"
    ),
    exceptions.OperationTimeoutError: unreachable("it did not answer in time: raise servicebus.try_timeout"),
    (exceptions.ServiceBusConnectionError, exceptions.ServiceBusCommunicationError): unreachable(
        "it cannot be reached, or the connection was lost: check namespace, transport and network"
    ),
    ImportError: Advice("a package is missing: pip install websocket-client"),
}
_LOST = (exceptions.MessageLockLostError, exceptions.SessionLockLostError)
_FAILURES = (AzureError, AMQPException, OSError, ValueError, ImportError)


class Link:
    """One connection to an entity: with the client's receiver, or for `$management` alone.

    Args:
        patience: seconds for which a request is repeated.
        session: the session that it has locked.
    """

    def __init__(self, handler: Any, patience: float, session: str | None = None) -> None:
        self._handler = handler
        self._patience = patience
        self.session = session

    def receive(self, messages: int, credit: int, seconds: float) -> list[ServiceBusReceivedMessage]:
        """Up to `messages` of at most `credit` that are let come, waiting for the first one."""
        self._handler._handler._link_credit = credit
        found: list[ServiceBusReceivedMessage] = self._handler.receive_messages(messages, seconds)
        return found

    def drain(self) -> None:
        """Release what came but was not received, uncounted, and let nothing more come."""
        self._handler._amqp_transport.drain_and_release_messages(self._handler._handler)

    def peek(self, first: int, count: int) -> list[ServiceBusReceivedMessage]:
        """Messages from a sequence number on, whether active, locked, deferred or scheduled."""
        body = {
            constants.MGMT_REQUEST_FROM_SEQUENCE_NUMBER: PyamqpTransport.AMQP_LONG_VALUE(first),
            constants.MGMT_REQUEST_MAX_MESSAGE_COUNT: count,
        }
        shown = partial(mgmt_handlers.peek_op, receiver=self._handler)
        found: list[ServiceBusReceivedMessage] = self._ask(
            constants.REQUEST_RESPONSE_PEEK_OPERATION, body, shown
        )
        return found

    def settle(self, status: str, tokens: Sequence[uuid.UUID]) -> list[bool]:
        """Complete or abandon by lock token; true where the service says that it did.

        It takes many tokens at once, and does not say which of them it refused. So the halves of a refused
        group are retried; when both are refused, all of it is false, though some may have been settled.
        """
        settled: list[bool] = []
        for first in range(0, len(tokens), _GROUP):
            group = tokens[first : first + _GROUP]
            settled += [True] * len(group) if self._takes(status, group) else self._halves(status, group)
        return settled

    def close(self) -> None:
        """Close the connection; the lock on a session ends, those on messages do not."""
        self._handler.close()

    def _halves(self, status: str, refused: Sequence[uuid.UUID]) -> list[bool]:
        if len(refused) == 1:
            return [False]
        middle = len(refused) // 2
        halves = (refused[:middle], refused[middle:])
        taken = [self._takes(status, half) for half in halves]
        if not any(taken):
            return [False] * len(refused)
        return [
            done
            for half, all_of_it in zip(halves, taken, strict=True)
            for done in ([True] * len(half) if all_of_it else self._halves(status, half))
        ]

    def _takes(self, status: str, tokens: Sequence[uuid.UUID]) -> bool:
        body: dict[str, Any] = {
            constants.MGMT_REQUEST_DISPOSITION_STATUS: status,
            constants.MGMT_REQUEST_LOCK_TOKENS: PyamqpTransport.AMQP_ARRAY_VALUE(tokens),
        }
        if self.session is not None:
            body[constants.MGMT_REQUEST_SESSION_ID] = self.session
        try:
            self._ask(constants.REQUEST_RESPONSE_UPDATE_DISPOSTION_OPERATION, body, mgmt_handlers.default)
        except _LOST:
            return False
        return True

    def _ask(self, operation: bytes, body: dict[str, Any], read: Any) -> Any:
        with_link = hasattr(self._handler, "receive_messages")
        return self._handler._mgmt_request_response_with_retry(
            operation, body, read, timeout=self._patience, keep_alive_associated_link=with_link
        )


class ServiceBusLinks:
    """A client, and what it has open, made at the first call in the process that needs it."""

    def __init__(self, options: ServiceBusOptions) -> None:
        self._options = options
        self._client: ServiceBusClient | None = None
        self._receivers: dict[str, Link] = {}
        self._managers: dict[str, Link] = {}
        self._senders: dict[str, ServiceBusSender] = {}

    def receiver(self, queue: str) -> Link:
        """Return a link that takes messages; it has no credit until it is asked for some."""
        if queue not in self._receivers:
            receiver = self._connected().get_queue_receiver(
                queue, prefetch_count=self._options.prefetch, keep_alive=0
            )
            self._open(receiver)
            self._receivers[queue] = Link(receiver, self._options.patience)
        return self._receivers[queue]

    def next_session(self, queue: str) -> Link | None:
        """Open a link to a session that has messages and is nobody else's; None where there is none."""
        receiver = self._connected().get_queue_receiver(
            queue,
            session_id=NEXT_AVAILABLE_SESSION,
            max_wait_time=self._options.max_wait_time,
            prefetch_count=self._options.prefetch,
            keep_alive=0,
        )
        receiver._config.retry_total = 0  # to have found no session is no failure
        patience = self._options.max_wait_time + self._options.try_timeout
        try:
            try:
                self._open(receiver, patience)
            except exceptions.ServiceBusConnectionError:  # before anything was asked of it
                self._open(receiver, patience)
        except exceptions.OperationTimeoutError as error:
            receiver.close()
            if not getattr(error.__cause__, "_condition", None):  # the client's own: the service is silent
                raise
            return None
        return Link(receiver, self._options.patience, str(receiver.session.session_id))

    def manager(self, queue: str) -> Link:
        """Return a link that can peek and settle: the receiver's where there is one."""
        if queue in self._receivers:
            return self._receivers[queue]
        if queue not in self._managers:
            client: Any = self._connected()
            browser = client._create_session_browser(
                queue, keep_alive=0, socket_timeout=self._options.longest_read
            )
            self._managers[queue] = Link(browser, self._options.patience)
        return self._managers[queue]

    def sender(self, queue: str) -> ServiceBusSender:
        """Return what sends to a queue or topic, connected."""
        if queue not in self._senders:
            sender = self._connected().get_queue_sender(
                queue, keep_alive=0, socket_timeout=self._options.longest_read
            )
            self._open(sender)
            self._senders[queue] = sender
        return self._senders[queue]

    def send(self, queue: str, batch: ServiceBusMessageBatch) -> None:
        self.sender(queue).send_messages(batch, timeout=self._options.patience)

    def error(self, text: str, queue: str = "", kind: type[BrokerError] = BrokerError) -> BrokerError:
        named = f"queue '{queue}': " if queue else ""
        return kind(f"Service Bus at {self._options.namespace}: {named}{text}")

    @contextmanager
    def explained(self, queue: str) -> Iterator[None]:
        """Close the connections to the queue where the block fails, and raise a `BrokerError`."""
        try:
            with bounded(self._options.handshake):
                yield
        except _FAILURES as error:
            for opened in (self._receivers, self._managers, self._senders):
                if queue in opened:
                    with suppress(*_FAILURES):
                        opened.pop(queue).close()
            advice = _advice(error)
            raise self.error(advice.text, queue, advice.error) from None

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
        self._client = None
        for opened in (self._receivers, self._managers, self._senders):
            opened.clear()

    def _open(self, handler: Any, one_try: float | None = None) -> None:
        """Connect, for a bounded time; in one try, where the answer may take as long as that."""
        handler._do_retryable_operation(
            handler._open,
            timeout=one_try or self._options.patience,
            operation_requires_timeout=True,
            apply_try_timeout=one_try is None,
        )

    def _connected(self) -> ServiceBusClient:
        if self._client is None:
            options = self._options
            websocket = options.transport == "websocket"
            arguments: dict[str, Any] = {
                "transport_type": TransportType.AmqpOverWebsocket if websocket else TransportType.Amqp,
                "custom_endpoint_address": options.custom_endpoint_address,
                "connection_verify": options.connection_verify,
                "retry_total": options.retry_total,
                "try_timeout": options.try_timeout,
                "user_agent": "babelqueue-spark",
            }
            if options.connection_string is not None:
                self._client = ServiceBusClient.from_connection_string(options.connection_string, **arguments)
            else:
                self._client = ServiceBusClient(options.namespace, _credential(options), **arguments)
        return self._client


def is_dead_letter_queue(queue: str) -> bool:
    """Return whether this is the sub-queue where Service Bus itself puts dead letters."""
    return queue.casefold().endswith(_DEAD_LETTERS)


def _credential(options: ServiceBusOptions) -> Any:
    from azure.identity import ClientSecretCredential, DefaultAzureCredential  # takes half a second to import

    if options.client_secret is not None:
        return ClientSecretCredential(
            str(options.tenant_id), str(options.client_id), client_secret=options.client_secret
        )
    return DefaultAzureCredential(managed_identity_client_id=options.client_id)


def _advice(error: BaseException) -> Advice:
    # Not its text, which may hold what a proxy or an identity provider was asked with.
    condition = str(getattr(error, "_condition", "") or "").removesuffix(".")
    if condition == "amqp:not-allowed":
        return Advice(
            "it refused the link or the message: set servicebus.sessions where the entity requires sessions, "
            "and only there"
        )
    inner = getattr(error, "inner_exception", None)
    if isinstance(getattr(inner, "__cause__", None), TimeoutError):
        error = exceptions.OperationTimeoutError()  # in a handshake, the client tells no more than a loss
    if isinstance(inner, AuthenticationException):
        error = (
            exceptions.ServiceBusAuthenticationError()
        )  # what the client calls it without a custom endpoint
    known = (advice for kind, advice in _ADVICE.items() if isinstance(error, kind))
    shown = f" ({condition})" if condition else ""
    return next(known, Advice(f"the client failed with {type(error).__name__}{shown}"))
