"""The links of one connection: queues to read and to write, and deliveries that are held."""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from proton import Delivery, Endpoint, Receiver, Sender, Terminus, symbol

from babelqueue_spark.bindings.artemis.options import ArtemisOptions
from babelqueue_spark.bindings.artemis.wire import AmqpError, Wire

BLOCKED = "blocked"
"""The name of the error when the broker takes no messages: AMQP has none."""

SIGN_SECONDS = 5.0
"""In which a broker that takes no messages gives a sign of life: it is full, and not silent."""

_DRAIN_SECONDS = 1.0
_QUEUE = symbol("queue")
_UNSENT = 1 << 18
"""Bytes that may wait to be sent."""


class QueueLink:
    """A link from a queue, and what came by it and is not settled.

    Attributes:
        name: names the link: what it delivered is nothing to another one.
        held: unsettled deliveries by number, in the order in which they came.
    """

    def __init__(self, receiver: Receiver, wire: Wire) -> None:
        self.name = uuid.uuid4().hex
        self.held: dict[int, Delivery] = {}
        self.receiver = receiver
        self._wire = wire
        self._last = 0

    @property
    def alive(self) -> bool:
        """Return whether what it holds is still ours."""
        return not self._wire.closed and bool(self.receiver.state & Endpoint.REMOTE_ACTIVE)

    def hold(self, delivery: Delivery) -> int:
        self._last += 1
        self.held[self._last] = delivery
        return self._last

    def settle(self, numbers: Sequence[int], state: int) -> None:
        for number in numbers:
            delivery = self.held.pop(number)
            delivery.update(state)
            delivery.settle()


class Connection(Wire):
    """An open connection with one session; `AmqpError` or `OSError` where something fails."""

    def __init__(self, options: ArtemisOptions) -> None:
        super().__init__(options)
        try:
            self._session = self.session()
        except BaseException:
            self.close()
            raise

    def link(self, address: str, *, browse: bool = False) -> QueueLink:
        """Open a link from a queue, which is created where it is missing; a browse leaves messages there."""
        receiver = self._session.receiver(uuid.uuid4().hex)
        receiver.source.address = address
        receiver.source.capabilities.put_object(_QUEUE)
        if browse:
            receiver.source.distribution_mode = Terminus.DIST_MODE_COPY
        self._attach(receiver)
        return QueueLink(receiver, self)

    def answers(self) -> QueueLink:
        """Return a link from a queue of the broker's naming, which goes with the link."""
        receiver = self._session.receiver(uuid.uuid4().hex)
        receiver.source.dynamic = True
        self._attach(receiver)
        return QueueLink(receiver, self)

    def sender(self, address: str, *, queue: bool = True) -> Sender:
        """Return a link to an address; to a `queue`, that is made where it is missing."""
        sender = self._session.sender(uuid.uuid4().hex)
        sender.target.address = address
        if queue:
            sender.target.capabilities.put_object(_QUEUE)
        self._attach(sender)
        return sender

    def fetch(self, link: QueueLink, most: int) -> list[tuple[int, bytes]]:
        """Messages that are ready, with the numbers of their deliveries; none when there are none.

        The broker may stop before it has sent all that are ready.
        """
        receiver, found = link.receiver, list[tuple[int, bytes]]()

        def collected() -> bool:
            while (delivery := receiver.current) is not None and not delivery.partial:
                found.append((link.hold(delivery), receiver.recv(delivery.pending) or b""))
                receiver.advance()
            return not (receiver.draining() or receiver.queued)

        receiver.drain(most)
        while not collected():
            seen = len(found)
            self._await_drained(lambda: collected() or len(found) > seen, receiver)  # noqa: B023
        return found

    def read(self, link: QueueLink, most: int) -> list[tuple[int, bytes]]:
        found = self.fetch(link, most)
        link.settle([number for number, _ in found], Delivery.ACCEPTED)
        return found

    def settle(self, link: QueueLink, numbers: Sequence[int], state: int) -> None:
        """Say what became of deliveries; returns when the broker knows."""
        link.settle(numbers, state)
        self._round_trip()

    def leave(self, link: QueueLink) -> None:
        """Close a link; what it holds goes back."""
        link.held.clear()
        self.detach(link.receiver)

    def detach(self, link: Receiver | Sender) -> None:
        link.close()
        self.wait(lambda: not link.state & Endpoint.REMOTE_ACTIVE)
        link.free()

    def send(self, sender: Sender, messages: Iterable[bytes]) -> list[AmqpError]:
        """Send with many messages on their way; returns when all are settled, with why some were refused."""
        waiting: deque[Delivery] = deque()
        refused: list[AmqpError] = []
        unsent = 0
        for number, message in enumerate(messages):
            self._await_credit(sender)
            waiting.append(sender.delivery(str(number)))
            sender.stream(message)
            sender.advance()
            unsent += len(message)
            if unsent > _UNSENT:
                self.flush()
                refused += _refused(waiting)
                unsent = 0
        while waiting:
            self.wait(lambda: bool(waiting[0].settled), sender)
            refused += _refused(waiting)
        return refused

    def _attach(self, link: Receiver | Sender) -> None:
        link.open()
        self.wait(lambda: not link.state & Endpoint.REMOTE_UNINIT)
        terminus = link.remote_source if link.is_receiver else link.remote_target
        if terminus.type == Terminus.UNSPECIFIED:  # the reason follows
            self.wait(lambda: bool(link.state & Endpoint.REMOTE_CLOSED))
        if link.state & Endpoint.REMOTE_CLOSED:
            link.close()
            raise AmqpError.of(link.remote_condition)

    def _await_drained(self, done: Callable[[], bool], receiver: Receiver) -> None:
        """Ask once more where nothing comes: the broker ignores a drain that comes too soon after its answer.

        It sends the answer before it notes that the link drains no more.
        """
        try:
            self.wait(done, receiver, _DRAIN_SECONDS, ends=False)
        except TimeoutError:
            receiver.drain(0)
            self.wait(done, receiver)

    def _await_credit(self, sender: Sender) -> None:
        if sender.credit > 0:
            return
        try:
            self.wait(lambda: sender.credit > 0, sender, ends=False)
        except TimeoutError:
            self._round_trip(SIGN_SECONDS)
            raise AmqpError(BLOCKED) from None

    def _round_trip(self, seconds: float | None = None) -> None:
        """Return when the broker has seen what was said before: it answers in order."""
        session = self.session(seconds)
        session.close()
        self.wait(lambda: bool(session.state & Endpoint.REMOTE_CLOSED), seconds=seconds)
        session.free()


def _refused(waiting: deque[Delivery]) -> Iterable[AmqpError]:
    """Settle the first deliveries, as far as the broker has settled them; why some were not accepted."""
    while waiting and waiting[0].settled:
        delivery = waiting.popleft()
        if delivery.remote_state != Delivery.ACCEPTED:
            yield AmqpError.of(delivery.remote.condition)
        delivery.settle()
