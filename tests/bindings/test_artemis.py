"""What only Artemis does: anycast, annotations, bodies of any type, message groups, duplicates, management, TLS."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from babelqueue.codec import EnvelopeCodec
from proton import (
    UNDESCRIBED,
    Array,
    Data,
    Delivery,
    Message,
    byte,
    char,
    float32,
    int32,
    short,
    symbol,
    timestamp,
    ubyte,
    uint,
    ulong,
    ushort,
)

from babelqueue_spark.bindings import BindingConfig
from babelqueue_spark.bindings.artemis import ArtemisBinding, amqp
from babelqueue_spark.bindings.artemis.connection import Connection
from babelqueue_spark.bindings.artemis.messages import received
from babelqueue_spark.bindings.artemis.options import ArtemisOptions
from babelqueue_spark.envelope import decode, set_attempts
from babelqueue_spark.errors import BrokerAuthenticationError, BrokerError, OptionError, QueueForbiddenError
from babelqueue_spark.testing import (
    MIB,
    SECRET,
    assert_empty,
    assert_safe,
    await_backlog,
    eventually,
    joined,
    outgoing,
    publish_all,
    take,
)
from tests.bindings.artemis_peers import bare_client, receive, sdk, send
from tests.servers.artemis import ArtemisServer
from tests.servers.certificates import Certificates
from tests.streams import envelope

pytestmark = pytest.mark.server

NOTHING_IS_MADE = (
    "<auto-create-queues>false</auto-create-queues><auto-create-addresses>false</auto-create-addresses>"
)


def binding(url: str, **options: str) -> ArtemisBinding:
    return ArtemisBinding(BindingConfig(url=url, client_options=options))


def bodies(batch: pa.RecordBatch) -> list[bytes]:
    values: list[bytes] = batch.column("body").to_pylist()
    return values


def headers(batch: pa.RecordBatch) -> dict[str, str]:
    """Those of the first delivery."""
    return dict(batch.column("headers")[0].as_py() or ())


@contextmanager
def on_one_processor(server: ArtemisServer) -> Iterator[None]:
    """Leave the server's threads one processor for a while."""
    threads = [int(task.name) for task in Path(f"/proc/{server.pid}/task").iterdir()]
    before = os.sched_getaffinity(server.pid)
    try:
        for thread in threads:
            os.sched_setaffinity(thread, {min(before)})
        yield
    finally:
        for thread in threads:
            with suppress(ProcessLookupError):
                os.sched_setaffinity(thread, before)


@pytest.fixture
def ours(artemis_server: ArtemisServer) -> Iterator[ArtemisBinding]:
    with binding(artemis_server.url) as opened:
        yield opened


@pytest.fixture
def other(artemis_server: ArtemisServer) -> Iterator[ArtemisBinding]:
    with binding(artemis_server.url) as opened:
        yield opened


class TestMessages:
    def test_all_that_the_contract_names_and_headers_beside_it(
        self, artemis_server: ArtemisServer, ours: ArtemisBinding, queue: str
    ) -> None:
        body = envelope(1, queue, attempts=2)
        sent = json.loads(body)
        given = {"traceparent": "00-1", "bq_attempts": "99"}
        ours.publish(queue, outgoing([body], headers=[given], keys=["customer-7"]))
        message = receive(artemis_server, queue)
        assert message.body == body.decode()
        assert message.annotations == {symbol("x-opt-jms-type"): symbol(sent["job"])}
        assert (message.durable, message.id, message.subject, message.correlation_id, message.group_id) == (
            True, sent["meta"]["id"], sent["job"], sent["trace_id"], "customer-7",
        )  # fmt: skip
        assert round(message.creation_time * 1000) == sent["meta"]["created_at"]
        assert message.properties == {
            "traceparent": "00-1", "bq_schema_version": "1", "bq_source_lang": "python", "bq_attempts": "2", "bq_app_id": "babelqueue",
        }  # fmt: skip

    @pytest.mark.parametrize(
        "body",
        [
            b"[1]",
            b"null",
            b'{"job":5,"trace_id":[],"meta":"x","attempts":"x","data":{}}',
            b'{"job":"urn:x","meta":{"id":7,"schema_version":1.5},"attempts":1180591620717411303424}',
            '{"job":"urn:größe","trace_id":"注","data":{}}'.encode(),
            b'{"job":"' + b"u" * 300 + b'","data":{}}',
        ],
    )
    def test_no_body_stops_a_publish(self, ours: ArtemisBinding, queue: str, body: bytes) -> None:
        ours.publish(queue, outgoing([body]))
        assert bodies(take(ours, queue, 1)) == [body]

    def test_a_body_that_is_no_envelope_has_no_projection(
        self, artemis_server: ArtemisServer, ours: ArtemisBinding, queue: str
    ) -> None:
        ours.publish(queue, outgoing([b"not json", b"\xff"]))
        text, data = receive(artemis_server, queue), receive(artemis_server, queue)
        assert (text.body, bytes(data.body)) == ("not json", b"\xff")
        assert text.durable
        assert text.properties is text.annotations is text.id is text.subject is None

    def test_bodies_of_every_type_are_read(
        self, artemis_server: ArtemisServer, ours: ArtemisBinding, queue: str
    ) -> None:
        body = envelope(1, queue)
        envelopes: list[Any] = [
            Message(body.decode()),
            Message(body, inferred=True),
            Message(memoryview(body), inferred=True),
            Message(body),
            Message(symbol("{}")),
            Message(None),
            Message({"order_id": 1}),
        ]
        send(artemis_server, queue, envelopes)
        *texts, others = bodies(take(ours, queue, 7))
        assert texts == [body] * 4 + [b"{}", b""]
        assert b"order_id" in others

    def test_properties_of_any_type_arrive_as_text(
        self, artemis_server: ArtemisServer, ours: ArtemisBinding, queue: str
    ) -> None:
        given = {"int": -3, "float": 1.5, "flag": True, "bytes": b"\xff", "none": None, "Ünï-._": "wert 注"}
        send(
            artemis_server,
            queue,
            [Message("x", properties=given, id="m1", group_id="g", creation_time=1.5e9)],
        )
        claimed = take(ours, queue, 1)
        assert headers(claimed) == {
            "int": "-3", "float": "1.5", "flag": "true", "bytes": "\\xff", "Ünï-._": "wert 注",
        }  # fmt: skip
        assert (claimed.column("id").to_pylist(), claimed.column("key").to_pylist()) == (["m1"], ["g"])
        assert claimed.column("enqueued_at")[0].as_py().timestamp() == 1.5e9

    @pytest.mark.parametrize(
        "raw", [b"", b"\x00", b"\x00Sw\xa1\xffshort", b"\x00Sw" + b"\xc0\xff\x01" * 2_000, b"plain"]
    )
    def test_what_is_no_message_is_told_from_one(self, raw: bytes) -> None:
        if raw:
            with pytest.raises(amqp.MalformedError):
                amqp.decoded(raw)
        else:
            assert amqp.decoded(raw).body == b""

    def test_sections_of_the_wrong_type_are_passed_over(self) -> None:
        value = b"\x00Sw\xa1\x01x"
        for code in b"prst":
            assert amqp.decoded(b"\x00S" + bytes([code]) + b"\x41" + value) == amqp.Message(body=b"x")

    def test_half_of_a_pair_is_no_character(self) -> None:
        with pytest.raises(amqp.MalformedError):
            amqp.decoded(b"\x00St\xc1\x09\x02\xa1\x01a\x73\x00\x00\xd8\x00")

    def test_a_delay_without_end(self, ours: ArtemisBinding, queue: str) -> None:
        assert ours.publish(queue, outgoing([b"never"], delays=[(1 << 63) - 1])) == 1
        assert_empty(ours, queue)

    def test_what_the_client_encodes_is_read(self) -> None:
        """Each type of AMQP in an annotation."""
        values: list[Any] = [
            ubyte(1), byte(-1), ushort(2), short(-2), uint(0), uint(3), uint(1 << 20), int32(-3), int32(1 << 20),
            ulong(0), ulong(4), ulong(1 << 40), -4, 1 << 40, float32(0.5), 0.25, char("ß"), timestamp(5),
            True, False, None, b"b", b"b" * 300, "t", "t" * 300, symbol("s"), uuid.UUID(int=7),
            [1, ["x"]], [1] * 300, {"k": {"v": 1}}, {str(number): number for number in range(200)},
        ]  # fmt: skip
        array = Array(UNDESCRIBED, Data.INT, *(int32(number) for number in range(300)))
        given = {symbol(f"x-opt-{number}"): value for number, value in enumerate([*values, array])}
        message = amqp.decoded(Message("x", annotations=given, properties={"a": 1}).encode())
        assert list(message.annotations.values()) == [*values, list(range(300))]
        assert (message.application, message.body) == ({"a": 1}, b"x")


class TestSdk:
    def test_what_the_sdk_publishes_is_claimed(
        self, artemis_server: ArtemisServer, ours: ArtemisBinding, queue: str
    ) -> None:
        body = envelope(1, queue)
        ours.claim(queue, 1, MIB)  # the SDK's own link would make the address multicast
        with sdk(artemis_server) as peer:
            peer.publish(queue, body.decode())
        claimed = take(ours, queue, 1)
        assert bodies(claimed) == [body]
        assert headers(claimed)["bq_app_id"] == "babelqueue"
        assert ours.acknowledge(queue, claimed).to_pylist() == [True]

    def test_what_we_publish_the_sdk_reads_with_the_properties_it_would_write(
        self, artemis_server: ArtemisServer, ours: ArtemisBinding, queue: str
    ) -> None:
        body = envelope(7, queue)
        ours.publish(queue, outgoing([body]))
        with sdk(artemis_server) as peer:
            message = peer.pop(queue, timeout=60)
            assert message is not None
            assert message.body.encode() == body
            assert EnvelopeCodec.accepts(EnvelopeCodec.decode(message.body))
            theirs = peer._message(body.decode())
            peer.ack(message)
        ours.publish(queue, outgoing([envelope(8, queue)]))
        message = receive(artemis_server, queue)
        assert theirs.properties.items() <= {**message.properties, "bq_attempts": "0"}.items()
        assert theirs.annotations == message.annotations

    def test_a_urn_in_the_annotation_or_in_the_subject_is_that_of_the_body(
        self, artemis_server: ArtemisServer, ours: ArtemisBinding, queue: str
    ) -> None:
        """Java writes the subject, the others the annotation; in both the body has the last word."""
        body = envelope(1, queue).decode()
        kinds = [
            Message(body, annotations={symbol("x-opt-jms-type"): "urn:x"}),
            Message(body, subject="urn:x"),
        ]
        send(artemis_server, queue, kinds)
        jobs = decode(take(ours, queue, 2).column("body")).column("job").to_pylist()
        assert jobs == ["urn:babel:orders:created"] * 2


class TestAnycast:
    def test_a_queue_that_nobody_made_keeps_what_comes_before_its_reader(
        self, ours: ArtemisBinding, other: ArtemisBinding, queue: str
    ) -> None:
        ours.publish(queue, outgoing([b"a", b"b"]))
        assert bodies(take(other, queue, 2)) == [b"a", b"b"]

    def test_readers_share(self, ours: ArtemisBinding, other: ArtemisBinding, queue: str) -> None:
        ours.claim(queue, 1, MIB)
        other.claim(queue, 1, MIB)
        ours.publish(queue, outgoing([b"%d" % number for number in range(10)]))
        first = ours.claim(queue, 5, MIB)
        assert sorted(bodies(first) + bodies(other.claim(queue, 10, MIB))) == [b"%d" % n for n in range(10)]

    def test_a_queue_of_another_name_than_its_address(
        self, ours: ArtemisBinding, other: ArtemisBinding, queue: str
    ) -> None:
        name = f"{queue}-address::{queue}"
        ours.claim(name, 1, MIB)
        ours.publish(name, outgoing([b"a"]))
        await_backlog(other, name, 1)
        assert other.acknowledge(name, take(other, name, 1)).to_pylist() == [True]

    def test_an_address_that_a_bare_client_made_multicast_becomes_a_queue(
        self, artemis_server: ArtemisServer, ours: ArtemisBinding, queue: str
    ) -> None:
        with bare_client(artemis_server) as connection:
            connection.create_sender(queue).send(Message("lost"))
        ours.publish(queue, outgoing([b"kept"]))
        assert bodies(take(ours, queue, 1)) == [b"kept"]

    def test_a_queue_that_may_not_be_made_is_an_error_that_says_so(self, queue: str) -> None:
        with ArtemisServer(settings=NOTHING_IS_MADE) as server, binding(server.url) as ours:
            for verb in (
                lambda: ours.backlog(queue),
                lambda: ours.claim(queue, 1, MIB),
                lambda: ours.publish(queue, outgoing([b"x"])),
            ):
                with pytest.raises(BrokerError, match="create it first") as caught:
                    verb()
                assert_safe(caught.value)


class TestClaims:
    def test_messages_beyond_the_bytes_go_back_to_their_places(
        self, ours: ArtemisBinding, queue: str
    ) -> None:
        sent = [b"%05d" % number * 200 for number in range(1_000)]
        ours.publish(queue, outgoing(sent))
        claimed = ours.claim(queue, 1_000, 50_900)
        assert bodies(claimed) == sent[:50]
        await_backlog(ours, queue, 950)
        rest = take(ours, queue, 950)
        assert bodies(rest) == sent[50:]
        assert ours.acknowledge(queue, pa.concat_batches([claimed, rest])).true_count == 1_000
        assert_empty(ours, queue)

    def test_no_more_is_taken_than_asked_for(
        self, ours: ArtemisBinding, other: ArtemisBinding, queue: str
    ) -> None:
        ours.publish(queue, outgoing([b"x"] * 5_000))
        assert ours.claim(queue, 3_000, 64 * MIB).num_rows == 3_000
        assert other.claim(queue, 5_000, 64 * MIB).num_rows == 2_000

    def test_several_claims_are_acknowledged_in_any_order(self, ours: ArtemisBinding, queue: str) -> None:
        sent = [b"%d" % number for number in range(90)]
        ours.publish(queue, outgoing(sent))
        first, second, third = (ours.claim(queue, 30, MIB) for _ in range(3))
        assert ours.acknowledge(queue, second).true_count == 30
        ours.release(queue, first.slice(0, 10))
        assert ours.acknowledge(queue, third).true_count == 30
        assert ours.acknowledge(queue, first).true_count == 20
        assert bodies(take(ours, queue, 10)) == sent[:10]

    def test_an_acknowledge_is_of_its_own_delivery(self, ours: ArtemisBinding, queue: str) -> None:
        """The client's blocking receiver settles the oldest one."""
        ours.publish(queue, outgoing([b"kept", b"done"]))
        claimed = take(ours, queue, 2)
        assert ours.acknowledge(queue, claimed.slice(1)).to_pylist() == [True]
        ours.release(queue, claimed.slice(0, 1))
        assert bodies(take(ours, queue, 1)) == [b"kept"]

    def test_failed_deliveries_count_and_released_ones_do_not(
        self, artemis_server: ArtemisServer, ours: ArtemisBinding, queue: str
    ) -> None:
        ours.publish(queue, outgoing([envelope(1, queue)]))
        receive(artemis_server, queue, Delivery.RELEASED)
        receive(artemis_server, queue, Delivery.MODIFIED)
        claimed = take(ours, queue, 1)
        assert claimed.column("count").to_pylist() == claimed.column("redelivered").to_pylist() == [None]
        ours.release(queue, claimed)
        for _ in range(2):
            receive(artemis_server, queue, Delivery.MODIFIED, failed=True)
        claimed = take(ours, queue, 1)
        assert claimed.column("count").to_pylist() == [3]
        assert claimed.column("redelivered").to_pylist() == [True]
        assert ours.attempts(pa.array([0], pa.int32()), claimed).to_pylist() == [2]
        assert ours.attempts(pa.array([5], pa.int32()), claimed).to_pylist() == [5]

    def test_a_message_group_is_one_claimers_until_its_claims_are_settled(
        self, ours: ArtemisBinding, other: ArtemisBinding, queue: str
    ) -> None:
        ours.publish(queue, outgoing([b"a1", b"b1", b"a2"], keys=["a", "b", "a"]))
        first = ours.claim(queue, 1, MIB)
        assert bodies(first) == [b"a1"]
        assert bodies(take(other, queue, 1)) == [b"b1"]
        assert other.claim(queue, 10, MIB).num_rows == 0
        ours.acknowledge(queue, first)
        assert bodies(take(other, queue, 1)) == [b"a2"]

    def test_a_queue_that_is_deleted_takes_its_claims_with_it(
        self, artemis_server: ArtemisServer, ours: ArtemisBinding, queue: str
    ) -> None:
        ours.publish(queue, outgoing([b"a", b"b"]))
        claimed = take(ours, queue, 2)
        ask(artemis_server, "destroyQueue", json.dumps([queue, True]))
        eventually(lambda: ours.backlog(queue) == 0)
        assert ours.acknowledge(queue, claimed).to_pylist() == [False, False]
        ours.publish(queue, outgoing([b"c"]))
        assert bodies(take(ours, queue, 1)) == [b"c"]

    def test_claims_of_a_lost_connection_are_not_claimed_twice(
        self, artemis_server: ArtemisServer, ours: ArtemisBinding, queue: str
    ) -> None:
        """What came before the loss would come again beside it."""
        ours.publish(queue, outgoing([b"a", b"b", b"c"]))
        take(ours, queue, 1)
        ask(artemis_server, "closeConsumerConnectionsForAddress", json.dumps([queue]))
        with pytest.raises(BrokerError, match="the connection was lost"):
            eventually(lambda: ours.claim(queue, 10, MIB).num_rows == 0)
        assert bodies(take(ours, queue, 3)) == [b"a", b"b", b"c"]

    def test_a_connection_that_the_broker_closes_gives_its_claims_back(
        self, artemis_server: ArtemisServer, ours: ArtemisBinding, other: ArtemisBinding, queue: str
    ) -> None:
        ours.publish(queue, outgoing([b"a", b"b"]))
        claimed = take(ours, queue, 2)
        ask(artemis_server, "closeConsumerConnectionsForAddress", json.dumps([queue]))
        again = take(other, queue, 2)
        assert ours.acknowledge(queue, claimed).to_pylist() == [False, False]
        assert other.identities(again) == ours.identities(claimed)
        assert other.acknowledge(queue, again).to_pylist() == [True, True]

    def test_heartbeats_survive_a_slow_batch(self, queue: str) -> None:
        """The broker gives a silent connection up after two seconds here."""

        def survives() -> bool:
            with suppress(BrokerError), binding(server.url) as slow:
                slow.publish(queue, outgoing([b"a"]))
                claimed = take(slow, queue, 1)
                threading.Event().wait(6)
                return slow.acknowledge(queue, claimed).to_pylist() == [True]
            return False

        with ArtemisServer(time_to_live=2_000) as server:
            eventually(survives)


class TestBacklog:
    def test_a_large_backlog_is_counted(self, ours: ArtemisBinding, queue: str) -> None:
        publish_all(ours, queue, [b"x"] * 2_500)
        assert ours.backlog(queue) == 2_500
        claimed = ours.claim(queue, 500, MIB)
        ours.publish(queue, outgoing([b"later"], delays=[60_000]))
        assert ours.backlog(queue) == 2_000
        ours.release(queue, claimed)
        await_backlog(ours, queue, 2_500)

    def test_who_may_not_manage_looks_at_a_thousand(self, artemis_server: ArtemisServer, queue: str) -> None:
        with binding(artemis_server.limited_url) as limited:
            assert limited.backlog(queue) == 0
            publish_all(limited, queue, [b"x"] * 1_000)
            assert limited.backlog(queue) == 1_000
            limited.publish(queue, outgoing([b"x"]))
            assert limited.backlog(queue) == 1_000_000
            claimed = take(limited, queue, 1_000)
            assert limited.backlog(queue) == 1
            assert limited.acknowledge(queue, claimed).true_count == 1_000

    def test_a_browse_shows_all_in_order_and_leaves_them(self, ours: ArtemisBinding, queue: str) -> None:
        sent = [b"%d" % number for number in range(1_500)]
        publish_all(ours, queue, sent)
        held = ours.claim(queue, 10, MIB)
        assert bodies(joined(ours.browse(queue))) == sent[10:]
        ours.release(queue, held)
        assert bodies(joined(ours.browse(queue))) == sent

    def test_each_of_many_drains_is_answered(self, artemis_server: ArtemisServer, queue: str) -> None:
        """The broker ignores one that overtakes its own threads: on a single processor two of a hundred."""
        options = BindingConfig(url=artemis_server.url, client_options={"timeout": "60s"})
        with (
            on_one_processor(artemis_server),
            closing(Connection(ArtemisOptions.parse(options))) as connection,
        ):
            link = connection.link(queue, browse=True)
            for _ in range(300):
                assert connection.fetch(link, 200) == []


class TestPublishing:
    def test_what_was_read_can_be_published_to_its_queue_again(
        self, ours: ArtemisBinding, queue: str
    ) -> None:
        """Under the same `meta.id`, as a redrive does."""
        ours.publish(queue, outgoing([envelope(1, queue)]))
        for _ in range(3):
            claimed = take(ours, queue, 1)
            ours.publish(queue, outgoing(bodies(claimed), headers=[headers(claimed)]))
            assert ours.acknowledge(queue, claimed).to_pylist() == [True]
            await_backlog(ours, queue, 1)

    def test_repeats_are_dropped_where_that_is_wanted(
        self, artemis_server: ArtemisServer, queue: str
    ) -> None:
        with binding(artemis_server.url, duplicate_detection="true") as once:
            assert once.capabilities.duplicate_detection
            batch = [envelope(number, queue) for number in range(50)]
            once.publish(queue, outgoing(batch[:20]))
            once.publish(queue, outgoing(batch))
            assert sorted(bodies(take(once, queue, 50))) == sorted(batch)
            retries = set_attempts(pa.array(batch), pa.array([1] * 50, pa.int32())).to_pylist()
            once.publish(queue, outgoing(retries))
            once.publish(queue, outgoing(retries))
            await_backlog(once, queue, 50)

    def test_the_id_of_a_publish_is_not_passed_on(
        self, artemis_server: ArtemisServer, ours: ArtemisBinding, queue: str
    ) -> None:
        """Else a retry of a message that somebody published with such an id would be dropped."""
        with binding(artemis_server.url, duplicate_detection="true") as once:
            once.publish(queue, outgoing([envelope(1, queue)]))
        claimed = take(ours, queue, 1)
        assert "_AMQ_DUPL_ID" not in headers(claimed)
        ours.publish(queue, outgoing(bodies(claimed), headers=[headers(claimed)]))
        ours.acknowledge(queue, claimed)
        await_backlog(ours, queue, 1)

    @pytest.mark.parametrize(
        "odd",
        [
            b"\x00\x53\x77\x73\xff\xff\xff\xff",
            b"\x00\x53\x77\xf0\x00\x00\x00\x05\xff\xff\xff\xff\x41",
            b"\x00\xa3\x10amqp:data:binary\xa0\x03abc",
        ],
        ids=["no character", "an array without end", "a section by its name"],
    )
    def test_what_no_codec_reads_is_a_body_of_its_bytes(self, odd: bytes) -> None:
        assert received([(1, odd)], None).column("body").to_pylist() == [odd]

    def test_delays_are_met_whatever_waits_before(self, ours: ArtemisBinding, queue: str) -> None:
        started = time.monotonic()
        ours.publish(queue, outgoing([b"late", b"soon"], delays=[60_000, 300]))
        assert bodies(take(ours, queue, 1)) == [b"soon"]
        assert time.monotonic() - started >= 0.29

    def test_what_has_expired_is_not_read(self, artemis_server: ArtemisServer, queue: str) -> None:
        with binding(artemis_server.url, time_to_live_ms="300") as hasty:
            hasty.publish(queue, outgoing([b"a"]))
            send(artemis_server, queue, [Message("b", ttl=0.3), Message("c")])
            threading.Event().wait(0.5)
            assert bodies(joined(hasty.browse(queue))) in ([b"c"], [b"a", b"b", b"c"])
            assert bodies(take(hasty, queue, 1)) == [b"c"]
            assert_empty(hasty, queue)

    def test_what_the_broker_refuses_is_an_error(self, queue: str) -> None:
        full = "<max-size-messages>100</max-size-messages><address-full-policy>FAIL</address-full-policy>"
        with ArtemisServer(settings=full) as server, binding(server.url) as ours:
            with pytest.raises(BrokerError, match=r"were not taken|full") as caught:
                ours.publish(queue, outgoing([b"x"] * 500))
            assert_safe(caught.value)
            assert ours.backlog(queue) > 0

    def test_a_broker_that_takes_nothing_is_an_error(self, queue: str) -> None:
        full = "<max-size-messages>100</max-size-messages><address-full-policy>BLOCK</address-full-policy>"
        with ArtemisServer(settings=full) as server, binding(server.url, timeout="2") as ours:
            with pytest.raises(BrokerError, match=r"it takes no messages|in time") as caught:
                ours.publish(queue, outgoing([b"x"] * 5_000))
            assert_safe(caught.value)

    @pytest.mark.restarts
    def test_messages_survive_a_restart(self, artemis_server: ArtemisServer, queue: str) -> None:
        with artemis_server.running_afterwards() as server, binding(server.url) as ours:
            ours.publish(queue, outgoing([b"a", b"b"]))
            claimed = take(ours, queue, 1)
            server.stop()
            for verb in (lambda: ours.backlog(queue), lambda: ours.publish(queue, outgoing([b"c"]))):
                with pytest.raises(BrokerError, match="Artemis at 127"):
                    verb()
            server.start()
            assert ours.acknowledge(queue, claimed).to_pylist() == [False]
            assert bodies(take(ours, queue, 2)) == [b"a", b"b"]


class TestErrors:
    @pytest.mark.parametrize(
        "change", [("s3cret-w0rd", "wr0ng"), ("babel:", "nobody:"), ("babel:s3cret-w0rd@", "")]
    )
    def test_a_refused_login(
        self, artemis_server: ArtemisServer, queue: str, change: tuple[str, str]
    ) -> None:
        with (
            binding(artemis_server.url.replace(*change)) as refused,
            pytest.raises(BrokerAuthenticationError, match="check user and password") as caught,
        ):
            refused.backlog(queue)
        assert_safe(caught.value)
        assert "wr0ng" not in str(caught.value)

    def test_a_queue_that_is_closed_to_the_user(self, artemis_server: ArtemisServer, queue: str) -> None:
        with binding(artemis_server.limited_url) as limited:
            with pytest.raises(QueueForbiddenError, match="extend its roles") as caught:
                limited.publish(f"closed.{queue}", outgoing([b"x"]))
            assert_safe(caught.value)
            assert limited.publish(queue, outgoing([b"x"])) == 1

    def test_another_protocol(self, redis_server: Any, queue: str) -> None:
        url = f"artemis://babel:{SECRET}@{redis_server.address}"
        with (
            binding(url, timeout="2") as refused,
            pytest.raises(BrokerError, match=r"AMQP|in time") as caught,
        ):
            refused.backlog(queue)
        assert_safe(caught.value)

    def test_a_server_that_says_nothing(self, queue: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            url = f"artemis://babel:{SECRET}@127.0.0.1:{silent.getsockname()[1]}"
            with binding(url, timeout="1") as refused, pytest.raises(BrokerError, match="in time") as caught:
                refused.backlog(queue)
        assert_safe(caught.value)

    def test_a_queue_without_a_name(self, ours: ArtemisBinding) -> None:
        for verb in (lambda: ours.claim("::", 1, MIB), lambda: ours.publish("::", outgoing([b"x"]))):
            with pytest.raises(BrokerError, match="Invalid queue name") as caught:
                verb()
            assert_safe(caught.value)

    @pytest.mark.parametrize(
        "url",
        [
            f"http://u:{SECRET}@h/", f"artemis://u:{SECRET}@h:port", "artemis://", "artemis://h/vhost",
            "artemis://h?x=1",
        ],
    )  # fmt: skip
    def test_a_url_that_cannot_be_read(self, url: str) -> None:
        with pytest.raises(OptionError, match="artemis://") as caught:
            binding(url)
        assert_safe(caught.value)

    @pytest.mark.parametrize(
        ("options", "advice"),
        [
            ({"timeout": "soon"}, "artemis.timeout"),
            ({"time_to_live_ms": "0"}, "artemis.time_to_live_ms"),
            ({"duplicate_detection": "perhaps"}, "artemis.duplicate_detection"),
            ({"ssl_ca_certs": "/x"}, r"artemis\+ssl://"),
        ],
    )
    def test_options_that_cannot_be_used(self, options: dict[str, str], advice: str) -> None:
        with pytest.raises(OptionError, match=advice):
            binding("artemis://localhost", **options)

    def test_a_visibility_timeout_is_refused(self) -> None:
        with pytest.raises(OptionError, match="as long as its connection"):
            ArtemisBinding(BindingConfig(url="artemis://localhost", visibility_timeout=90))


@pytest.fixture(scope="module")
def secure(certificates: Certificates) -> Iterator[ArtemisServer]:
    with ArtemisServer(certificates) as server:
        yield server


class TestTls:
    def test_its_own_ca_and_a_client_certificate(
        self, secure: ArtemisServer, certificates: Certificates, queue: str
    ) -> None:
        options = {
            "ssl_ca_certs": str(certificates.ca),
            "ssl_certfile": str(certificates.client),
            "ssl_keyfile": str(certificates.client_key),
        }
        with binding(secure.secure_url, **options) as ours:
            sent = [b"x" * 100_000] * 50
            ours.publish(queue, outgoing(sent))
            claimed = take(ours, queue, 50)
            assert bodies(claimed) == sent
            assert ours.acknowledge(queue, claimed).true_count == 50

    @pytest.mark.parametrize("given", [[], ["ssl_ca_certs"]])
    def test_without_either_it_is_refused(
        self, secure: ArtemisServer, certificates: Certificates, queue: str, given: list[str]
    ) -> None:
        options = {name: str(certificates.ca) for name in given}
        with (
            binding(secure.secure_url, **options) as refused,
            pytest.raises(BrokerError, match=r"Artemis at .*TLS") as caught,
        ):
            refused.backlog(queue)
        assert_safe(caught.value)

    def test_plain_where_tls_is_spoken(self, secure: ArtemisServer, queue: str) -> None:
        url = secure.secure_url.replace("+ssl", "")
        with binding(url, timeout="2") as refused, pytest.raises(BrokerError, match=r"TLS|AMQP") as caught:
            refused.backlog(queue)
        assert_safe(caught.value)

    def test_a_certificate_that_is_not_there(self, secure: ArtemisServer, queue: str) -> None:
        with (
            binding(secure.secure_url, ssl_ca_certs="/no/such/file") as refused,
            pytest.raises(OptionError, match="ssl_ca_certs"),
        ):
            refused.backlog(queue)


def ask(server: ArtemisServer, operation: str, arguments: str) -> None:
    """Have the broker do something, as a manager of it would; closes connections of ours perhaps."""
    with bare_client(server) as connection:
        sender = connection.create_sender("activemq.management")
        named = {"_AMQ_ResourceName": "broker", "_AMQ_OperationName": operation}
        sender.send(Message(arguments, properties=named))
