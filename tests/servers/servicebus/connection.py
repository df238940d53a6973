"""AMQP 1.0 as azure-servicebus speaks it: one object a connection, and the broker that they share.

What a client needs of the protocol, and no more: SASL ANONYMOUS, one or several AMQP sessions, links to
entities, to `$cbs` and to `<entity>/$management`. Windows of AMQP sessions are unlimited, credit of links is kept.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import struct
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, quote_plus

from azure.servicebus._pyamqp._decode import decode_frame, decode_payload
from azure.servicebus._pyamqp._encode import encode_frame, encode_payload
from azure.servicebus._pyamqp.endpoints import Source, Target
from azure.servicebus._pyamqp.error import AMQPError
from azure.servicebus._pyamqp.message import Message as AmqpMessage
from azure.servicebus._pyamqp.message import Properties
from azure.servicebus._pyamqp.outcomes import Accepted, Modified, Rejected, Released
from azure.servicebus._pyamqp.performatives import (
    AttachFrame,
    BeginFrame,
    CloseFrame,
    DetachFrame,
    DispositionFrame,
    EndFrame,
    FlowFrame,
    OpenFrame,
    SASLMechanism,
    SASLOutcome,
)
from azure.servicebus._pyamqp.types import TYPE, VALUE, AMQPTypes

from tests.servers.servicebus.entities import Namespace, Queue, RefusedError
from tests.servers.servicebus.messages import DATA, parsed, sections

LARGEST_MESSAGE = 262_144
JWT = "a token of the tests' own"
"""The one bearer token that is taken for a user of Azure AD."""
POLICY = "babel"

_BATCH = 0x80013700
_FRAME = 65_536
_EMPTY_FRAME = b"\x00\x00\x00\x08\x02\x00\x00\x00"
_SASL_HEADER, _AMQP_HEADER = b"AMQP\x03\x01\x00\x00", b"AMQP\x00\x01\x00\x00"
_PEEK_BYTES = 262_144
_BUSY = RefusedError(
    "com.microsoft:server-busy", "the request was terminated because the entity is throttled"
)
_OUTCOMES = {"accepted": Accepted, "released": Released, "modified": Modified, "rejected": Rejected}
_FILTER, _LOCKED_UNTIL, _TIMEOUT = (
    b"com.microsoft:session-filter",
    b"com.microsoft:locked-until-utc",
    b"com.microsoft:timeout",
)
_TICKS_OF_1970 = 621_355_968_000_000_000


@dataclass
class Faults:
    """What goes wrong until it is told otherwise.

    Attributes:
        throttled: so many sends and management requests are answered with `server-busy`.
        delay: seconds by which everything is answered late.
        refused: entity → the condition with which links to it are refused.
        hang_up: the operation after which, done but unanswered, the connection breaks once.
    """

    throttled: int = 0
    delay: float = 0.0
    refused: dict[str, str] = field(default_factory=dict)
    hang_up: str = ""

    def throttle(self) -> bool:
        """Whether this request is answered with `server-busy`."""
        throttles = self.throttled > 0
        self.throttled -= throttles
        return throttles

    def hangs_up(self, operation: str) -> bool:
        """Whether the connection breaks after this operation."""
        hit = operation == self.hang_up
        if hit:
            self.hang_up = ""
        return hit


class Broker:
    """What the connections share: the entities, who waits for messages, and what goes wrong."""

    def __init__(self, namespace: Namespace, key: str) -> None:
        self.namespace = namespace
        self.key = key
        self.faults = Faults()
        self.connections: set[Connection] = set()
        self.requests: dict[str, int] = defaultdict(int)
        """Operation → how often it was asked for."""
        self._consumers: dict[str, list[Link]] = defaultdict(list)

    def consume(self, link: Link) -> None:
        """A link wants messages of its queue as long as it has credit."""
        self._consumers[link.queue.path].append(link)

    def leave(self, link: Link) -> None:
        """A link wants none any more."""
        waiting = self._consumers.get(link.queue.path, [])
        if link in waiting:
            waiting.remove(link)

    def dispatch(self, queue: Queue) -> None:
        """Deliver what is ready to those who have credit, in turns."""
        links = self._consumers.get(queue.path, [])
        for link in list(links):
            if link.session_wanted:
                link.connection.accept_session(link)
        while takers := [link for link in links if link.credit > 0 and not link.session_wanted]:
            delivered = [link.deliver(time.time()) for link in takers]
            if not any(delivered):
                return

    def tick(self) -> None:
        """Let the time come, and deliver what it brings."""
        self.namespace.tick(time.time())
        for path in [path for path, links in self._consumers.items() if links]:
            self.dispatch(self.namespace.queue(path))

    def drop_connections(self) -> None:
        """Break them all."""
        for connection in list(self.connections):
            connection.transport.abort()


class Link:
    """One end of a link: a client's receiver (we deliver) or its sender (we take)."""

    def __init__(self, connection: Connection, channel: Channel, attach: list[Any]) -> None:
        self.connection = connection
        self.channel = channel
        self.attach = attach
        self.handle: int = attach[1]
        self.receives = bool(attach[2])
        endpoint = attach[5] if self.receives else attach[6]
        self.filters: dict[bytes, bytes | None] = (self.receives and endpoint[7]) or {}
        self.address = endpoint[0].decode()
        self.path = self.address.split("/", 3)[3] if "://" in self.address else self.address
        self.credit = 0
        self.sent = 0
        self.session: str | None = None
        self.session_wanted = _FILTER in self.filters
        self.payload = bytearray()
        self.format = 0

    @property
    def queue(self) -> Queue:
        """The entity that it reads."""
        return self.connection.broker.namespace.queue(self.path)

    def deliver(self, now: float) -> bool:
        """Send one message, if one is ready."""
        taken = self.queue.take(now, self.session)
        if taken is None:
            return False
        token, lock = taken
        self.credit -= 1
        self.sent += 1
        self.channel.transfer(self.handle, token, lock.message.encoded(locked_until=lock.until))
        self.channel.unsettled[self.channel.next_outgoing - 1] = (self, token)
        return True


class Channel:
    """An AMQP session."""

    def __init__(self, connection: Connection, number: int) -> None:
        self.connection = connection
        self.number = number
        self.next_outgoing = 0
        self.links: dict[int, Link] = {}
        self.unsettled: dict[int, tuple[Link, bytes]] = {}

    def transfer(self, handle: int, tag: bytes, payload: bytes) -> None:
        """Send a message, in as many frames as it needs."""
        head = b"\x70" + struct.pack(">I", handle) + b"\x70" + struct.pack(">I", self.next_outgoing)
        head += b"\xa0" + bytes([len(tag)]) + tag + b"\x43\x42"
        room = _FRAME - len(head) - 64
        for first in range(0, len(payload), room):
            fields = head + (b"\x41" if first + room < len(payload) else b"\x42")
            performative = b"\x00\x53\x14\xc0" + bytes([len(fields) + 1, 6]) + fields
            part = payload[first : first + room]
            size = 8 + len(performative) + len(part)
            header = struct.pack(">IBBH", size, 2, 0, self.number)
            self.connection.write(header + performative + part)
        self.next_outgoing += 1

    def send(self, frame: Any) -> None:
        """Send any other frame."""
        self.connection.send(frame, channel=self.number)

    def flow(self, link: Link, credit: int, **more: Any) -> None:
        """Tell a link's credit."""
        self.send(
            _made(
                FlowFrame,
                incoming_window=0x7FFFFFFF,
                next_outgoing_id=self.next_outgoing,
                outgoing_window=0x7FFFFFFF,
                handle=link.handle,
                delivery_count=link.sent,
                link_credit=credit,
                **more,
            )
        )


class Connection(asyncio.Protocol):
    """One client's connection."""

    transport: asyncio.Transport

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self._buffer = bytearray()
        self._channels: dict[int, Channel] = {}
        self.opened = False
        self._authorized = False
        self._handlers: dict[int, Callable[[int, list[Any]], None]] = {
            0x10: self._open,
            0x11: self._begin,
            0x12: self._attach,
            0x13: self._flow,
            0x14: self._transfer,
            0x15: self._disposition,
            0x16: self._detach,
            0x17: self._end,
            0x18: self._close,
            0x41: self._sasl_init,
        }

    # Bytes.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.broker.connections.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self.broker.connections.discard(self)
        for number in list(self._channels):
            self._forget(number)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        used = 0
        while len(self._buffer) - used >= 8:
            if self._buffer[used : used + 4] == b"AMQP":
                self._header(self._buffer[used + 4])
                used += 8
                continue
            size, offset, _, channel = struct.unpack_from(">IBBH", self._buffer, used)
            if len(self._buffer) - used < size:
                break
            if size > 8:
                performative = bytes(self._buffer[used + 4 * offset : used + size])
                code, fields = decode_frame(memoryview(performative))
                self._handlers[code](channel, fields)
            used += size
        del self._buffer[:used]

    def write(self, data: bytes) -> None:
        """Send bytes, late where that is the fault of the day."""
        if self.broker.faults.delay:
            asyncio.get_running_loop().call_later(self.broker.faults.delay, self.transport.write, data)
        else:
            self.transport.write(data)

    def send(self, frame: Any, *, channel: int = 0, kind: bytes = b"\x00") -> None:
        """Send a performative."""
        header, performative = encode_frame(frame, frame_type=kind)
        self.write(header + struct.pack(">H", channel) + bytes(performative or b""))

    # The connection.

    def _header(self, protocol: int) -> None:
        if protocol == _SASL_HEADER[4]:
            self.write(_SASL_HEADER)
            self.send(SASLMechanism([b"MSSBCBS", b"PLAIN", b"ANONYMOUS", b"EXTERNAL"]), kind=b"\x01")
        else:
            self.write(_AMQP_HEADER)

    def _sasl_init(self, _: int, fields: list[Any]) -> None:
        del fields
        self.send(SASLOutcome(0, None), kind=b"\x01")

    def _open(self, _: int, fields: list[Any]) -> None:
        del fields
        self.opened = True
        self.send(
            _made(
                OpenFrame,
                container_id="stand-in",
                max_frame_size=_FRAME,
                channel_max=4999,
                idle_timeout=120_000,
            )
        )

    def _begin(self, number: int, fields: list[Any]) -> None:
        del fields
        channel = self._channels[number] = Channel(self, number)
        channel.send(
            _made(
                BeginFrame,
                remote_channel=number,
                next_outgoing_id=0,
                incoming_window=0x7FFFFFFF,
                outgoing_window=0x7FFFFFFF,
                handle_max=255,
            )
        )

    def _end(self, number: int, fields: list[Any]) -> None:
        del fields
        if number in self._channels:
            self._channels[number].send(EndFrame(error=None))
            self._forget(number)

    def _close(self, _: int, fields: list[Any]) -> None:
        del fields
        self.send(CloseFrame(error=None))
        self.transport.close()

    def _forget(self, number: int) -> None:
        for link in self._channels.pop(number).links.values():
            self._left(link)

    def _left(self, link: Link) -> None:
        """A link is gone: locks stay until they lapse, but a session's lock ends."""
        if link.receives and not _is_service(link.path):
            self.broker.leave(link)
            if link.session is not None:
                link.queue.end_session(link.session, time.time())
                self.broker.dispatch(link.queue)

    # Links.

    def _attach(self, number: int, fields: list[Any]) -> None:
        channel = self._channels.get(number)
        if channel is None:
            return
        link = Link(self, channel, fields)
        channel.links[link.handle] = link
        if _is_service(link.path):
            self._attached(link)
            return
        try:
            self._check(link)
        except RefusedError as error:
            self._refuse(link, error)
            return
        if not link.receives:
            self._attached(link)
            return
        self.broker.consume(link)
        if not link.session_wanted:
            self._attached(link)
        elif not self.accept_session(link):
            wait = (link.attach[13] or {}).get(_TIMEOUT, 60_000) / 1000
            asyncio.get_running_loop().call_later(wait, self._give_up, link)

    def _check(self, link: Link) -> None:
        condition = self.broker.faults.refused.get(link.path.casefold())
        if condition:
            raise RefusedError(condition, f"the messaging entity '{link.path}' answers {condition}")
        if not self._authorized:
            raise RefusedError("amqp:unauthorized-access", "a claim is missing: put a token first")
        if link.receives and link.queue.settings.sessions and not link.session_wanted:
            raise RefusedError(
                "amqp:not-allowed", "it is not possible for an entity that requires sessions to create a non-sessionful receiver"
            )  # fmt: skip

    def accept_session(self, link: Link) -> bool:
        """Attach a session receiver, if a session is free; true when nothing remains to be waited for."""
        wanted = link.filters[_FILTER]
        try:
            session = link.queue.accept(wanted.decode() if wanted else None, time.time())
        except RefusedError as error:
            self.broker.leave(link)
            self._refuse(link, error)
            return True
        if session is None:
            return False
        link.session, link.session_wanted = session, False
        ticks = int(link.queue.sessions[session] * 10_000_000) + _TICKS_OF_1970
        self._attached(link, properties={_LOCKED_UNTIL: {TYPE: AMQPTypes.long, VALUE: ticks}})
        return True

    def _give_up(self, link: Link) -> None:
        if link.session_wanted and link.handle in link.channel.links:
            self.broker.leave(link)
            self._refuse(link, RefusedError(_TIMEOUT.decode(), "no session came free in time"))

    def _attached(self, link: Link, properties: dict[bytes, Any] | None = None) -> None:
        filters = {_FILTER: link.session} if link.session is not None else None
        link.channel.send(_reply(link, Source(address=link.address, filters=filters), properties))
        if not link.receives:
            link.channel.flow(link, 1_000)

    def _refuse(self, link: Link, error: RefusedError) -> None:
        link.session_wanted = False
        link.channel.send(_reply(link, None, None))
        self._detach_with(link, error)

    def _detach_with(self, link: Link, error: RefusedError) -> None:
        link.channel.links.pop(link.handle, None)
        link.channel.send(DetachFrame(handle=link.handle, closed=True, error=_error(error)))

    def _detach(self, number: int, fields: list[Any]) -> None:
        channel = self._channels.get(number)
        link = channel.links.pop(fields[0], None) if channel else None
        if link is not None:
            link.channel.send(DetachFrame(handle=link.handle, closed=fields[1], error=None))
            self._left(link)

    def _flow(self, number: int, fields: list[Any]) -> None:
        channel = self._channels.get(number)
        link = channel.links.get(fields[4]) if channel else None
        if link is None or not link.receives or _is_service(link.path):
            return
        link.credit = max(0, (fields[5] or 0) + fields[6] - link.sent)
        self.broker.dispatch(link.queue)
        if fields[8]:
            link.sent += link.credit
            link.credit = 0
            link.channel.flow(link, 0, drain=True)

    # Messages from the client, and what becomes of those to it.

    def _transfer(self, number: int, fields: list[Any]) -> None:
        channel = self._channels.get(number)
        link = channel.links.get(fields[0]) if channel else None
        if link is None:
            return
        if not link.payload:
            link.format = fields[3] or 0
        link.payload += fields[11]
        if fields[5]:
            return
        payload, link.payload = bytes(link.payload), bytearray()
        link.sent += 1
        if _is_service(link.path):
            self._answer(link, fields[1], Accepted())
            request = decode_payload(memoryview(payload))
            (self._put_token if link.path == "$cbs" else self._manage)(link, request)
            return
        try:
            self._receive(link, payload)
        except RefusedError as error:
            self._answer(link, fields[1], Rejected(error=_error(error)))
            return
        if self.broker.faults.hangs_up("send"):
            self.transport.abort()
        else:
            self._answer(link, fields[1], Accepted())

    def _answer(self, link: Link, delivery: int, outcome: Any) -> None:
        link.channel.send(
            _made(DispositionFrame, role=True, first=delivery, last=delivery, settled=True, state=outcome)
        )
        link.channel.flow(link, 1_000)

    def _receive(self, link: Link, payload: bytes) -> None:
        self.broker.requests["send"] += 1
        if self.broker.faults.throttle():
            raise _BUSY
        if len(payload) > LARGEST_MESSAGE:
            raise RefusedError("amqp:link:message-size-exceeded", "the message is too large")
        now = time.time()
        single = link.format != _BATCH
        for each in [payload] if single else [value for code, value, _ in sections(payload) if code == DATA]:
            self.broker.namespace.send(link.path, parsed(each), now)
        for path in self.broker.namespace.topics.get(link.path.casefold(), [link.path]):
            self.broker.dispatch(self.broker.namespace.queue(path))

    def _disposition(self, number: int, fields: list[Any]) -> None:
        channel = self._channels.get(number)
        if channel is None or not fields[0]:
            return
        [(outcome, details)] = fields[4].items()
        last = fields[1] if fields[2] is None else fields[2]
        queues = {}
        for delivery in [each for each in range(fields[1], last + 1) if each in channel.unsettled]:
            link, token = channel.unsettled.pop(delivery)
            queues[link.queue.path] = link.queue
            try:
                self._settle(link.queue, token, outcome, details)
                state = _OUTCOMES[outcome](*([None] if outcome == "rejected" else details or []))
            except RefusedError as error:
                state = Rejected(error=_error(error))
            if self.broker.faults.hangs_up("settle"):
                self.transport.abort()
                return
            if not fields[3]:
                channel.send(
                    _made(
                        DispositionFrame, role=False, first=delivery, last=delivery, settled=True, state=state
                    )
                )
        for queue in queues.values():
            self.broker.dispatch(queue)

    def _settle(self, queue: Queue, token: bytes, outcome: str, details: list[Any]) -> None:
        self.broker.requests["settle"] += 1
        now = time.time()
        if outcome == "accepted":
            queue.complete(token, now)
        elif outcome == "rejected":
            info = (details[0][2] if details and details[0] else None) or {}
            texts = (info.get(name) or b"" for name in (b"DeadLetterReason", b"DeadLetterErrorDescription"))
            queue.dead_letter(token, *(text.decode() for text in texts), now)
        else:
            queue.give_back(token, now, failed=outcome == "modified" and bool(details and details[0]))

    # `$cbs` and `$management`.

    def _put_token(self, link: Link, request: AmqpMessage) -> None:
        token = request.value.decode() if isinstance(request.value, bytes) else ""
        self._authorized = token == JWT or _is_signed(token, self.broker.key)
        code, text = (
            (202, "Accepted") if self._authorized else (401, "InvalidSignature: the token is not valid")
        )
        self._reply(link, request, {"status-code": code, "status-description": text}, None)

    def _manage(self, link: Link, request: AmqpMessage) -> None:
        properties = request.application_properties or {}
        operation = properties[b"operation"].decode().removeprefix("com.microsoft:")
        self.broker.requests[operation] += 1
        queue = self.broker.namespace.queue(link.path.rpartition("/")[0])
        try:
            if self.broker.faults.throttle():
                raise _BUSY
            value = self._operations()[operation](queue, request.value)
            answer = {"statusCode": 204 if value is None else 200, "statusDescription": "OK"}
        except RefusedError as error:
            value = None
            answer = {
                "statusCode": 410 if error.condition.endswith("lost") else 503,
                "statusDescription": str(error),
                "errorCondition": {TYPE: AMQPTypes.symbol, VALUE: error.condition},
            }
        if self.broker.faults.hangs_up(operation):
            self.transport.abort()
            return
        self._reply(link, request, answer, value)
        self.broker.dispatch(queue)

    def _operations(self) -> dict[str, Callable[[Queue, Any], Any]]:
        return {
            "peek-message": self._peek,
            "update-disposition": self._update_disposition,
            "renew-lock": self._renew_lock,
            "renew-session-lock": self._renew_session_lock,
            "schedule-message": self._schedule,
            "cancel-scheduled-message": self._cancel_scheduled,
            "get-message-sessions": self._message_sessions,
        }

    def _peek(self, queue: Queue, value: dict[bytes, Any]) -> dict[str, Any] | None:
        session = value.get(b"session-id")
        found = queue.peek(
            value[b"from-sequence-number"], value[b"message-count"], session.decode() if session else None
        )
        messages, size = [], 0
        for message, scheduled in found:
            encoded = message.encoded(scheduled=scheduled)
            size += len(encoded)
            if messages and size > _PEEK_BYTES:
                break
            messages.append({"message": encoded})
        return {"messages": messages} if messages else None

    def _update_disposition(self, queue: Queue, value: dict[bytes, Any]) -> dict[str, Any]:
        """One after the other up to the first whose lock was lost, so that a part may have been done."""
        now = time.time()
        session = value.get(b"session-id")
        if session is not None and session.decode() not in queue.sessions:
            raise RefusedError("com.microsoft:session-lock-lost", "the lock on the session has expired")
        for token in (each.bytes_le for each in value[b"lock-tokens"]):
            if value[b"disposition-status"] == b"completed":
                queue.complete(token, now)
            elif value[b"disposition-status"] == b"abandoned":
                queue.give_back(token, now, failed=True)
            else:
                texts = (value.get(name) or b"" for name in (b"deadletter-reason", b"deadletter-description"))
                queue.dead_letter(token, *(text.decode() for text in texts), now)
        return {}

    def _renew_lock(self, queue: Queue, value: dict[bytes, Any]) -> dict[str, Any]:
        now = time.time()
        until = [int(queue.renew(token.bytes_le, now) * 1000) for token in value[b"lock-tokens"]]
        return {"expirations": _array(AMQPTypes.timestamp, until)}

    def _renew_session_lock(self, queue: Queue, value: dict[bytes, Any]) -> dict[str, Any]:
        until = queue.renew_session(value[b"session-id"].decode(), time.time())
        return {"expiration": {TYPE: AMQPTypes.timestamp, VALUE: int(until * 1000)}}

    def _schedule(self, queue: Queue, value: dict[bytes, Any]) -> dict[str, Any]:
        now = time.time()
        numbers = [queue.put(parsed(each[b"message"]), now) for each in value[b"messages"]]
        return {"sequence-numbers": _array(AMQPTypes.long, numbers)}

    def _cancel_scheduled(self, queue: Queue, value: dict[bytes, Any]) -> dict[str, Any]:
        for sequence in value[b"sequence-numbers"]:
            queue.cancel(sequence)
        return {}

    def _message_sessions(self, queue: Queue, value: dict[bytes, Any]) -> dict[str, Any] | None:
        names = queue.session_names()[value[b"skip"] : value[b"skip"] + value[b"top"]]
        return {"skip": value[b"skip"], "sessions-ids": names} if names else None

    def _reply(self, link: Link, request: AmqpMessage, answer: dict[str, Any], value: Any) -> None:
        """To the link that reads the same address; `request.properties` name the reply."""
        assert request.properties is not None
        reader = next(
            each for each in link.channel.links.values() if each.receives and each.path == link.path
        )
        reply = AmqpMessage(
            properties=Properties(correlation_id=request.properties.message_id),
            application_properties=answer,
            value=value,
        )
        output = bytearray()
        encode_payload(output, reply)
        link.channel.transfer(reader.handle, b"reply", bytes(output))


def keep_alive(broker: Broker) -> None:
    """Send an empty frame on each open connection, as often as its idle timeout asks for.

    Within a handshake, a client takes it for the answer that it waits for.
    """
    for connection in broker.connections:
        if connection.opened:
            connection.write(_EMPTY_FRAME)


def _is_service(path: str) -> bool:
    return path == "$cbs" or path.endswith("$management")


def _reply(link: Link, source: Any, properties: Any) -> Any:
    name, handle, role, send_mode, receive_mode = link.attach[:5]
    return _made(
        AttachFrame,
        name=name.decode(),
        handle=handle,
        role=not role,
        send_settle_mode=send_mode,
        rcv_settle_mode=receive_mode,
        source=source,
        target=Target(address=link.address) if source is not None else None,
        initial_delivery_count=0,
        max_message_size=LARGEST_MESSAGE,
        properties=properties,
    )


def _made(kind: Any, **fields: Any) -> Any:
    """A performative, null where no field is given."""
    return kind(**{**dict.fromkeys(kind._fields), **fields})


def _error(error: RefusedError) -> AMQPError:
    return AMQPError(condition=error.condition.encode(), description=str(error), info=None)


def _array(kind: str, values: list[int]) -> dict[str, Any]:
    return {TYPE: AMQPTypes.array, VALUE: [{TYPE: kind, VALUE: value} for value in values]}


def _is_signed(token: str, key: str) -> bool:
    """Whether a shared access signature is of our policy, made with the key, and still valid."""
    kind, _, fields = token.partition(" ")
    given = {name: values[-1] for name, values in parse_qs(fields).items()}
    if kind != "SharedAccessSignature" or given.get("skn") != POLICY or float(given["se"]) < time.time():
        return False
    text = f"{quote_plus(given['sr'])}\n{given['se']}".encode()
    signature = base64.b64encode(hmac.new(key.encode(), text, hashlib.sha256).digest()).decode()
    return hmac.compare_digest(signature, given["sig"])
