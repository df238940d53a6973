"""What only Service Bus does: its paths, properties, locks, sessions, duplicates, credentials and errors."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pyarrow as pa
import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage

from babelqueue_spark.bindings.contract import BindingConfig
from babelqueue_spark.bindings.servicebus import ServiceBusBinding
from babelqueue_spark.bindings.servicebus.options import ServiceBusOptions
from babelqueue_spark.envelope import validate
from babelqueue_spark.errors import BrokerError, BrokerUnreachableError, OptionError, QueueForbiddenError
from babelqueue_spark.testing import (
    MIB,
    SECRET,
    Proxy,
    assert_empty,
    assert_safe,
    await_backlog,
    claim_some,
    claim_until_empty,
    eventually,
    joined,
    outgoing,
    take,
    through_ipc,
    unless_busy,
)
from tests.bindings.servicebus_peers import (
    NO_LIMIT,
    binding,
    bodies,
    client,
    content,
    receive,
    receiver,
    sender,
)
from tests.servers.certificates import Certificates
from tests.servers.servicebus import ServiceBusServer
from tests.servers.servicebus.connection import JWT
from tests.streams import envelope

pytestmark = pytest.mark.server


@pytest.fixture
def bare(servicebus_server: ServiceBusServer) -> Iterator[ServiceBusClient]:
    with client(servicebus_server) as made:
        yield made


@pytest.fixture
def bus(servicebus_server: ServiceBusServer) -> Iterator[ServiceBusBinding]:
    with binding(servicebus_server) as made:
        yield made


@pytest.fixture
def faulty() -> Iterator[ServiceBusServer]:
    """A server that this test alone may break."""
    with ServiceBusServer() as server:
        yield server


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def send(bare: ServiceBusClient, queue: str, *messages: Any) -> None:
    with sender(bare, queue) as opened:
        for message in messages:
            opened.send_messages(message)


class TestWhatIsSent:
    def sent(
        self, bus: ServiceBusBinding, bare: ServiceBusClient, queue: str, batch: pa.RecordBatch
    ) -> list[Any]:
        bus.publish(queue, batch)
        with bare.get_queue_receiver(queue, prefetch_count=len(batch), keep_alive=0) as opened:
            return receive(opened, len(batch))

    def test_all_that_the_contract_names_and_headers_beside_it(
        self, bus: ServiceBusBinding, bare: ServiceBusClient, queue: str
    ) -> None:
        body = envelope(1, queue)
        whole = json.loads(body)
        headers = {"traceparent": "00-1", "bq-source-lang": "cobol"}
        [found] = self.sent(bus, bare, queue, outgoing([body], headers=[headers]))
        assert content(found) == body
        assert (found.subject, found.correlation_id, found.message_id, found.content_type) == (
            whole["job"], whole["trace_id"], whole["meta"]["id"], "application/json",
        )  # fmt: skip
        assert found.application_properties == {
            b"traceparent": b"00-1",
            b"bq-schema-version": 1,
            b"bq-source-lang": b"python",
            b"bq-created-at": whole["meta"]["created_at"],
        }

    @pytest.mark.parametrize(
        ("given", "sent"),
        [
            ("2", 2),
            ("1", 1),
            ("two", b"two"),
            (" ", 1),
            (" 1", b" 1"),
            ("01", b"01"),
            ("\u0661", "\u0661".encode()),
        ],
    )
    def test_a_version_that_is_given_stays(
        self, bus: ServiceBusBinding, bare: ServiceBusClient, queue: str, given: str, sent: Any
    ) -> None:
        batch = outgoing([envelope(1, queue)], headers=[{"bq-schema-version": given}])
        [found] = self.sent(bus, bare, queue, batch)
        assert found.application_properties[b"bq-schema-version"] == sent

    def test_a_retry_has_a_message_id_of_its_own(
        self, bus: ServiceBusBinding, bare: ServiceBusClient, queue: str
    ) -> None:
        body = envelope(1, attempts=2)
        [found] = self.sent(bus, bare, queue, outgoing([body]))
        assert found.message_id == f"{json.loads(body)['meta']['id']}-2"

    @pytest.mark.parametrize(
        "body",
        [
            b"not json",
            b"[1]",
            b'{"job":5,"trace_id":[],"meta":"x","attempts":"x","data":{}}',
            b'{"job":"urn:x","meta":{"id":7,"schema_version":1.5,"created_at":1e300},"data":{}}',
            b'{"job":"urn:x","trace_id":"t","meta":{"id":"'
            + b"i" * 200
            + b'","schema_version":1},"data":{}}',
            b"\xff\xfe",
        ],
    )
    def test_no_body_stops_a_publish(self, bus: ServiceBusBinding, queue: str, body: bytes) -> None:
        bus.publish(queue, outgoing([body]))
        assert bodies(take(bus, queue, 1)) == [body]

    def test_batches_are_as_large_as_fits(
        self, servicebus_server: ServiceBusServer, bus: ServiceBusBinding, queue: str
    ) -> None:
        sent = [bytes([65 + number]) * 100_000 for number in range(5)]
        before = servicebus_server.requests().get("send", 0)
        assert bus.publish(queue, outgoing(sent)) == 5
        assert servicebus_server.requests()["send"] - before == 3
        assert claim_until_empty(bus, queue, 5) == sent

    def test_a_batch_may_be_as_full_as_can_be(self, bus: ServiceBusBinding, queue: str) -> None:
        """The client adds to a batch the ids of its first message, which it has not measured."""
        for filler in range(0, 200, 20):
            sent = [envelope(1), b"x" * filler, *[b"y" * 120] * 1_700]
            assert bus.publish(queue, outgoing(sent)) == len(sent)

    def test_a_message_that_is_too_large_stops_the_batch_before_it_is_sent(
        self, bus: ServiceBusBinding, queue: str
    ) -> None:
        large = envelope(1, data={"x": "x" * 262_144})
        with pytest.raises(BrokerError, match=r"row 1 \(meta.id .*larger than 261,120 bytes"):
            bus.publish(queue, outgoing([b"good", large]))
        assert_empty(bus, queue)

    @pytest.mark.parametrize("key", ["", "x" * 129])
    def test_a_key_that_cannot_be_a_session(self, bus: ServiceBusBinding, queue: str, key: str) -> None:
        with pytest.raises(BrokerError, match="row 0 cannot be sent: its key"):
            bus.publish(queue, outgoing([b"x"], keys=[key]))

    def test_a_delay_beyond_the_calendar(self, bus: ServiceBusBinding, queue: str) -> None:
        with pytest.raises(BrokerError, match="row 0 cannot be sent: its delay"):
            bus.publish(queue, outgoing([b"x"], delays=[9_000 * 365 * 86_400_000]))

    def test_nothing_is_sent_to_the_native_dead_letters(self, bus: ServiceBusBinding, queue: str) -> None:
        with pytest.raises(OptionError, match="write to a queue of your own"):
            bus.publish(f"{queue}/$DeadLetterQueue", outgoing([b"x"]))

    def test_it_cannot_publish_once(self, bus: ServiceBusBinding, queue: str) -> None:
        with pytest.raises(BrokerError, match="without a key"):
            bus.publish(queue, outgoing([b"x"]), idempotency_key="m")

    def test_a_replayed_batch_is_dropped_by_duplicate_detection_and_a_retry_is_not(
        self, servicebus_server: ServiceBusServer, bus: ServiceBusBinding, queue: str
    ) -> None:
        servicebus_server.create(queue, duplicate_seconds=60.0)
        first = envelope(1)
        retry = json.dumps({**json.loads(first), "attempts": 1}).encode()
        for body in (first, first, retry, retry):
            bus.publish(queue, outgoing([body]))
        assert claim_until_empty(bus, queue, 2) == [first, retry]

    def test_how_long_a_queue_remembers_ids_is_what_the_option_says(
        self, servicebus_server: ServiceBusServer, bus: ServiceBusBinding, queue: str
    ) -> None:
        assert (bus.duplicate_window(queue), bus.capabilities.duplicate_detection) == (0.0, False)
        config = BindingConfig(url=servicebus_server.url, client_options={"duplicate_window": "60"})
        with ServiceBusBinding(config) as told:
            assert (told.duplicate_window(queue), told.capabilities.duplicate_detection) == (60.0, True)


class TestWhatIsRead:
    def test_a_subscription(
        self, servicebus_server: ServiceBusServer, bus: ServiceBusBinding, queue: str
    ) -> None:
        paths = [f"{queue}/Subscriptions/{name}" for name in ("audit", "billing")]
        for path in paths:
            servicebus_server.create(path)
        bus.publish(queue, outgoing([b"a", b"b"]))
        for path in paths:
            assert claim_until_empty(bus, path, 2) == [b"a", b"b"]

    def test_the_native_dead_letters_with_their_reason(
        self, bus: ServiceBusBinding, bare: ServiceBusClient, queue: str
    ) -> None:
        bus.publish(queue, outgoing([b"x"]))
        with receiver(bare, queue) as opened:
            [found] = opened.receive_messages(1, 60)
            opened.dead_letter_message(found, reason="why", error_description="because")
        dead = f"{queue}/$DeadLetterQueue"
        await_backlog(bus, dead, 1)
        claimed = take(bus, dead, 1)
        assert bodies(claimed) == [b"x"]
        assert dict(claimed.column("headers").to_pylist()[0]) == {
            "DeadLetterReason": "why", "DeadLetterErrorDescription": "because",
        }  # fmt: skip
        assert bus.acknowledge(dead, claimed).to_pylist() == [True]
        assert_empty(bus, dead)

    def test_properties_of_any_type_are_text(
        self, bus: ServiceBusBinding, bare: ServiceBusClient, queue: str
    ) -> None:
        properties: dict[Any, Any] = {
            "int": -3, "long": {"TYPE": "LONG", "VALUE": 1 << 40}, "float": 1.5, "yes": True, "no": False,
            "none": None, "bytes": {"TYPE": "BINARY", "VALUE": b"\xff"}, "text": "ü",
        }  # fmt: skip
        send(bare, queue, ServiceBusMessage("x", application_properties=properties))
        assert sorted(take(bus, queue, 1).column("headers").to_pylist()[0]) == sorted(
            {
                "int": "-3", "long": "1099511627776", "float": "1.5", "yes": "true", "no": "false",
                "none": None, "text": "ü",
            }.items()
        )  # fmt: skip

    @pytest.mark.parametrize(
        ("sent", "expected"),
        [
            (ServiceBusMessage("text"), b"text"),
            (AmqpAnnotatedMessage(data_body=[b"two ", b"sections"]), b"two sections"),
            (AmqpAnnotatedMessage(value_body="value"), b"value"),
        ],
    )
    def test_bodies_of_other_senders(
        self, bus: ServiceBusBinding, bare: ServiceBusClient, queue: str, sent: Any, expected: bytes
    ) -> None:
        send(bare, queue, sent)
        assert bodies(take(bus, queue, 1)) == [expected]

    def test_a_body_that_was_encoded_twice_is_a_bad_row_with_its_bytes(
        self, bus: ServiceBusBinding, bare: ServiceBusClient, queue: str
    ) -> None:
        """As the Node SDK's adapter sends it: a JSON string that holds the envelope."""
        twice = json.dumps(envelope(1).decode())
        send(bare, queue, ServiceBusMessage(twice))
        claimed = take(bus, queue, 1)
        assert bodies(claimed) == [twice.encode()]
        assert validate(claimed.column("body")).to_pylist() == ["poison"]

    @pytest.mark.parametrize(
        ("queue", "name"),
        [
            ("orders", "orders"),
            ("shop/orders", "shop/orders"),
            ("orders/$DeadLetterQueue", "orders"),
            ("events/Subscriptions/audit", "events.audit"),
            ("events/subscriptions/audit/$deadletterqueue", "events.audit"),
        ],
    )
    def test_dead_letter_names(self, queue: str, name: str) -> None:
        assert ServiceBusBinding.dead_letter_name(queue, "babelqueue") == f"{name}.dlq"
        assert ServiceBusBinding.dead_letter_name(queue, "initphp") == f"{name}.failed"


class TestClaims:
    def test_a_claim_leaves_no_credit_behind(
        self, servicebus_server: ServiceBusServer, bus: ServiceBusBinding, queue: str
    ) -> None:
        """Else what comes later would be locked for a reader that does not look."""
        bus.publish(queue, outgoing([b"a"]))
        assert bodies(claim_some(bus, queue)) == [b"a"]
        bus.publish(queue, outgoing([b"b"]))
        assert servicebus_server.counts(queue) == {"ready": 1, "locked": 1, "all": 2}

    def test_what_the_bound_of_bytes_leaves_in_the_buffer_goes_back_uncounted(
        self, servicebus_server: ServiceBusServer, bus: ServiceBusBinding, queue: str
    ) -> None:
        bus.publish(queue, outgoing([b"x" * 1_000] * 10))
        claimed = claim_some(bus, queue, max_bytes=2_500).num_rows
        assert claimed <= 2
        assert take(bus, queue, 10 - claimed).column("count").to_pylist() == [1] * (10 - claimed)

    def test_what_turns_out_too_large_is_given_back(self, bus: ServiceBusBinding, queue: str) -> None:
        small, large = [b"s"] * 2, [b"l" * 20_000] * 3
        bus.publish(queue, outgoing(small + large))
        claimed = bodies(claim_some(bus, queue, messages=5, max_bytes=1_000))
        assert len(claimed) <= len(small)
        assert claimed + bodies(take(bus, queue, 5 - len(claimed))) == small + large

    def test_several_windows(self, servicebus_server: ServiceBusServer, queue: str) -> None:
        with binding(servicebus_server, prefetch="7") as bus:
            bus.publish(queue, outgoing(numbered(100)))
            assert bodies(take(bus, queue, 50)) == numbered(50)
            assert servicebus_server.counts(queue) == {"ready": 50, "locked": 50, "all": 100}

    def test_what_lapses_during_a_claim_is_claimed_once(
        self, servicebus_server: ServiceBusServer, queue: str
    ) -> None:
        servicebus_server.create(queue, lock_seconds=0.05, max_deliveries=1_000)
        with binding(servicebus_server, prefetch="20") as bus:
            bus.publish(queue, outgoing(numbered(1_000)))

            def claimed_once() -> bool:
                claimed = bodies(bus.claim(queue, 1_000, NO_LIMIT))
                assert len(claimed) == len(set(claimed))
                return 20 <= len(claimed) < 1_000

            eventually(claimed_once)

    def test_a_lock_tells_how_long_claims_last(
        self, servicebus_server: ServiceBusServer, bus: ServiceBusBinding, queue: str
    ) -> None:
        servicebus_server.create(queue, lock_seconds=60.0)
        bus.publish(queue, outgoing(numbered(2)))
        assert bus.lease == 0
        take(bus, queue, 2)
        assert 30 < bus.lease <= 60

    def test_a_lost_connection_is_an_error_and_the_next_claim_goes_on(
        self, faulty: ServiceBusServer, queue: str
    ) -> None:
        with binding(faulty, retry_total="0") as bus:
            bus.publish(queue, outgoing(numbered(3)))
            take(bus, queue, 1)
            faulty.drop_connections()
            with pytest.raises(BrokerError, match="connection was lost"):
                bus.claim(queue, 1, MIB)
            assert bodies(take(bus, queue, 1)) == [b"1"]

    def test_slow_answers_change_nothing(self, faulty: ServiceBusServer, queue: str) -> None:
        with binding(faulty) as bus:
            bus.publish(queue, outgoing(numbered(20)))
            bus.backlog(queue)
            faulty.fault(delay=0.3)
            claimed = take(bus, queue, 20)
            assert bodies(claimed) == numbered(20)
            assert bus.acknowledge(queue, claimed).true_count == 20


class TestReceipts:
    def test_hundreds_are_settled_in_one_request(
        self, servicebus_server: ServiceBusServer, bus: ServiceBusBinding, queue: str
    ) -> None:
        bus.publish(queue, outgoing(numbered(1_200)))
        claimed = take(bus, queue, 1_200)
        before = servicebus_server.requests().get("update-disposition", 0)
        assert bus.acknowledge(queue, claimed).true_count == 1_200
        assert servicebus_server.requests()["update-disposition"] - before == 3
        assert_empty(bus, queue)

    def test_one_lost_lock_among_many_is_found(
        self, servicebus_server: ServiceBusServer, bus: ServiceBusBinding, bare: ServiceBusClient, queue: str
    ) -> None:
        """The first of them, so that the service has not settled any when it finds out."""
        bus.publish(queue, outgoing(numbered(64)))
        claimed = take(bus, queue, 64)
        bus.acknowledge(queue, claimed.slice(0, 1))
        assert bus.acknowledge(queue, claimed).to_pylist() == [False] + [True] * 63
        assert_empty(bus, queue)

    def test_what_was_not_confirmed_is_false_even_where_it_was_done(
        self, bus: ServiceBusBinding, queue: str
    ) -> None:
        """The service stops at the lost lock; who says false is delivered again or gone, and nothing is lost."""
        bus.publish(queue, outgoing(numbered(64)))
        claimed = take(bus, queue, 64)
        bus.acknowledge(queue, claimed.slice(40, 1))
        assert bus.acknowledge(queue, claimed).true_count == 0

    def test_an_answer_that_was_lost_is_false_and_the_messages_are_gone(
        self, faulty: ServiceBusServer, queue: str
    ) -> None:
        with binding(faulty) as bus:
            bus.publish(queue, outgoing(numbered(10)))
            claimed = take(bus, queue, 10)
            faulty.fault(hang_up="update-disposition")
            assert bus.acknowledge(queue, claimed).to_pylist() == [False] * 10
            assert_empty(bus, queue)

    def test_a_receipt_outlives_all_connections(self, faulty: ServiceBusServer, queue: str) -> None:
        with binding(faulty) as bus:
            bus.publish(queue, outgoing(numbered(10)))
            claimed = take(bus, queue, 10)
            faulty.drop_connections()
            assert bus.acknowledge(queue, claimed).true_count == 10

    def test_throttling_is_waited_for(self, faulty: ServiceBusServer, queue: str) -> None:
        with binding(faulty) as bus:
            bus.publish(queue, outgoing(numbered(10)))
            claimed = take(bus, queue, 10)
            faulty.fault(throttled=1)
            assert bus.acknowledge(queue, claimed).true_count == 10


class TestBacklog:
    def test_scheduled_messages_are_not_in_it(self, bus: ServiceBusBinding, queue: str) -> None:
        bus.publish(queue, outgoing(numbered(3), delays=[60_000, None, 60_000]))
        await_backlog(bus, queue, 1)
        assert bodies(joined(bus.browse(queue))) == [b"1"]

    @pytest.mark.parametrize("count", [249, 250, 251, 1_249, 1_250, 6_000])
    def test_beyond_a_page_sequence_numbers_are_counted(
        self, bus: ServiceBusBinding, queue: str, count: int
    ) -> None:
        bus.publish(queue, outgoing(numbered(count)))
        assert bus.backlog(queue) == count

    def test_what_others_have_locked_is_in_it(
        self, servicebus_server: ServiceBusServer, bus: ServiceBusBinding, queue: str
    ) -> None:
        bus.publish(queue, outgoing(numbered(3)))
        take(bus, queue, 1)
        assert bus.backlog(queue) == 2
        with binding(servicebus_server) as other:
            assert other.backlog(queue) == 3

    def test_an_idle_look_is_one_request_on_one_connection(
        self, faulty: ServiceBusServer, queue: str
    ) -> None:
        with binding(faulty) as bus:
            for _ in range(5):
                bus.backlog(queue)
            assert faulty.requests() == {"peek-message": 5, "connections": 1}


class TestSessions:
    @pytest.fixture
    def sessions(self, servicebus_server: ServiceBusServer, queue: str) -> str:
        servicebus_server.create(queue, sessions=True)
        return queue

    @pytest.fixture
    def bus(self, servicebus_server: ServiceBusServer) -> Iterator[ServiceBusBinding]:
        with binding(servicebus_server, sessions="true", max_wait_time="0.5") as made:
            yield made

    @pytest.fixture
    def patient(self, servicebus_server: ServiceBusServer) -> Iterator[ServiceBusBinding]:
        with binding(servicebus_server, sessions="true", max_wait_time="30") as made:
            yield made

    def test_each_claim_is_of_one_session_and_in_order(self, bus: ServiceBusBinding, sessions: str) -> None:
        keys = [f"customer-{number % 3}" for number in range(30)]
        bus.publish(sessions, outgoing(numbered(30), keys=keys))
        seen: dict[str, list[bytes]] = {}
        while sum(map(len, seen.values())) < 30:
            claimed = claim_some(bus, sessions)
            [key] = set(claimed.column("key").to_pylist())
            seen.setdefault(key, []).extend(bodies(claimed))
            assert bus.acknowledge(sessions, claimed).true_count == claimed.num_rows
        assert seen == {f"customer-{n}": numbered(30)[n::3] for n in range(3)}
        assert_empty(bus, sessions)

    def test_messages_without_a_key_have_the_queues_name_or_what_is_configured(
        self, servicebus_server: ServiceBusServer, bus: ServiceBusBinding, sessions: str
    ) -> None:
        bus.publish(sessions, outgoing([b"a"]))
        assert take(bus, sessions, 1).column("key").to_pylist() == [sessions]
        with binding(servicebus_server, sessions="1", session_id="eu") as other:
            other.publish(sessions, outgoing([b"b"]))
            assert take(other, sessions, 1).column("key").to_pylist() == ["eu"]

    def test_a_session_is_ours_until_all_of_it_is_settled(
        self,
        servicebus_server: ServiceBusServer,
        patient: ServiceBusBinding,
        sessions: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr("babelqueue_spark.bindings.servicebus.binding._NEXT_SECONDS", 30)
        patient.publish(sessions, outgoing(numbered(4), keys=["s"] * 4))
        first = patient.claim(sessions, 2, MIB)
        with binding(servicebus_server, sessions="1", max_wait_time="0.5") as other:
            assert other.claim(sessions, 4, MIB).num_rows == 0
            assert bodies(patient.claim(sessions, 1, MIB)) == [b"2"]
            patient.acknowledge(sessions, first)
            assert other.claim(sessions, 4, MIB).num_rows == 0
            patient.close()
            again = take(other, sessions, 2)
            assert bodies(again) == [b"2", b"3"]
            assert again.column("redelivered").to_pylist() == [None, None]

    def test_released_messages_are_everybodys_at_once(
        self, servicebus_server: ServiceBusServer, bus: ServiceBusBinding, sessions: str
    ) -> None:
        bus.publish(sessions, outgoing([b"a"], keys=["s"]))
        bus.release(sessions, take(bus, sessions, 1))
        with binding(servicebus_server, sessions="1") as other:
            again = take(other, sessions, 1)
        assert (bodies(again), again.column("count").to_pylist()) == ([b"a"], [2])

    def test_receipts_end_with_their_session(
        self, servicebus_server: ServiceBusServer, bus: ServiceBusBinding, sessions: str
    ) -> None:
        bus.publish(sessions, outgoing([b"a"], keys=["s"]))
        claimed = through_ipc(take(bus, sessions, 1))
        assert not bus.capabilities.durable_receipts
        bus.close()
        with binding(servicebus_server, sessions="1") as other:
            assert other.acknowledge(sessions, claimed).to_pylist() == [False]
            other.release(sessions, claimed)
            assert other.acknowledge(sessions, take(other, sessions, 1)).to_pylist() == [True]

    def test_a_session_lock_that_lapsed_is_false(
        self, servicebus_server: ServiceBusServer, bus: ServiceBusBinding, sessions: str
    ) -> None:
        bus.publish(sessions, outgoing([b"a"], keys=["s"]))
        claimed = take(bus, sessions, 1)
        servicebus_server.lapse(sessions)
        assert bus.acknowledge(sessions, claimed).to_pylist() == [False]
        assert bus.acknowledge(sessions, take(bus, sessions, 1)).to_pylist() == [True]

    @pytest.mark.parametrize("after", [0, 500])
    def test_a_silent_service_is_not_one_without_sessions(
        self, servicebus_server: ServiceBusServer, sessions: str, after: int
    ) -> None:
        """Silent from the start, and where it would say which session is free."""
        options = {"sessions": "1", "try_timeout": "1s", "retry_total": "0"}
        with Proxy("127.0.0.1", servicebus_server.port) as proxy:
            url = servicebus_server.url.replace(servicebus_server.address, proxy.address)
            with ServiceBusBinding(BindingConfig(url=url, client_options=options)) as bus:
                assert unless_busy(lambda: bus.claim(sessions, 1, MIB)).num_rows == 0
                proxy.freeze(after)
                with pytest.raises(BrokerUnreachableError, match="did not answer in time"):
                    bus.claim(sessions, 1, MIB)

    def test_a_session_is_asked_for_again_where_the_connection_ends_in_its_handshake(
        self, servicebus_server: ServiceBusServer, bus: ServiceBusBinding, sessions: str
    ) -> None:
        bus.publish(sessions, outgoing([b"a"], keys=["s"]))
        with Proxy("127.0.0.1", servicebus_server.port) as proxy:
            url = servicebus_server.url.replace(servicebus_server.address, proxy.address)
            with ServiceBusBinding(BindingConfig(url=url, client_options={"sessions": "1"})) as other:
                proxy.hang_up(1)
                assert take(other, sessions, 1).column("body").to_pylist() == [b"a"]

    def test_a_claim_holds_no_more_than_so_many_sessions(
        self, patient: ServiceBusBinding, sessions: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("babelqueue_spark.bindings.servicebus.binding._MOST_SESSIONS", 2)
        patient.publish(sessions, outgoing(numbered(3), keys=["a", "b", "c"]))
        claimed = [patient.claim(sessions, 5, MIB) for _ in range(3)]
        assert [each.num_rows for each in claimed] == [1, 1, 0]
        patient.acknowledge(sessions, claimed[0])
        assert patient.claim(sessions, 5, MIB).num_rows == 1

    def test_the_option_has_to_fit_the_queue(
        self, servicebus_server: ServiceBusServer, bus: ServiceBusBinding, sessions: str, queue: str
    ) -> None:
        with binding(servicebus_server, retry_total="0") as plain:
            for verb in (
                lambda: plain.claim(sessions, 1, MIB),
                lambda: plain.publish(sessions, outgoing([b"x"])),
            ):
                with pytest.raises(BrokerError, match=r"set servicebus\.sessions") as caught:
                    verb()
                assert_safe(caught.value)
        with pytest.raises(BrokerError, match=r"set servicebus\.sessions"):
            bus.claim(f"{queue}-plain", 1, MIB)


class TestConnections:
    def test_websockets(self, queue: str) -> None:
        with (
            ServiceBusServer(websocket=True) as server,
            binding(server, transport="websocket", custom_endpoint_address=server.websocket_address) as bus,
        ):
            bus.publish(queue, outgoing(numbered(300)))
            claimed = take(bus, queue, 300)
            assert bodies(claimed) == numbered(300)
            assert bus.acknowledge(queue, claimed).true_count == 300

    @pytest.mark.parametrize("after", [0, 260])
    def test_a_silent_service_behind_websockets(self, queue: str, after: int) -> None:
        """Silent before it has switched to WebSockets, and within AMQP's handshake."""
        with (
            ServiceBusServer(websocket=True) as server,
            Proxy("127.0.0.1", int(server.websocket_address.rpartition(":")[2])) as proxy,
            binding(
                server,
                transport="websocket",
                custom_endpoint_address=f"sb://{proxy.address}",
                try_timeout="1s",
                retry_total="0",
            ) as bus,
        ):
            proxy.freeze(after)
            with pytest.raises(BrokerUnreachableError, match="Service Bus at ") as caught:
                bus.backlog(queue)
        assert_safe(caught.value)

    def test_azure_ad_over_tls(self, tmp_path: Path, queue: str, monkeypatch: pytest.MonkeyPatch) -> None:
        certificates = Certificates(tmp_path)
        options = {"connection_verify": str(certificates.ca), "retry_total": "0"}
        with ServiceBusServer(tls=certificates) as server, identity_endpoint(JWT) as endpoint:
            monkeypatch.setenv("IDENTITY_ENDPOINT", endpoint)
            monkeypatch.setenv("IDENTITY_HEADER", SECRET)
            config = BindingConfig(
                url="sb://127.0.0.1",
                client_options={**options, "custom_endpoint_address": server.secure_address},
            )
            with ServiceBusBinding(config) as bus:
                bus.publish(queue, outgoing([b"x"]))
                assert bus.acknowledge(queue, take(bus, queue, 1)).to_pylist() == [True]

    def test_a_user_that_azure_ad_does_not_know(
        self, tmp_path: Path, queue: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        certificates = Certificates(tmp_path)
        with ServiceBusServer(tls=certificates) as server, identity_endpoint("other") as endpoint:
            monkeypatch.setenv("IDENTITY_ENDPOINT", endpoint)
            monkeypatch.setenv("IDENTITY_HEADER", SECRET)
            options = {
                "connection_verify": str(certificates.ca),
                "custom_endpoint_address": server.secure_address,
                "retry_total": "0",
            }
            with (
                ServiceBusBinding(BindingConfig(url="sb://127.0.0.1", client_options=options)) as bus,
                pytest.raises(BrokerError, match="it refused the credentials") as caught,
            ):
                bus.publish(queue, outgoing([b"x"]))
        assert_safe(caught.value)


@contextmanager
def identity_endpoint(token: str) -> Iterator[str]:
    """The URL of what answers a managed identity on a host of Azure, with a token."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            expires = str(int(time.time()) + 3_600)
            answer = {"access_token": token, "expires_on": expires, "resource": "x", "token_type": "Bearer"}
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/msi/token"
        server.shutdown()
        thread.join()


class TestErrors:
    @pytest.mark.parametrize(
        ("condition", "advice"),
        [
            ("amqp:not-found", "it does not exist: create it"),
            ("amqp:unauthorized-access", "allow Listen to read and Send to write"),
            ("com.microsoft:entity-disabled", "it is disabled"),
            ("amqp:resource-limit-exceeded", "it is full"),
            ("com.microsoft:server-busy", "it throttles requests"),
            ("com.microsoft:unheard-of", r"ServiceBusError \(com\.microsoft:unheard-of\)"),
        ],
    )
    def test_what_is_refused_says_what_to_do(
        self, faulty: ServiceBusServer, queue: str, condition: str, advice: str
    ) -> None:
        faulty.fault(refused={queue: condition})
        with binding(faulty, retry_total="0") as bus:
            for verb in (
                lambda: bus.claim(queue, 1, MIB),
                lambda: bus.publish(queue, outgoing([b"x"])),
            ):
                with pytest.raises(
                    BrokerError, match=rf"Service Bus at {faulty.address}: queue '{queue}': .*{advice}"
                ) as caught:
                    verb()
                assert_safe(caught.value)
                assert isinstance(caught.value, QueueForbiddenError) == ("unauthorized" in condition)

    def test_a_wrong_key(self, servicebus_server: ServiceBusServer, queue: str) -> None:
        url = servicebus_server.url.replace(servicebus_server.key, SECRET[::-1])
        options = {"retry_total": "0"}
        with (
            ServiceBusBinding(BindingConfig(url=url, client_options=options)) as bus,
            pytest.raises(BrokerError, match="it refused the credentials") as caught,
        ):
            bus.backlog(queue)
        assert_safe(caught.value)
        assert SECRET[::-1] not in str(caught.value)

    def test_another_queue_than_that_of_the_connection_string(
        self, servicebus_server: ServiceBusServer, queue: str
    ) -> None:
        url = f"{servicebus_server.url};EntityPath={queue}"
        with ServiceBusBinding(BindingConfig(url=url)) as bus:
            assert bus.publish(queue, outgoing([b"x"])) == 1
            with pytest.raises(BrokerError) as caught:
                bus.publish(f"{queue}-other", outgoing([b"x"]))
        assert_safe(caught.value)


class TestOptions:
    KEYS = f"SharedAccessKeyName=n;SharedAccessKey={SECRET}"

    def parsed(self, url: str, visibility: float | None = None, **options: str) -> ServiceBusOptions:
        config = BindingConfig(url=url, visibility_timeout=visibility, client_options=options)
        return ServiceBusOptions.parse(config)

    @pytest.mark.parametrize(
        ("url", "host"),
        [
            (f"Endpoint=sb://shop.servicebus.windows.net/;{KEYS}", "shop.servicebus.windows.net"),
            (f"{KEYS};Endpoint=sb://127.0.0.1:5672;UseDevelopmentEmulator=true;", "127.0.0.1:5672"),
            ("Endpoint=sb://a.b/;SharedAccessSignature=SharedAccessSignature sr=x&sig=y", "a.b"),
        ],
    )
    def test_connection_strings(self, url: str, host: str) -> None:
        options = self.parsed(url)
        assert (options.connection_string, options.namespace) == (url, host)
        assert SECRET not in repr(options)

    @pytest.mark.parametrize("scheme", ["sb", "servicebus", "azureservicebus"])
    def test_the_sdks_url_form(self, scheme: str) -> None:
        options = self.parsed(f"{scheme}://shop.servicebus.windows.net")
        assert (options.connection_string, options.namespace) == (None, "shop.servicebus.windows.net")

    @pytest.mark.parametrize(
        "url",
        [
            "redis://x",
            "sb://",
            f"sb://user:{SECRET}@host",
            f"Endpoint=sb://host;SharedAccessKey={SECRET}",
            f"SharedAccessKeyName=n;SharedAccessKey={SECRET}",
            "Endpoint=sb://host/",
            SECRET,
        ],
    )
    def test_a_url_that_cannot_be_read(self, url: str) -> None:
        with pytest.raises(OptionError, match="give a connection string") as caught:
            self.parsed(url)
        assert_safe(caught.value)

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("transport", "http"), ("sessions", "perhaps"), ("session_id", ""), ("prefetch", "0"),
            ("prefetch", "50001"), ("max_wait_time", "inf"), ("retry_total", "-1"), ("try_timeout", "soon"),
        ],
    )  # fmt: skip
    def test_a_value_that_cannot_be_used(self, name: str, value: str) -> None:
        with pytest.raises(OptionError, match=rf"servicebus\.{name}"):
            self.parsed("sb://host", **{name: value})

    def test_the_lock_duration_is_the_queues(self) -> None:
        with pytest.raises(OptionError, match="lock duration"):
            ServiceBusBinding(BindingConfig(url="sb://host", visibility_timeout=30.0))

    def test_a_secret_alone(self) -> None:
        with pytest.raises(OptionError, match=r"needs servicebus\.client_id") as caught:
            self.parsed("sb://host", client_secret=SECRET)
        assert_safe(caught.value)


def test_one_receive_tells_the_lease(hasty_servicebus_server: ServiceBusServer, queue: str) -> None:
    with binding(hasty_servicebus_server) as made:
        made.publish(queue, outgoing([b"a"]))
        claimed = take(made, queue, 1)
        assert 0 < made.lease <= 20
        made.release(queue, claimed)
