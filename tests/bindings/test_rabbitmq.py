"""What only RabbitMQ does: properties, prefetch, quorum queues, wait queues, alarms, TLS, restarts."""

from __future__ import annotations

import json
import math
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import Any

import pika
import pyarrow as pa
import pytest
from babelqueue.codec import EnvelopeCodec
from babelqueue.pika_transport import PikaTransport

from babelqueue_spark.bindings import BindingConfig
from babelqueue_spark.bindings.rabbitmq import RabbitBinding
from babelqueue_spark.bindings.rabbitmq.buffer import ChannelClaims, DeliveryBuffer
from babelqueue_spark.bindings.rabbitmq.client import Done, RabbitClient
from babelqueue_spark.bindings.rabbitmq.frames import fit
from babelqueue_spark.bindings.rabbitmq.messages import properties
from babelqueue_spark.bindings.rabbitmq.options import RabbitOptions
from babelqueue_spark.errors import BrokerError, OptionError
from babelqueue_spark.testing import (
    MIB,
    PATIENCE,
    SECRET,
    assert_empty,
    assert_safe,
    await_backlog,
    eventually,
    outgoing,
    take,
)
from tests.fixtures_conformance import Conformance
from tests.servers.certificates import Certificates
from tests.servers.rabbitmq import RabbitServer
from tests.streams import envelope

pytestmark = pytest.mark.server


def binding(server: RabbitServer, **options: str) -> RabbitBinding:
    return RabbitBinding(BindingConfig(url=server.url, client_options=options))


@pytest.fixture
def rabbit(rabbitmq_server: RabbitServer) -> Iterator[RabbitBinding]:
    with binding(rabbitmq_server) as opened:
        yield opened


@pytest.fixture
def channel(rabbitmq_server: RabbitServer) -> Iterator[Any]:
    """A bare client's channel."""
    connection = pika.BlockingConnection(pika.URLParameters(rabbitmq_server.url))
    yield connection.channel()
    if connection.is_open:
        connection.close()


class TestProperties:
    @pytest.mark.parametrize("count", [10, 20_000])
    def test_the_largest_headers_go_until_the_others_fit(self, count: int) -> None:
        given = {f"é{number}": "x" * (number % 97) for number in range(count)} | {
            "big": "x" * 131_072,
            "n": 7,
        }
        properties = pika.BasicProperties(headers=given)
        left_out = fit(properties, 131_072)
        assert sum(map(len, properties.encode())) <= 131_072
        assert left_out.isdisjoint(properties.headers)
        assert "big" in left_out
        smallest = min(len(given[name]) for name in left_out if name != "n")
        assert all(len(str(value)) <= smallest + 8 for value in properties.headers.values())

    def test_conformance(
        self, conformance: Conformance, rabbit: RabbitBinding, channel: Any, queue: str
    ) -> None:
        section = conformance.section("rabbitmq")["property_projection"]
        body = conformance.file(section["envelope_file"])
        rabbit.publish(queue, outgoing([body]))
        _, given, received = channel.basic_get(queue)
        assert received == body
        for name, expected in section["properties"].items():
            assert getattr(given, name) == expected, name
        assert given.headers == section["headers"]
        assert all(type(given.headers[name]) is type(value) for name, value in section["headers"].items())

    def test_all_that_the_contract_names_and_headers_beside_it(
        self, rabbit: RabbitBinding, channel: Any, queue: str
    ) -> None:
        body = envelope(1, queue, attempts=2)
        sent = json.loads(body)
        rabbit.publish(
            queue, outgoing([body], headers=[{"traceparent": "00-1", "x-attempts": "99", "": "x"}])
        )
        _, given, _ = channel.basic_get(queue)
        assert (given.type, given.correlation_id, given.message_id) == (
            sent["job"], sent["trace_id"], sent["meta"]["id"],
        )  # fmt: skip
        assert (given.app_id, given.content_type, given.content_encoding, given.delivery_mode) == (
            "babelqueue", "application/json", "utf-8", 2,
        )  # fmt: skip
        assert given.headers == {
            "traceparent": "00-1", "x-schema-version": 1, "x-source-lang": "python", "x-attempts": 2,
        }  # fmt: skip

    @pytest.mark.parametrize(
        ("table", "attempts"),
        [
            ({"x-attempts": 4}, 4),
            ({"laravel": {"attempts": 5}}, 5),
            ({"x-attempts": 3, "laravel": {"attempts": 4, "other": "x"}}, 4),
            ({"x-attempts": 1, "laravel": {"attempts": 0}}, 2),
            ({"x-attempts": "many", "laravel": "attempts"}, 2),
            ({"x-attempts": 2**40, "laravel": {"attempts": -1}}, 2),
        ],
    )
    def test_attempts_are_the_most_of_body_and_headers(
        self, rabbit: RabbitBinding, channel: Any, queue: str, table: dict[str, Any], attempts: int
    ) -> None:
        channel.queue_declare(queue, durable=True)
        channel.basic_publish("", queue, envelope(1, queue, attempts=2), pika.BasicProperties(headers=table))
        claimed = take(rabbit, queue, 1)
        assert rabbit.attempts(pa.array([2], pa.int32()), claimed).to_pylist() == [attempts]

    def test_laravel_counts_from_what_is_published(
        self, rabbit: RabbitBinding, channel: Any, queue: str
    ) -> None:
        headers = [{"laravel": '{"attempts": 3}', "x-attempts": "3"}]
        rabbit.publish(queue, outgoing([envelope(1, queue, attempts=0)], headers=headers))
        _, given, _ = channel.basic_get(queue)
        assert (given.headers["laravel"], given.headers["x-attempts"]) == ({"attempts": 0}, 0)

    @pytest.mark.parametrize(
        "body",
        [
            b"not json",
            b"[1]",
            b"null",
            b'{"job":5,"trace_id":[],"meta":"x","attempts":"x","data":{}}',
            b'{"job":"urn:x","meta":{"id":7,"schema_version":1.5},"attempts":1180591620717411303424}',
            b'{"job":"' + b"u" * 300 + b'","data":{}}',
            b"\xff\xfe",
        ],
    )
    def test_no_body_stops_a_publish(self, rabbit: RabbitBinding, queue: str, body: bytes) -> None:
        rabbit.publish(queue, outgoing([body]))
        assert take(rabbit, queue, 1).column("body").to_pylist() == [body]

    def test_a_body_that_is_no_envelope_has_no_projection(self) -> None:
        (given,) = properties(outgoing([b"not json"]))
        assert given.content_type == "application/json"
        assert not given.headers
        assert given.type is given.app_id is given.message_id is None

    def test_headers_of_any_type_arrive_as_text(
        self, rabbit: RabbitBinding, channel: Any, queue: str
    ) -> None:
        table = {
            "int": -3,
            "bytes": b"\xff",
            "list": [1, {"a": "ß", b"\xff": 2}],
            "x-delivery-count": 2**31,
            "flag": True,
            "none": None,
            "text": "ü",
        }
        channel.queue_declare(queue, durable=True)
        given = pika.BasicProperties(
            headers=table, timestamp=1_700_000_000, reply_to="answers", message_id="m1"
        )
        channel.basic_publish("", queue, b"{}", given)
        claimed = take(rabbit, queue, 1)
        assert dict(claimed.column("headers")[0].as_py()) == {
            "int": "-3", "bytes": "\\xff", "list": '[1, {"a": "ß", "\\\\xff": 2}]', "flag": "True",
            "text": "ü", "x-delivery-count": str(2**31),
            "amqp.reply_to": "answers",
        }  # fmt: skip
        assert claimed.column("count").to_pylist() == [None]
        assert claimed.column("id").to_pylist() == ["m1"]
        assert claimed.column("enqueued_at")[0].as_py().timestamp() == 1_700_000_000


class TestDeliveryBuffer:
    """As the connection's thread and the caller's use it."""

    @staticmethod
    def fill(buffer: DeliveryBuffer, bodies: list[bytes]) -> None:
        for number, body in enumerate(bodies, start=1):
            method = pika.spec.Basic.Deliver(delivery_tag=number, redelivered=False)
            buffer.receive(None, method, pika.BasicProperties(), body)  # type: ignore[arg-type]

    @pytest.mark.parametrize(("wanted", "max_bytes"), [(200, 10), (1, MIB)])
    def test_it_is_full_by_count_or_by_bytes(self, wanted: int, max_bytes: int) -> None:
        buffer = DeliveryBuffer(ChannelClaims())
        sender = threading.Timer(0.1, lambda: self.fill(buffer, [b"x" * 1000]))
        sender.start()
        buffer.wait(wanted, max_bytes, quiet=threading.TIMEOUT_MAX, until=math.inf)
        assert buffer.deliveries(1).column("body").to_pylist() == [b"x" * 1000]

    def test_what_comes_meanwhile_is_there_once_and_in_order(self) -> None:
        buffer = DeliveryBuffer(ChannelClaims())
        bodies = [str(number).encode() for number in range(20_000)]
        sender = threading.Thread(target=self.fill, args=(buffer, bodies))
        sender.start()
        buffer.wait(len(bodies), MIB, quiet=5, until=math.inf)
        sender.join()
        assert buffer.deliveries(len(bodies)).column("body").to_pylist() == bodies
        assert buffer.deliveries(7).column("body").to_pylist() == bodies[:7]

    def test_an_error_reaches_the_caller(self) -> None:
        buffer = DeliveryBuffer(ChannelClaims())
        buffer.end(ConnectionError("gone"))
        with pytest.raises(ConnectionError, match="gone"):
            buffer.wait(1, MIB, quiet=30, until=math.inf)


class TestSdk:
    def test_what_the_sdk_publishes_is_claimed(
        self, rabbitmq_server: RabbitServer, rabbit: RabbitBinding, queue: str
    ) -> None:
        sdk = PikaTransport(rabbitmq_server.url)
        body = envelope(1, queue).decode()
        sdk.publish_with_headers(queue, body, {"traceparent": "00-abc"})
        sdk.close()
        claimed = take(rabbit, queue, 1)
        assert claimed.column("body").to_pylist() == [body.encode()]
        assert dict(claimed.column("headers")[0].as_py())["traceparent"] == "00-abc"
        assert rabbit.acknowledge(queue, claimed).to_pylist() == [True]

    def test_what_we_publish_the_sdk_reads_with_the_properties_it_would_write(
        self, rabbitmq_server: RabbitServer, rabbit: RabbitBinding, queue: str
    ) -> None:
        body = envelope(7, queue)
        rabbit.publish(queue, outgoing([body], headers=[{"traceparent": "00-abc"}]))
        sdk = PikaTransport(rabbitmq_server.url)
        message = sdk.pop(queue, timeout=60)
        assert message is not None
        assert message.body.encode() == body
        assert EnvelopeCodec.accepts(EnvelopeCodec.decode(message.body))
        assert message.headers["traceparent"] == "00-abc"
        sdk.ack(message)
        (ours,) = properties(outgoing([body]))
        assert ours == sdk._properties(body.decode())
        sdk.close()


class TestClaims:
    def test_a_small_batch_is_not_held_up(
        self, rabbit: RabbitBinding, queue: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A claim of more than there is ends when the queue runs dry, not after a time-out."""
        monkeypatch.setattr("babelqueue_spark.bindings.rabbitmq.binding._STALLED_SECONDS", math.inf)
        monkeypatch.setattr("babelqueue_spark.bindings.rabbitmq.binding._LONGEST_CLAIM", PATIENCE)
        for _ in range(20):
            rabbit.publish(queue, outgoing([b"one"]))
            assert rabbit.claim(queue, 100_000, MIB).num_rows == 1

    def test_messages_beyond_the_bytes_go_back_to_their_places(
        self, rabbit: RabbitBinding, queue: str
    ) -> None:
        bodies = [b"%05d" % number * 200 for number in range(1_000)]
        rabbit.publish(queue, outgoing(bodies))
        claimed = rabbit.claim(queue, 1_000, 50_500)
        assert claimed.column("body").to_pylist() == bodies[:50]
        await_backlog(rabbit, queue, 950)
        rest = take(rabbit, queue, 950)
        assert rest.column("body").to_pylist() == bodies[50:]
        assert rabbit.acknowledge(queue, pa.concat_batches([claimed, rest])).true_count == 1_000
        assert_empty(rabbit, queue)

    def test_no_more_is_taken_than_asked_for(self, rabbit: RabbitBinding, channel: Any, queue: str) -> None:
        rabbit.publish(queue, outgoing([b"x"] * 5_000))
        assert rabbit.claim(queue, 3_000, 64 * MIB).num_rows == 3_000
        assert channel.queue_declare(queue, passive=True).method.message_count == 2_000

    def test_a_claim_ends_in_time_while_messages_trickle_in(
        self, rabbitmq_server: RabbitServer, queue: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """No message is lost by that: what was on its way goes back."""
        monkeypatch.setattr("babelqueue_spark.bindings.rabbitmq.binding._LONGEST_CLAIM", 0.5)
        monkeypatch.setattr("babelqueue_spark.bindings.rabbitmq.binding._QUIET_SECONDS", 0.5)
        over, sent = threading.Event(), 0

        def trickle() -> None:
            nonlocal sent
            with binding(rabbitmq_server) as writer:
                while not over.wait(0.005):
                    sent += writer.publish(queue, outgoing([b"x"]))

        with binding(rabbitmq_server) as reader:
            writer = threading.Thread(target=trickle)
            writer.start()
            try:
                eventually(lambda: reader.backlog(queue) > 5)
                claimed = eventually(lambda: reader.claim(queue, 100_000, MIB).num_rows)
            finally:
                over.set()
                writer.join()
            await_backlog(reader, queue, sent - claimed)

    def test_several_claims_are_acknowledged_in_any_order(self, rabbit: RabbitBinding, queue: str) -> None:
        rabbit.publish(queue, outgoing([b"%d" % number for number in range(90)]))
        first, second, third = (rabbit.claim(queue, 30, MIB) for _ in range(3))
        assert rabbit.acknowledge(queue, second).true_count == 30
        rabbit.release(queue, first.slice(0, 10))
        assert rabbit.acknowledge(queue, third).true_count == 30
        assert rabbit.acknowledge(queue, first).true_count == 20
        assert take(rabbit, queue, 10).column("body").to_pylist() == [b"%d" % number for number in range(10)]

    def test_a_quorum_queue_counts_deliveries(self, rabbit: RabbitBinding, channel: Any, queue: str) -> None:
        channel.queue_declare(queue, durable=True, arguments={"x-queue-type": "quorum"})
        bodies = [b"%d" % number for number in range(1_500)]
        rabbit.publish(queue, outgoing(bodies))
        claimed = take(rabbit, queue, 1_500)
        assert claimed.column("body").to_pylist() == bodies
        assert set(claimed.column("count").to_pylist()) == {1}
        assert set(claimed.column("redelivered").to_pylist()) == {False}
        rabbit.release(queue, claimed.slice(0, 5))
        assert rabbit.acknowledge(queue, claimed.slice(5)).true_count == 1_495
        again = take(rabbit, queue, 5)
        assert set(again.column("count").to_pylist()) == {2}
        assert set(again.column("redelivered").to_pylist()) == {True}
        assert rabbit.acknowledge(queue, again).true_count == 5
        assert_empty(rabbit, queue)

    def test_a_queue_with_arguments_is_used_as_it_is(
        self, rabbit: RabbitBinding, channel: Any, queue: str
    ) -> None:
        channel.queue_declare(queue, durable=True, arguments={"x-max-priority": 5, "x-message-ttl": 60_000})
        rabbit.publish(queue, outgoing([b"x"]))
        assert rabbit.acknowledge(queue, take(rabbit, queue, 1)).to_pylist() == [True]

    def test_a_queue_deleted_under_a_claim_is_made_anew(
        self, rabbit: RabbitBinding, channel: Any, queue: str
    ) -> None:
        rabbit.publish(queue, outgoing([b"a"]))
        claimed = take(rabbit, queue, 1)
        channel.queue_delete(queue)
        assert rabbit.claim(queue, 10, MIB).num_rows == 0
        assert rabbit.acknowledge(queue, claimed).to_pylist() == [False]
        rabbit.publish(queue, outgoing([b"b"]))
        assert take(rabbit, queue, 1).column("body").to_pylist() == [b"b"]

    def test_a_queue_deleted_under_a_consumer_is_an_error_and_its_claims_are_gone(
        self, rabbit: RabbitBinding, channel: Any, queue: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with waiting_claim(rabbit, channel, queue, monkeypatch) as (claimed, claim):
            channel.queue_delete(queue)
            with pytest.raises(BrokerError, match="RabbitMQ at 127") as caught:
                claim.result(PATIENCE)
            assert_safe(caught.value)
            assert rabbit.acknowledge(queue, claimed).to_pylist() == [False]
            assert_empty(rabbit, queue)
            rabbit.publish(queue, outgoing([b"new"]))
            assert take(rabbit, queue, 1).column("body").to_pylist() == [b"new"]

    def test_a_queue_that_another_makes_anew_under_a_consumer_is_read_by_the_next_claim(
        self, rabbit: RabbitBinding, channel: Any, queue: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with waiting_claim(rabbit, channel, queue, monkeypatch) as (_, claim):
            channel.queue_delete(queue)
            channel.queue_declare(queue, durable=True)
            channel.basic_publish("", queue, b"new")
            assert given_by(claim) == 0
            monkeypatch.undo()  # a claim that stalls now is to end before the test's patience does
            fresh = take(rabbit, queue, 1)
            assert fresh.column("body").to_pylist() == [b"new"]
            assert rabbit.acknowledge(queue, fresh).to_pylist() == [True]
            assert_empty(rabbit, queue)

    def test_a_consumer_that_the_server_cancels_as_its_claim_ends(
        self, rabbitmq_server: RabbitServer, channel: Any, queue: str
    ) -> None:
        """The server's word waits in the socket, while the connection's thread is busy."""
        busy, free = threading.Event(), threading.Event()

        def hold(_: Any, done: Done) -> None:
            busy.set()
            free.wait(PATIENCE)
            done()

        channel.queue_declare(queue)
        client = RabbitClient(RabbitOptions.parse(BindingConfig(url=rabbitmq_server.url)))
        with ThreadPoolExecutor(2) as pool, closing(client):
            claim = ExitStack()
            buffer = claim.enter_context(client.consuming(queue, 1))
            pool.submit(client.call, hold)
            assert busy.wait(PATIENCE)
            channel.queue_delete(queue)
            ended = pool.submit(claim.close)
            threading.Timer(0.1, free.set).start()
            ended.result(PATIENCE)
            assert buffer.cancelled

    def test_claims_older_than_the_consumer_timeout_are_delivered_again(self, queue: str) -> None:
        """The server closes the channel, by error 406."""
        with RabbitServer() as server, binding(server) as rabbit, binding(server) as other:
            for name, milliseconds in (("channel_tick_interval", 100), ("consumer_timeout", 5_000)):
                server.control("eval", f"application:set_env(rabbit, {name}, {milliseconds}).")
            rabbit.publish(queue, outgoing([b"a", b"b"]))
            claimed = take(rabbit, queue, 2)
            server.control("eval", "application:set_env(rabbit, consumer_timeout, 1800000).")
            await_backlog(other, queue, 2)
            assert rabbit.acknowledge(queue, claimed).to_pylist() == [False, False]
            again = take(rabbit, queue, 2)
            assert again.column("redelivered").to_pylist() == [True, True]
            assert rabbit.identities(again) == rabbit.identities(claimed)
            assert rabbit.acknowledge(queue, again).to_pylist() == [True, True]
            assert_empty(rabbit, queue)

    def test_heartbeats_survive_a_slow_batch(self, rabbitmq_server: RabbitServer, queue: str) -> None:
        """The server gives a silent connection up after two heartbeats, of one second each here."""
        url = f"{rabbitmq_server.url}?heartbeat=1"

        def survives() -> bool:
            with suppress(BrokerError), RabbitBinding(BindingConfig(url=url)) as slow:
                slow.publish(queue, outgoing([b"a"]))
                claimed = take(slow, queue, 1)
                threading.Event().wait(4)
                return slow.acknowledge(queue, claimed).to_pylist() == [True]
            return False

        eventually(survives)

    def test_a_connection_that_the_server_closes_gives_its_claims_back(
        self, rabbitmq_server: RabbitServer, rabbit: RabbitBinding, queue: str
    ) -> None:
        with binding(rabbitmq_server) as other:
            rabbit.publish(queue, outgoing([b"a", b"b"]))
            claimed = take(rabbit, queue, 2)
            rabbitmq_server.control("close_all_connections", "maintenance")
            assert rabbit.acknowledge(queue, claimed).to_pylist() == [False, False]
            again = take(other, queue, 2)
            assert again.column("redelivered").to_pylist() == [True, True]
            assert other.identities(again) == rabbit.identities(claimed)
            assert other.acknowledge(queue, again).to_pylist() == [True, True]

    def test_claims_of_a_lost_connection_are_not_claimed_twice(
        self, rabbitmq_server: RabbitServer, rabbit: RabbitBinding, queue: str
    ) -> None:
        """What came before the loss would come again beside it."""
        rabbit.publish(queue, outgoing([b"a", b"b", b"c"]))
        take(rabbit, queue, 1)
        rabbitmq_server.control("close_all_connections", "maintenance")
        with pytest.raises(BrokerError, match="lost while messages were claimed"):
            rabbit.claim(queue, 10, MIB)
        rabbit.close()
        assert take(rabbit, queue, 3).column("body").to_pylist() == [b"a", b"b", b"c"]

    def test_a_time_that_is_none_is_null(self, rabbit: RabbitBinding, channel: Any, queue: str) -> None:
        rabbit.backlog(queue)
        for stamp in (1_700_000_000_000, 2**63):
            channel.basic_publish("", queue, b"a", pika.BasicProperties(timestamp=stamp))
        assert take(rabbit, queue, 2).column("enqueued_at").to_pylist() == [None, None]


@contextmanager
def waiting_claim(
    rabbit: RabbitBinding, channel: Any, queue: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[pa.RecordBatch, Future[pa.RecordBatch]]]:
    """A claim that is held, and one whose consumer gets nothing, as another one is the queue's active consumer."""
    for name in ("_STALLED_SECONDS", "_LONGEST_CLAIM"):
        monkeypatch.setattr(f"babelqueue_spark.bindings.rabbitmq.binding.{name}", PATIENCE)
    channel.queue_declare(queue, durable=True, arguments={"x-single-active-consumer": True})
    rabbit.publish(queue, outgoing([b"held", b"the other's", b"waiting"]))
    held = take(rabbit, queue, 1)
    channel.basic_qos(prefetch_count=1)
    channel.basic_consume(queue, lambda *_: None)
    await_backlog(rabbit, queue, 1)
    with ThreadPoolExecutor(1) as pool, rabbit:
        claim = pool.submit(rabbit.claim, queue, 10, MIB)
        eventually(lambda: channel.queue_declare(queue, passive=True).method.consumer_count == 2)
        yield held, claim


def given_by(claim: Future[pa.RecordBatch]) -> int:
    """How many messages a claim gave; none where it says which broker stopped it."""
    error = claim.exception(PATIENCE)
    if error is None:
        return int(claim.result().num_rows)
    assert isinstance(error, BrokerError)
    assert "RabbitMQ at 127" in str(error)
    return 0


def assert_next(rabbit: RabbitBinding, queue: str, body: bytes) -> None:
    claimed = take(rabbit, queue, 1)
    assert claimed.column("body").to_pylist() == [body]
    assert rabbit.acknowledge(queue, claimed).to_pylist() == [True]


class TestPublishing:
    def test_what_cannot_be_routed_is_an_error(self, rabbitmq_server: RabbitServer, channel: Any) -> None:
        exchange = f"events-{uuid.uuid4().hex}"
        channel.exchange_declare(exchange, "topic")
        with binding(rabbitmq_server, exchange=exchange, routing_key="orders.eu") as rabbit:
            with pytest.raises(BrokerError, match=r"could not route 3 .*NO_ROUTE"):
                rabbit.publish("any", outgoing([b"a", b"b", b"c"]))
            bound = channel.queue_declare("", exclusive=True).method.queue
            channel.queue_bind(bound, exchange, "orders.*")
            assert rabbit.publish("any", outgoing([b"a"])) == 1
            assert channel.basic_get(bound)[2] == b"a"

    def test_an_exchange_that_is_missing_is_an_error(self, rabbitmq_server: RabbitServer) -> None:
        with (
            binding(rabbitmq_server, exchange="no-such-exchange") as rabbit,
            pytest.raises(BrokerError, match=r"no exchange 'no-such-exchange'"),
        ):
            rabbit.publish("any", outgoing([b"a"]))

    def test_what_the_server_refuses_is_an_error(
        self, rabbit: RabbitBinding, channel: Any, queue: str
    ) -> None:
        arguments = {"x-max-length": 2, "x-overflow": "reject-publish"}
        channel.queue_declare(queue, durable=True, arguments=arguments)
        with pytest.raises(BrokerError, match=r"refused \d+"):
            rabbit.publish(queue, outgoing([b"x"] * 50))

    def test_headers_beyond_a_frame_are_left_out_the_largest_first(
        self, rabbit: RabbitBinding, queue: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        """As of a copy whose headers just fitted, to which those of the contract come."""
        frame = pika.connection.Parameters.DEFAULT_FRAME_MAX
        bodies = [envelope(number, queue) for number in range(60)]
        given = [{"small": "é", "tracestate": "t" * (frame - 10 * number)} for number in range(60)]
        rabbit.publish(queue, outgoing(bodies, headers=given))
        found = [dict(headers) for headers in take(rabbit, queue, 60).column("headers").to_pylist()]
        assert all(headers["small"] == "é" and headers["x-schema-version"] == "1" for headers in found)
        kept = ["tracestate" in headers for headers in found]
        assert kept == sorted(kept)
        assert set(kept) == {False, True}
        assert "headers were left out that do not fit into a frame of RabbitMQ: 'tracestate'" in caplog.text

    def test_delayed_messages_wait_in_queues_named_by_their_delay(
        self, rabbit: RabbitBinding, channel: Any, queue: str
    ) -> None:
        rabbit.publish(queue, outgoing([b"x"] * 4, delays=[60_000, 60_000, 1_234_567, None]))
        for name, count in ((f"{queue}.delay.60000", 2), (f"{queue}.delay.1240000", 1), (queue, 1)):
            assert channel.queue_declare(name, passive=True).method.message_count == count

    def test_delays_are_met_whatever_waits_before(self, rabbit: RabbitBinding, queue: str) -> None:
        started = time.monotonic()
        rabbit.publish(queue, outgoing([b"late", b"soon"], delays=[60_000, 300]))
        claimed = take(rabbit, queue, 1)
        assert claimed.column("body").to_pylist() == [b"soon"]
        assert claimed.column("redelivered").to_pylist() == [False]
        assert time.monotonic() - started >= 0.3

    def test_a_quorum_wait_queue_keeps_what_its_target_refuses(self, queue: str) -> None:
        """The target is full when the message is due, then the broker is killed.

        It was stopped once before: RabbitMQ loses a quorum queue that it has made seconds before it dies.
        """
        full = {"x-max-length": 1, "x-overflow": "reject-publish"}
        with RabbitServer() as server:
            with closing(pika.BlockingConnection(pika.URLParameters(server.url))) as connection:
                connection.channel().queue_declare(queue, durable=True, arguments=full)
            with binding(server, delay_queue_type="quorum") as rabbit:
                rabbit.publish(queue, outgoing([b"early"], delays=[100]))
                assert_next(rabbit, queue, b"early")
            server.stop()
            server.start()
            with binding(server, delay_queue_type="quorum") as rabbit:
                rabbit.publish(queue, outgoing([b"first"]))
                rabbit.publish(queue, outgoing([b"late"], delays=[100]))
                await_backlog(rabbit, f"{queue}.delay.quorum.100", 0)  # it is due, and on its way
            server.kill()
            server.start()
            with binding(server) as rabbit:
                assert_next(rabbit, queue, b"first")
                assert_next(rabbit, queue, b"late")

    def test_a_delayed_exchange_gets_the_delay_as_its_header(
        self, rabbitmq_server: RabbitServer, channel: Any, queue: str
    ) -> None:
        exchange = f"delayed-{uuid.uuid4().hex}"
        channel.exchange_declare(exchange, "direct")
        channel.queue_declare(queue, durable=True)
        channel.queue_bind(queue, exchange, queue)
        with binding(rabbitmq_server, delayed_exchange=exchange) as rabbit:
            rabbit.publish(queue, outgoing([b"x"], delays=[1_234]))
            method, given, _ = channel.basic_get(queue)
            channel.queue_unbind(queue, exchange, queue)
            assert rabbit.publish(queue, outgoing([b"y"], delays=[5])) == 1  # the plugin routes later
        assert (method.exchange, given.headers["x-delay"]) == (exchange, 1_234)

    def test_a_delay_does_not_go_past_an_exchange(self, rabbitmq_server: RabbitServer) -> None:
        with (
            binding(rabbitmq_server, exchange="amq.topic") as rabbit,
            pytest.raises(BrokerError, match=r"past rabbitmq\.exchange"),
        ):
            rabbit.publish("any", outgoing([b"x"], delays=[1_000]))

    @pytest.mark.restarts
    def test_messages_survive_a_restart(self, rabbitmq_server: RabbitServer, queue: str) -> None:
        with rabbitmq_server.running_afterwards() as server, binding(server) as rabbit:
            rabbit.publish(queue, outgoing([b"a", b"b"]))
            claimed = take(rabbit, queue, 1)
            server.stop()
            for verb in (lambda: rabbit.backlog(queue), lambda: rabbit.publish(queue, outgoing([b"c"]))):
                with pytest.raises(BrokerError, match="RabbitMQ at 127"):
                    verb()
            server.start()
            assert rabbit.acknowledge(queue, claimed).to_pylist() == [False]
            assert take(rabbit, queue, 2).column("body").to_pylist() == [b"a", b"b"]

    def test_an_alarm_holds_publishers_back_and_leaves_claims_alone(self, queue: str) -> None:
        with RabbitServer() as server, binding(server, blocked_connection_timeout="1") as rabbit:
            rabbit.publish(queue, outgoing([b"a", b"b"]))
            claimed = take(rabbit, queue, 1)
            server.control("set_vm_memory_high_watermark", "absolute", "1")
            with binding(server, blocked_connection_timeout="1") as writer:
                with pytest.raises(BrokerError, match="alarm") as caught:
                    eventually(lambda: writer.publish(queue, outgoing([b"c"])) == 0)
                assert_safe(caught.value)
            assert rabbit.acknowledge(queue, claimed).to_pylist() == [True]
            assert take(rabbit, queue, 1).column("body").to_pylist() == [b"b"]


class TestErrors:
    @pytest.mark.parametrize(
        ("change", "advice"),
        [
            (("babel:", "nobody:"), "check user and password"),
            (("%2F", "no-such-vhost"), "vhost"),
        ],
    )
    def test_a_refused_login(
        self, rabbitmq_server: RabbitServer, queue: str, change: tuple[str, str], advice: str
    ) -> None:
        config = BindingConfig(url=rabbitmq_server.url.replace(*change))
        with RabbitBinding(config) as refused, pytest.raises(BrokerError, match=advice) as caught:
            refused.backlog(queue)
        assert rabbitmq_server.password not in str(caught.value)
        assert_safe(caught.value)

    @pytest.mark.parametrize("name", ["line\nbreak", "\rorders"])
    def test_a_name_that_the_server_would_change(self, rabbit: RabbitBinding, name: str) -> None:
        """It leaves line breaks out, and the client waits for an answer with the name that it sent."""
        for use in (rabbit.check_queue, rabbit.backlog, lambda name: rabbit.publish(name, outgoing([b"x"]))):
            with pytest.raises(OptionError, match="no line breaks"):
                use(name)

    @pytest.mark.parametrize("length", [256, 250])
    def test_a_name_that_is_too_long(self, rabbit: RabbitBinding, queue: str, length: int) -> None:
        """That of the queue, or that of its wait queue; the connection and its claims live on."""
        rabbit.publish(queue, outgoing([b"a"]))
        claimed = take(rabbit, queue, 1)
        with pytest.raises(BrokerError, match="longer than 255 bytes"):
            rabbit.publish("q" * length, outgoing([b"x"], delays=[60_000]))
        assert rabbit.acknowledge(queue, claimed).to_pylist() == [True]

    def test_another_protocol(self, redis_server: Any, queue: str) -> None:
        config = BindingConfig(url=f"amqp://babel:{SECRET}@{redis_server.address}/")
        with RabbitBinding(config) as refused, pytest.raises(BrokerError) as caught:
            refused.backlog(queue)
        assert_safe(caught.value)

    @pytest.mark.parametrize(
        "url",
        [
            f"http://u:{SECRET}@h/",
            f"amqp://u:{SECRET}@h:port/",
            "amqp://h/?heartbeat=x",
        ],
    )
    def test_a_url_that_cannot_be_read(self, url: str) -> None:
        with pytest.raises(OptionError, match="amqp://") as caught:
            RabbitBinding(BindingConfig(url=url))
        assert_safe(caught.value)

    @pytest.mark.parametrize(
        ("options", "advice"),
        [
            ({"heartbeat": "soon"}, "rabbitmq.heartbeat"),
            ({"heartbeat": "-1"}, "rabbitmq.heartbeat"),
            ({"ssl_ca_certs": "/x"}, "amqps://"),
            ({"routing_key": "x"}, "rabbitmq.exchange"),
        ],
    )
    def test_options_that_cannot_be_used(self, options: dict[str, str], advice: str) -> None:
        with pytest.raises(OptionError, match=advice):
            RabbitBinding(BindingConfig(url="amqp://localhost/", client_options=options))

    def test_a_visibility_timeout_is_refused(self) -> None:
        with pytest.raises(OptionError, match="as long as its connection"):
            RabbitBinding(BindingConfig(url="amqp://localhost/", visibility_timeout=90))


@pytest.fixture(scope="module")
def secure(certificates: Certificates) -> Iterator[RabbitServer]:
    with RabbitServer(tls=certificates) as server:
        yield server


class TestTls:
    def test_its_own_ca_and_a_client_certificate(
        self, secure: RabbitServer, certificates: Certificates, queue: str
    ) -> None:
        options = {
            "ssl_ca_certs": str(certificates.ca),
            "ssl_certfile": str(certificates.client),
            "ssl_keyfile": str(certificates.client_key),
        }
        config = BindingConfig(url=secure.secure_url, client_options=options)
        with RabbitBinding(config) as rabbit:
            rabbit.publish(queue, outgoing([b"a"]))
            assert rabbit.acknowledge(queue, take(rabbit, queue, 1)).to_pylist() == [True]

    @pytest.mark.parametrize("given", [[], ["ssl_ca_certs"]])
    def test_without_either_it_is_refused(
        self, secure: RabbitServer, certificates: Certificates, queue: str, given: list[str]
    ) -> None:
        options = {name: str(certificates.ca) for name in given}
        config = BindingConfig(url=secure.secure_url, client_options=options)
        with RabbitBinding(config) as refused, pytest.raises(BrokerError, match="RabbitMQ at") as caught:
            refused.backlog(queue)
        assert_safe(caught.value)

    def test_a_certificate_that_is_not_there(self, secure: RabbitServer, queue: str) -> None:
        config = BindingConfig(url=secure.secure_url, client_options={"ssl_ca_certs": "/no/such/file"})
        with RabbitBinding(config) as refused, pytest.raises(OptionError, match="ssl_ca_certs"):
            refused.backlog(queue)
