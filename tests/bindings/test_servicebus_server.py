"""The stand-in for Service Bus itself, by the real client: what the tests of the binding take for granted."""

from __future__ import annotations

import socket
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import (
    NEXT_AVAILABLE_SESSION,
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusMessageState,
    exceptions,
)

from babelqueue_spark.testing import eventually
from tests.bindings.servicebus_peers import client, content, receive, receiver, sender
from tests.servers.servicebus import ServiceBusServer

pytestmark = pytest.mark.server


@pytest.fixture
def bare(servicebus_server: ServiceBusServer) -> Iterator[ServiceBusClient]:
    with client(servicebus_server) as made:
        yield made


@pytest.fixture
def faulty() -> Iterator[ServiceBusServer]:
    """A server that this test alone may break."""
    with ServiceBusServer() as server:
        yield server


def send(bare: ServiceBusClient, queue: str, *messages: ServiceBusMessage) -> None:
    with sender(bare, queue) as opened:
        opened.send_messages(list(messages))


def texts(*names: str) -> list[ServiceBusMessage]:
    return [ServiceBusMessage(name) for name in names]


def test_no_empty_frame_comes_within_a_handshake(faulty: ServiceBusServer) -> None:
    """The client would take it for the header that it waits for, and fail for good."""
    header = b"AMQP\x03\x01\x00\x00"
    with socket.create_connection(("127.0.0.1", faulty.port), timeout=5) as connection:
        eventually(lambda: faulty.requests()["connections"])
        faulty.keep_alive()
        connection.sendall(header)
        assert connection.recv(8, socket.MSG_WAITALL) == header


class TestMessages:
    def test_a_batch_comes_in_order_with_all_its_parts(self, bare: ServiceBusClient, queue: str) -> None:
        whole = ServiceBusMessage(
            b"\x00\xff" * 60_000,
            subject="s",
            correlation_id="c",
            message_id="m",
            content_type="application/json",
            application_properties={"int": 1, "float": 1.5, "text": "ü", "none": None, "yes": True},
        )
        before = time.time()
        send(bare, queue, *texts("first", ""), whole)
        with receiver(bare, queue) as opened:
            first, empty, found = receive(opened, 3)
        assert [content(first), content(empty), content(found)] == [b"first", b"", b"\x00\xff" * 60_000]
        assert (found.subject, found.correlation_id, found.message_id) == ("s", "c", "m")
        assert found.application_properties == {
            b"int": 1, b"float": 1.5, b"text": "ü".encode(), b"none": None, b"yes": True,
        }  # fmt: skip
        assert [each.sequence_number for each in (first, empty, found)] == [1, 2, 3]
        assert found.delivery_count == 0
        assert before - 1 < found.enqueued_time_utc.timestamp() < time.time() + 1

    def test_a_thousand_messages(self, bare: ServiceBusClient, queue: str) -> None:
        send(bare, queue, *texts(*map(str, range(1_000))))
        with bare.get_queue_receiver(queue, prefetch_count=999, keep_alive=0) as opened:
            found = receive(opened, 1_000)
        assert [content(each) for each in found] == [b"%d" % number for number in range(1_000)]

    def test_a_message_larger_than_the_limit_is_refused(self, bare: ServiceBusClient, queue: str) -> None:
        with sender(bare, queue) as opened, pytest.raises(exceptions.MessageSizeExceededError):
            opened.send_messages(ServiceBusMessage(b"x" * 262_144))

    def test_each_subscription_gets_what_is_sent_to_its_topic(
        self, servicebus_server: ServiceBusServer, bare: ServiceBusClient, queue: str
    ) -> None:
        for name in ("a", "b"):
            servicebus_server.create(f"{queue}/Subscriptions/{name}")
        send(bare, queue, *texts("x"))
        for name in ("a", "b"):
            with bare.get_subscription_receiver(queue, name, prefetch_count=1, keep_alive=0) as opened:
                assert [content(each) for each in opened.receive_messages(1, 60)] == [b"x"]


class TestLocks:
    def test_a_locked_message_is_nobody_elses_and_gone_when_complete(
        self, servicebus_server: ServiceBusServer, bare: ServiceBusClient, queue: str
    ) -> None:
        send(bare, queue, *texts("a"))
        with receiver(bare, queue) as one, receiver(bare, queue) as other:
            [found] = one.receive_messages(1, 60)
            assert other.receive_messages(1, 0.3) == []
            assert servicebus_server.counts(queue) == {"ready": 0, "locked": 1, "all": 1}
            one.complete_message(found)
        assert servicebus_server.counts(queue)["all"] == 0

    def test_an_abandoned_message_comes_again_in_its_place_and_counted(
        self, bare: ServiceBusClient, queue: str
    ) -> None:
        send(bare, queue, *texts("a", "b"))
        with receiver(bare, queue) as opened:
            first, _ = receive(opened, 2)
            opened.abandon_message(first)
            [again] = opened.receive_messages(1, 60)
        assert (content(again), again.delivery_count) == (b"a", 1)

    def test_a_released_message_comes_again_uncounted(self, bare: ServiceBusClient, queue: str) -> None:
        send(bare, queue, *texts("a", "b"))
        with bare.get_queue_receiver(queue, prefetch_count=9, keep_alive=0) as opened:
            opened.receive_messages(1, 60)  # the other one is let go when the receiver closes
        with receiver(bare, queue) as opened:
            [again] = opened.receive_messages(1, 60)
        assert (content(again), again.delivery_count) == (b"b", 0)

    def test_a_lock_lapses_and_cannot_be_used_after_that(
        self, servicebus_server: ServiceBusServer, bare: ServiceBusClient, queue: str
    ) -> None:
        servicebus_server.create(queue, lock_seconds=0.5)
        sent = time.time()
        send(bare, queue, *texts("a"))
        with receiver(bare, queue) as opened:
            [late] = opened.receive_messages(1, 60)
            locked_until = late.locked_until_utc.timestamp()
            assert sent < locked_until < time.time() + 5
            [again] = eventually(lambda: opened.receive_messages(1, 1))
            assert time.time() >= locked_until
            assert again.delivery_count == 1
            with pytest.raises(exceptions.MessageLockLostError):
                opened.complete_message(late)

    def test_a_lock_is_renewed(self, bare: ServiceBusClient, queue: str) -> None:
        send(bare, queue, *texts("a"))
        with receiver(bare, queue) as opened:
            [found] = opened.receive_messages(1, 60)
            before = found.locked_until_utc
            assert opened.renew_message_lock(found) > before

    def test_one_delivery_too_many_makes_a_dead_letter(
        self, servicebus_server: ServiceBusServer, bare: ServiceBusClient, queue: str
    ) -> None:
        servicebus_server.create(queue, max_deliveries=2)
        send(bare, queue, *texts("a"))
        with receiver(bare, queue) as opened:
            for _ in range(2):
                [found] = opened.receive_messages(1, 60)
                opened.abandon_message(found)
            assert opened.receive_messages(1, 0.3) == []
        with receiver(bare, queue, sub_queue="deadletter") as opened:
            [dead] = opened.receive_messages(1, 60)
        assert (content(dead), dead.dead_letter_reason) == (b"a", "MaxDeliveryCountExceeded")

    def test_a_dead_letter_keeps_its_properties_beside_the_reason(
        self, bare: ServiceBusClient, queue: str
    ) -> None:
        long = {"TYPE": "LONG", "VALUE": 1 << 40}
        send(bare, queue, ServiceBusMessage("a", application_properties={"n": long}))
        with receiver(bare, queue) as opened:
            [found] = opened.receive_messages(1, 60)
            opened.dead_letter_message(found, reason="why", error_description="because")
        with receiver(bare, f"{queue}/$DeadLetterQueue") as opened:
            [dead] = opened.receive_messages(1, 60)
        assert (dead.dead_letter_reason, dead.dead_letter_error_description) == ("why", "because")
        assert dead.application_properties[b"n"] == 1 << 40


class TestSchedulesAndDuplicates:
    def test_a_scheduled_message_comes_when_it_is_due(self, bare: ServiceBusClient, queue: str) -> None:
        due = datetime.now(UTC) + timedelta(seconds=4)
        send(bare, queue, ServiceBusMessage("later", scheduled_enqueue_time_utc=due))
        with receiver(bare, queue) as opened:
            [found] = eventually(lambda: opened.receive_messages(1, 1))
            assert datetime.now(UTC) >= due
            assert content(found) == b"later"

    def test_a_schedule_is_cancelled(self, bare: ServiceBusClient, queue: str) -> None:
        with sender(bare, queue) as opened, receiver(bare, queue) as reader:
            due = datetime.now(UTC) + timedelta(hours=1)
            [number] = opened.schedule_messages(ServiceBusMessage("never"), due)
            [peeked] = reader.peek_messages(1)
            assert peeked.state == ServiceBusMessageState.SCHEDULED
            opened.cancel_scheduled_messages(number)
            assert reader.peek_messages(1) == []

    def test_duplicates_are_dropped_where_the_queue_detects_them(
        self, servicebus_server: ServiceBusServer, bare: ServiceBusClient, queue: str
    ) -> None:
        servicebus_server.create(queue, duplicate_seconds=60.0)
        for _ in range(2):
            send(bare, queue, ServiceBusMessage("a", message_id="1"), *texts("b"))
        assert servicebus_server.counts(queue)["all"] == 3

    def test_peek_shows_locked_messages_from_a_number_on(self, bare: ServiceBusClient, queue: str) -> None:
        send(bare, queue, *texts("a", "b", "c"))
        with receiver(bare, queue) as opened:
            opened.receive_messages(1, 60)
            assert [content(each) for each in opened.peek_messages(9, sequence_number=1)] == [
                b"a",
                b"b",
                b"c",
            ]
            assert [content(each) for each in opened.peek_messages(1, sequence_number=2)] == [b"b"]


class TestSessions:
    @pytest.fixture
    def sessions(self, servicebus_server: ServiceBusServer, queue: str) -> str:
        servicebus_server.create(queue, sessions=True)
        return queue

    def test_a_session_is_one_receivers(self, bare: ServiceBusClient, sessions: str) -> None:
        send(bare, sessions, *(ServiceBusMessage(f"{n}", session_id=f"s{n % 2}") for n in range(4)))
        seen: dict[str, list[bytes]] = {}
        with self._next(bare, sessions) as one, self._next(bare, sessions) as other:
            for opened in (one, other):
                seen[opened.session.session_id] = [content(each) for each in receive(opened, 2)]
            with pytest.raises(exceptions.OperationTimeoutError):
                self._next(bare, sessions, wait=1).__enter__()
        assert seen == {"s0": [b"0", b"2"], "s1": [b"1", b"3"]}

    def test_a_session_that_ends_gives_its_messages_back_uncounted(
        self, bare: ServiceBusClient, sessions: str
    ) -> None:
        send(bare, sessions, ServiceBusMessage("a", session_id="s"))
        for _ in range(2):
            with self._next(bare, sessions) as opened:
                [found] = opened.receive_messages(1, 60)
                assert found.delivery_count == 0

    def test_sessions_are_needed_or_out_of_place(
        self, bare: ServiceBusClient, sessions: str, queue: str
    ) -> None:
        with pytest.raises(exceptions.ServiceBusError, match="not-allowed"):
            send(bare, sessions, *texts("a"))
        with pytest.raises(exceptions.ServiceBusError, match="not-allowed"):
            receiver(bare, sessions).__enter__()
        with pytest.raises(exceptions.ServiceBusError, match="not-allowed"):
            self._next(bare, f"plain-{uuid.uuid4().hex}").__enter__()

    def _next(self, bare: ServiceBusClient, queue: str, wait: float = 60) -> Any:
        return receiver(bare, queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=wait)


class TestFaults:
    def test_a_wrong_key(self, faulty: ServiceBusServer, queue: str) -> None:
        url = faulty.url.replace(faulty.key, "another")
        with (
            ServiceBusClient.from_connection_string(url, retry_total=0) as bare,
            pytest.raises(exceptions.ServiceBusAuthenticationError),
        ):
            send(bare, queue, *texts("a"))

    def test_connections_are_dropped_and_the_client_goes_on(
        self, faulty: ServiceBusServer, queue: str
    ) -> None:
        with (
            ServiceBusClient.from_connection_string(faulty.url, retry_backoff_factor=0.01) as bare,
            sender(bare, queue) as opened,
        ):
            for name in ("a", "b"):
                opened.send_messages(ServiceBusMessage(name))
                faulty.drop_connections()
        assert faulty.counts(queue)["all"] == 2

    def test_an_answer_that_gets_lost_leaves_the_work_done(
        self, faulty: ServiceBusServer, queue: str
    ) -> None:
        faulty.fault(hang_up="send")
        with client(faulty) as bare, pytest.raises(exceptions.ServiceBusConnectionError):
            send(bare, queue, *texts("a"))
        assert faulty.counts(queue)["all"] == 1

    def test_throttling(self, faulty: ServiceBusServer, queue: str) -> None:
        faulty.fault(throttled=1)
        with client(faulty) as bare:
            with pytest.raises(exceptions.ServiceBusServerBusyError):
                send(bare, queue, *texts("a"))
            send(bare, queue, *texts("b"))
        assert faulty.counts(queue)["all"] == 1

    def test_slow_answers(self, faulty: ServiceBusServer, queue: str) -> None:
        with client(faulty) as bare, sender(bare, queue) as opened:
            faulty.fault(delay=0.5)
            start = time.monotonic()
            opened.send_messages(ServiceBusMessage("a"))
            assert time.monotonic() - start >= 0.5

    def test_an_entity_that_is_refused(self, faulty: ServiceBusServer, queue: str) -> None:
        faulty.fault(refused={queue: "amqp:not-found"})
        with client(faulty) as bare, pytest.raises(exceptions.MessagingEntityNotFoundError):
            receiver(bare, queue).__enter__()

    def test_messages_and_locks_outlive_a_restart(self, faulty: ServiceBusServer, queue: str) -> None:
        with client(faulty) as bare:
            send(bare, queue, *texts("a", "b"))
            receiver(bare, queue).receive_messages(1, 60)
        faulty.stop()
        faulty.start()
        assert faulty.counts(queue) == {"ready": 1, "locked": 1, "all": 2}
        faulty.lapse(queue)
        with client(faulty) as bare, receiver(bare, queue) as opened:
            found = receive(opened, 2)
        assert [(content(each), each.delivery_count) for each in found] == [(b"a", 1), (b"b", 0)]
