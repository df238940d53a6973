"""What only Pulsar does: entries and batches, receipts of others, partitions, prefetch, backlog, logins, TLS."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pulsar as client
import pyarrow as pa
import pytest
from babelqueue.codec import EnvelopeCodec
from babelqueue.pulsar_transport import PulsarTransport

from babelqueue_spark.bindings import BindingConfig
from babelqueue_spark.bindings.pulsar import PulsarBinding
from babelqueue_spark.bindings.pulsar.claims import ClaimRepeatedError, Claims
from babelqueue_spark.bindings.pulsar.client import PulsarClient
from babelqueue_spark.bindings.pulsar.consumer import BufferedConsumer
from babelqueue_spark.bindings.pulsar.messages import EntryId, Held, Unit, claimed, properties, units_of
from babelqueue_spark.connector.options import read_options
from babelqueue_spark.connector.source import claiming
from babelqueue_spark.connector.source.claiming import deliveries_of
from babelqueue_spark.connector.source.plan import Claim, Share
from babelqueue_spark.envelope import decode
from babelqueue_spark.errors import BrokerError, OptionError
from babelqueue_spark.journal import Journal
from babelqueue_spark.testing import (
    MIB,
    SECRET,
    assert_empty,
    assert_safe,
    await_backlog,
    claim_some,
    eventually,
    joined,
    outgoing,
    publish_all,
    take,
    through_ipc,
)
from tests.servers.certificates import Certificates
from tests.servers.pulsar import PulsarServer
from tests.streams import envelope

pytestmark = pytest.mark.server

QUIET = client.ConsoleLogger(client.LoggerLevel.Error)


def binding(server: PulsarServer, **options: str) -> PulsarBinding:
    return PulsarBinding(BindingConfig(url=server.url, client_options=options))


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def bodies(batch: pa.RecordBatch) -> list[bytes]:
    values: list[bytes] = batch.column("body").to_pylist()
    return values


@pytest.fixture
def ours(pulsar_server: PulsarServer) -> Iterator[PulsarBinding]:
    with binding(pulsar_server) as opened:
        yield opened


@pytest.fixture
def other(pulsar_server: PulsarServer) -> Iterator[PulsarBinding]:
    with binding(pulsar_server) as opened:
        yield opened


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a claim wait for what is on its way: on a busy machine it is short of messages that are there."""
    for name in ("_FIRST_MILLISECONDS", "_QUIET_MILLISECONDS"):
        monkeypatch.setattr(f"{BufferedConsumer.__module__}.{name}", 30_000)


@pytest.fixture
def bare(pulsar_server: PulsarServer) -> Iterator[Any]:
    """A bare client."""
    made = client.Client(pulsar_server.url, logger=QUIET)
    yield made
    made.close()


def consumer(bare: Any, queue: str, **options: Any) -> Any:
    """A bare consumer of our subscription."""
    return bare.subscribe(
        queue,
        "babelqueue",
        consumer_type=client.ConsumerType.Shared,
        initial_position=client.InitialPosition.Earliest,
        **options,
    )


def send_batch(bare: Any, queue: str, contents: list[bytes], **given: Any) -> None:
    """Messages as one producer's batch."""
    producer = bare.create_producer(queue, batching_enabled=True, batching_max_publish_delay_ms=5_000)
    for content in contents:
        producer.send_async(content, lambda result, place: None, **given)
    producer.flush()
    producer.close()


def lost(_: PulsarClient, queue: str, topic: str, entries: Any) -> None:
    """In place of what settles."""
    raise BrokerError(f"{queue}: the connection was lost")


class TestProperties:
    def test_all_that_the_contract_names_and_headers_beside_it(
        self, ours: PulsarBinding, bare: Any, queue: str
    ) -> None:
        body = envelope(1, queue, attempts=2)
        sent = json.loads(body)
        headers = {"traceparent": "00-1", "bq-attempts": "99", "": "x"}
        ours.publish(queue, outgoing([body], headers=[headers], delays=[1], keys=["customer-7"]))
        message = consumer(bare, queue).receive(timeout_millis=60_000)
        assert message.data() == body
        assert message.partition_key() == "customer-7"
        assert message.properties() == {
            "bq-job": sent["job"], "bq-trace-id": sent["trace_id"], "bq-message-id": sent["meta"]["id"],
            "bq-schema-version": "1", "bq-source-lang": "python", "bq-attempts": "2", "bq-delay": "1",
            "traceparent": "00-1",
        }  # fmt: skip

    @pytest.mark.parametrize(
        "body",
        [
            b"not json",
            b"[1]",
            b"null",
            b'{"job":5,"trace_id":[],"meta":"x","attempts":"x","data":{}}',
            b'{"job":"urn:x","meta":{"id":7,"schema_version":1.5},"attempts":1180591620717411303424}',
            b"\xff\xfe",
        ],
    )
    def test_no_body_stops_a_publish(self, ours: PulsarBinding, queue: str, body: bytes) -> None:
        ours.publish(queue, outgoing([body]))
        assert bodies(take(ours, queue, 1)) == [body]

    def test_a_body_that_is_no_envelope_has_no_projection(self) -> None:
        assert list(properties(outgoing([b"not json"], headers=[{"a": "b"}]))) == [{"a": "b"}]

    def test_a_publish_time_and_a_count_beyond_their_columns_are_null(self) -> None:
        """Of a sender that writes the protocol itself: no client lets one set them."""
        entry = EntryId("orders", -1, 7, 9)
        batch = claimed([Unit(entry, 2**64 - 1, 2**32 - 1, [Held(-1, b"a", {}, None)])], "holder")
        assert batch.select(["enqueued_at", "count", "redelivered"]).to_pylist() == [
            {"enqueued_at": None, "count": None, "redelivered": True}
        ]
        assert [unit.entry for unit in units_of(batch)] == [entry]


class TestSdk:
    @pytest.fixture
    def sdk(self, bare: Any) -> PulsarTransport:
        return PulsarTransport(client=bare)

    def test_what_the_sdk_publishes_is_claimed(
        self, ours: PulsarBinding, sdk: PulsarTransport, queue: str
    ) -> None:
        body = envelope(1, queue).decode()
        sdk.publish(queue, body)
        claimed = take(ours, queue, 1)
        assert bodies(claimed) == [body.encode()]
        assert dict(claimed.column("headers")[0].as_py()) == sdk._projection(body)
        assert ours.acknowledge(queue, claimed).to_pylist() == [True]
        assert_empty(ours, queue)

    def test_what_we_publish_the_sdk_reads_with_the_properties_it_would_write(
        self, ours: PulsarBinding, sdk: PulsarTransport, queue: str
    ) -> None:
        body = envelope(7, queue)
        ours.publish(queue, outgoing([body]))
        message = sdk.pop(queue, timeout=60)
        assert message is not None
        assert message.body.encode() == body
        assert EnvelopeCodec.accepts(EnvelopeCodec.decode(message.body))
        assert message.handle.properties() == sdk._projection(body.decode())
        sdk.ack(message)

    def test_each_sees_the_attempts_of_the_other(
        self, ours: PulsarBinding, sdk: PulsarTransport, bare: Any, queue: str
    ) -> None:
        ours.publish(queue, outgoing([envelope(1, queue)]))
        consumer(bare, queue, receiver_queue_size=0)  # with the last consumer, the broker forgets its counts
        reader = consumer(bare, queue, negative_ack_redelivery_delay_ms=100)
        reader.negative_acknowledge(reader.receive(timeout_millis=60_000))
        reader.receive(timeout_millis=60_000)
        reader.close()
        claimed = take(ours, queue, 1)
        attempts = decode(claimed.column("body")).column("attempts")
        assert claimed.column("count").to_pylist() == [2]
        assert claimed.column("redelivered").to_pylist() == [True]
        assert ours.attempts(attempts, claimed).to_pylist() == [1]
        retried = envelope(1, queue, attempts=3)
        ours.publish(queue, outgoing([retried]))
        ours.acknowledge(queue, claimed)
        message = sdk.pop(queue, timeout=60)
        assert json.loads(message.body)["attempts"] == 3


class TestBatches:
    """A producer's batch is one entry to the broker, which it gives out and takes back as a whole."""

    def test_a_batch_is_claimed_as_a_whole(self, ours: PulsarBinding, bare: Any, queue: str) -> None:
        sent = numbered(100)
        send_batch(bare, queue, sent)
        claimed = take(ours, queue, 7)
        assert bodies(claimed) == sent
        assert len(set(ours.identities(claimed))) == 100
        assert ours.acknowledge(queue, claimed).true_count == 100
        assert_empty(ours, queue)

    @pytest.mark.usefixtures("patient")
    def test_a_claim_ends_before_a_batch_that_does_not_fit(
        self, ours: PulsarBinding, bare: Any, queue: str
    ) -> None:
        for first in (0, 30, 60):
            send_batch(bare, queue, numbered(90)[first : first + 30])
        assert ours.claim(queue, 70, MIB).num_rows == 60
        assert ours.claim(queue, 30, MIB).num_rows == 30

    def test_messages_acknowledged_one_by_one_are_gone_with_the_last_of_the_batch(
        self, ours: PulsarBinding, pulsar_server: PulsarServer, bare: Any, queue: str
    ) -> None:
        send_batch(bare, queue, numbered(5))
        claimed = take(ours, queue, 5)
        said = [ours.acknowledge(queue, claimed.slice(row, 1)).to_pylist() for row in (3, 0, 4, 1, 2)]
        assert said == [[False]] * 4 + [[True]]
        assert pulsar_server.subscription(queue)["msgBacklog"] == 0
        assert_empty(ours, queue)

    def test_a_batch_that_is_acknowledged_in_part_comes_back_as_a_whole(
        self, ours: PulsarBinding, other: PulsarBinding, bare: Any, queue: str
    ) -> None:
        """The broker would take the acknowledge of a part for that of the whole, and lose the rest."""
        send_batch(bare, queue, numbered(5))
        claimed = take(ours, queue, 5)
        assert ours.acknowledge(queue, claimed.slice(0, 3)).to_pylist() == [False] * 3
        ours.close()
        again = take(other, queue, 5)
        assert sorted(other.identities(again)) == sorted(ours.identities(claimed))
        assert other.acknowledge(queue, again).true_count == 5

    def test_what_is_released_of_a_batch_acknowledged_in_part_comes_back_alone(
        self, ours: PulsarBinding, bare: Any, pulsar_server: PulsarServer, queue: str
    ) -> None:
        given = {"bq-delay": "9", "bq-attempts": "5"}
        send_batch(bare, queue, numbered(5), properties=given, partition_key="k")
        claimed = take(ours, queue, 5)
        ours.acknowledge(queue, claimed.slice(0, 3))
        ours.release(queue, claimed.slice(3))
        rest = take(ours, queue, 2)
        assert sorted(bodies(rest)) == [b"3", b"4"]
        assert rest.column("headers").to_pylist() == [[("bq-attempts", "5")]] * 2
        assert rest.column("key").to_pylist() == ["k"] * 2
        assert ours.acknowledge(queue, rest).true_count == 2
        assert pulsar_server.subscription(queue)["msgBacklog"] == 0

    def test_a_part_whose_acknowledge_failed_is_acknowledged_again(
        self,
        ours: PulsarBinding,
        bare: Any,
        pulsar_server: PulsarServer,
        queue: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        send_batch(bare, queue, numbered(4))
        claimed = take(ours, queue, 4)
        ours.acknowledge(queue, claimed.slice(0, 2))
        with monkeypatch.context() as broken:
            broken.setattr(PulsarClient, "settle", lost)
            with pytest.raises(BrokerError, match="lost"):
                ours.acknowledge(queue, claimed.slice(2))
        assert ours.acknowledge(queue, claimed.slice(2)).to_pylist() == [True, True]
        assert pulsar_server.subscription(queue)["msgBacklog"] == 0

    def test_nothing_is_sent_again_when_the_connection_was_lost(
        self,
        ours: PulsarBinding,
        other: PulsarBinding,
        bare: Any,
        queue: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        send_batch(bare, queue, numbered(4))
        claimed = take(ours, queue, 4)
        ours.acknowledge(queue, claimed.slice(0, 2))
        with monkeypatch.context() as broken:
            broken.setattr(BufferedConsumer, "connected", lambda _: False)
            ours.release(queue, claimed.slice(2))
        again = take(other, queue, 4)
        assert sorted(bodies(again)) == numbered(4)
        assert other.acknowledge(queue, again).true_count == 4
        assert_empty(other, queue)

    def test_parts_of_two_claims_do_not_make_a_whole(
        self, ours: PulsarBinding, other: PulsarBinding, bare: Any, queue: str
    ) -> None:
        send_batch(bare, queue, numbered(4))
        first = take(ours, queue, 4)
        other.acknowledge(queue, first.slice(0, 2))
        ours.close()
        second = take(other, queue, 4)
        assert other.acknowledge(queue, second.slice(2)).to_pylist() == [False, False]
        assert other.acknowledge(queue, second.slice(0, 2)).to_pylist() == [True, True]

    def test_our_own_batches(self, pulsar_server: PulsarServer, queue: str) -> None:
        sent = numbered(3_000)
        with binding(pulsar_server, batching="true") as ours:
            publish_all(ours, queue, sent)
            assert pulsar_server.subscription(queue)["msgBacklog"] < 100
            claimed = take(ours, queue, len(sent))
            assert sorted(bodies(claimed)) == sorted(sent)
            assert ours.acknowledge(queue, claimed).true_count == len(sent)
            assert_empty(ours, queue)

    def test_what_another_consumer_left_of_a_batch(self, tmp_path: Path, queue: str) -> None:
        """Where the broker keeps acknowledges within batches, the rest of one is complete."""
        with PulsarServer(acknowledgmentAtBatchIndexLevelEnabled="true") as server, binding(server) as ours:
            bare = client.Client(server.url, logger=QUIET)
            reader = consumer(bare, queue, batch_index_ack_enabled=True)
            send_batch(bare, queue, numbered(6))
            for number in range(6):
                message = reader.receive(timeout_millis=60_000)
                if number % 2:
                    reader.acknowledge(message)
            bare.close()
            claimed = take(ours, queue, 3)
            assert bodies(claimed) == [b"0", b"2", b"4"]
            assert ours.acknowledge(queue, claimed).to_pylist() == [True] * 3
            assert server.subscription(queue)["msgBacklog"] == 0


class TestReceipts:
    def test_another_process_acknowledges_while_the_claim_is_held(
        self, ours: PulsarBinding, other: PulsarBinding, pulsar_server: PulsarServer, queue: str
    ) -> None:
        ours.publish(queue, outgoing(numbered(3)))
        kept = through_ipc(take(ours, queue, 3))
        assert other.acknowledge(queue, kept).to_pylist() == [True] * 3
        found = pulsar_server.subscription(queue)
        assert (found["msgBacklog"], found["unackedMessages"]) == (0, 0)
        ours.close()
        assert_empty(other, queue)

    def test_an_acknowledge_has_reached_the_broker_when_it_returns(
        self, ours: PulsarBinding, pulsar_server: PulsarServer, queue: str
    ) -> None:
        ours.publish(queue, outgoing(numbered(2_500)))
        for _ in range(5):
            claimed = take(ours, queue, 500)
            before = pulsar_server.subscription(queue)["msgBacklog"]
            assert ours.acknowledge(queue, claimed).true_count == 500
            assert pulsar_server.subscription(queue)["msgBacklog"] == before - 500

    def test_a_claim_that_is_given_out_again_is_an_error(
        self, ours: PulsarBinding, pulsar_server: PulsarServer, queue: str
    ) -> None:
        """As when the client made a lost connection anew behind our back."""
        ours.publish(queue, outgoing(numbered(5)))
        take(ours, queue, 5)
        ours._consumers[queue]._consumer.redeliver_unacknowledged_messages()
        with pytest.raises(BrokerError, match="the connection was lost and made again"):
            eventually(lambda: ours.claim(queue, 10, MIB).num_rows)

    def test_what_waits_and_is_sent_again_is_claimed_once(self, ours: PulsarBinding, queue: str) -> None:
        """As a broker does when the last consumer left and another comes; from then on it is gone."""
        ours.publish(queue, outgoing(numbered(5)))
        consumer = ours._consumer_of(queue, 10)
        assert eventually(lambda: consumer.waiting(5) == 5)
        consumer._consumer.redeliver_unacknowledged_messages()
        assert eventually(lambda: consumer.waiting(10) == 10)
        claimed = ours.claim(queue, 10, MIB)
        assert sorted(bodies(claimed)) == numbered(5)
        assert ours.acknowledge(queue, claimed).true_count == 5
        assert_empty(ours, queue)

    def test_a_broker_that_stops_confirms_nothing(self, queue: str) -> None:
        short, long = {"operation_timeout_seconds": "2"}, {"operation_timeout_seconds": "60"}
        with PulsarServer() as server, binding(server) as ours, binding(server, **long) as other:
            ours.publish(queue, outgoing([b"a", b"b"]))
            claimed = take(ours, queue, 1)
            server.stop()
            with binding(server, **short) as late:
                refused = (
                    lambda: late.acknowledge(queue, claimed),
                    lambda: late.backlog(queue),
                    lambda: ours.claim(queue, 1, MIB),
                )
                for verb in refused:
                    with pytest.raises(
                        BrokerError, match=rf"Pulsar at {server.address}: topic '{queue}'"
                    ) as caught:
                        verb()
                    assert_safe(caught.value)
            assert ours.acknowledge(queue, claimed).to_pylist() == [False]
            server.start()
            again = take(other, queue, 2)
            assert sorted(bodies(again)) == [b"a", b"b"]
            assert other.acknowledge(queue, again).to_pylist() == [True, True]


class TestJournal:
    @pytest.mark.usefixtures("patient")
    def test_what_a_retry_acknowledged_is_recognised_by_whom_it_was_sent_to_before(
        self,
        other: PulsarBinding,
        pulsar_server: PulsarServer,
        queue: str,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        other.publish(queue, outgoing([envelope(number) for number in range(10)]))
        options = read_options({"url": pulsar_server.url, "queue": queue})
        journal = Journal(str(tmp_path))
        journal_id = journal.id
        journal.record_plan(1, {})

        def read(index: int, reader: PulsarBinding) -> int:
            claim = Claim(
                journal=journal_id,
                batch=1,
                index=index,
                shares=[Share(queue, messages=10, max_bytes=MIB)],
                max_bytes=MIB,
                committed=0,
            )
            return sum(batch.num_rows for _, batch in deliveries_of(claim, options, journal, reader))

        def die(*_: Any, **__: Any) -> None:
            raise ZeroDivisionError

        with monkeypatch.context() as dying, binding(pulsar_server) as first:
            dying.setattr(claiming, "_acknowledge_and_record", die)
            with pytest.raises(ZeroDivisionError):
                read(0, first)
        monkeypatch.undo()
        assert claim_some(other, queue, messages=10, max_bytes=1).num_rows == 1
        assert eventually(lambda: other._consumers[queue].waiting(9) == 9)
        with binding(pulsar_server) as retry:
            assert read(0, retry) == 10
        assert pulsar_server.subscription(queue)["msgBacklog"] == 0
        assert read(1, other) == 0
        record = journal.segment(1, 1).ack_record()
        assert record is not None
        assert record.claimed == [9]


class TestDoubleDelivery:
    """Two subscriptions give the same messages to two tasks, as a broker does by mistake to two of one."""

    MESSAGES = 10

    @pytest.fixture
    def read(
        self, request: pytest.FixtureRequest, pulsar_server: PulsarServer, queue: str, tmp_path: Path
    ) -> Callable[[int, int], list[bytes]]:
        options = read_options({"url": pulsar_server.url, "queue": queue})
        journal = Journal(str(tmp_path))
        journal_id = journal.id
        for task in (0, 1):
            with binding(pulsar_server, subscription=f"of-task-{task}") as reader:
                assert reader.backlog(queue) == 0
        request.getfixturevalue("patient")
        with binding(pulsar_server) as writer:
            writer.publish(queue, outgoing(numbered(self.MESSAGES)))
        journal.record_plan(1, {})

        def read(task: int, messages: int = self.MESSAGES) -> list[bytes]:
            shares = [Share(queue, messages, MIB)]
            claim = Claim(journal_id, 1, task, shares, MIB, committed=0, tasks=2)
            with binding(pulsar_server, subscription=f"of-task-{task}") as reader:
                found = deliveries_of(claim, options, Journal(str(tmp_path)), reader)
            return [body for _, batch in found for body in bodies(batch)]

        return read

    def test_the_task_that_was_first_yields_them(self, read: Callable[..., list[bytes]]) -> None:
        first = read(0, messages=6)
        assert len(first) == 6
        second = read(1)
        assert sorted([*first, *second]) == sorted(numbered(self.MESSAGES))
        assert [read(0), read(1)] == [first, second]

    def test_one_of_two_tasks_at_the_same_moment_yields_them(
        self, read: Callable[..., list[bytes]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Both have journalled and acknowledged them before either knows of the other."""
        both = threading.Barrier(2)
        original = Journal.left_to_others

        def left_to_others(*given: Any) -> set[str]:
            both.wait(60)
            return original(*given)

        with monkeypatch.context() as at_once, ThreadPoolExecutor(2) as pool:
            at_once.setattr(Journal, "left_to_others", left_to_others)
            yielded = list(pool.map(read, (0, 1)))
        assert sorted(map(len, yielded)) == [0, self.MESSAGES]
        assert [read(0), read(1)] == yielded


class TestPrefetch:
    def test_what_is_not_claimed_goes_back_when_the_claims_are_settled(
        self, ours: PulsarBinding, other: PulsarBinding, queue: str
    ) -> None:
        ours.publish(queue, outgoing(numbered(50)))
        claimed = take(ours, queue, 20)
        assert ours.acknowledge(queue, claimed).true_count == 20
        rest = take(other, queue, 30)
        assert rest.column("count").null_count == 30
        assert sorted([*bodies(claimed), *bodies(rest)]) == sorted(numbered(50))

    def test_it_goes_back_when_the_binding_closes(
        self, ours: PulsarBinding, other: PulsarBinding, queue: str
    ) -> None:
        ours.publish(queue, outgoing(numbered(50)))
        claimed = take(ours, queue, 20)
        ours.close()
        assert ours.acknowledge(queue, claimed).true_count == 0
        assert sorted(bodies(take(other, queue, 50))) == sorted(numbered(50))

    @pytest.mark.usefixtures("patient")
    def test_messages_beyond_the_bytes_wait_for_the_next_claim(self, ours: PulsarBinding, queue: str) -> None:
        sent = [b"%05d" % number * 200 for number in range(20)]
        ours.publish(queue, outgoing(sent))
        first = ours.claim(queue, 100, 10_500)
        rest = take(ours, queue, 10)
        assert [*bodies(first), *bodies(rest)] == sent
        assert first.num_rows == 10


class TestBacklog:
    def test_beyond_a_thousand_it_is_an_estimate(self, ours: PulsarBinding, queue: str) -> None:
        publish_all(ours, queue, numbered(999))
        await_backlog(ours, queue, 999)
        publish_all(ours, queue, numbered(2))
        assert eventually(lambda: ours.backlog(queue) == 1_000_000)

    def test_the_admin_endpoint_knows_better(
        self, pulsar_server: PulsarServer, bare: Any, queue: str
    ) -> None:
        with binding(pulsar_server, admin_url=pulsar_server.admin_url) as ours:
            publish_all(ours, queue, numbered(2_500))
            await_backlog(ours, queue, 2_500)
            batched = f"{queue}.batched"
            pulsar_server.make_partitioned(batched, 2)
            assert ours.backlog(batched) == 0
            for _ in range(6):
                send_batch(bare, batched, numbered(300))
            await_backlog(ours, batched, 1_800)

    @pytest.mark.parametrize(
        ("endpoint", "advice"),
        [("http://127.0.0.1:1", "check host and port"), ("{}/nothing/here", "answers 404")],
    )
    def test_an_admin_endpoint_that_cannot_be_used(
        self, pulsar_server: PulsarServer, queue: str, endpoint: str, advice: str
    ) -> None:
        with binding(pulsar_server, admin_url=endpoint.format(pulsar_server.admin_url)) as ours:
            publish_all(ours, queue, numbered(1_001))
            with pytest.raises(BrokerError, match=advice) as caught:
                eventually(lambda: ours.backlog(queue) > 1_000)
            assert_safe(caught.value)

    def test_looking_at_an_idle_queue_asks_the_broker_for_nothing(
        self, ours: PulsarBinding, pulsar_server: PulsarServer, queue: str
    ) -> None:
        assert ours.backlog(queue) == 0
        before = self.permits(pulsar_server, queue)
        assert sorted(before.values()) == [0, 1_000]
        for _ in range(5):
            assert ours.backlog(queue) == 0
        assert self.permits(pulsar_server, queue) == before
        ours.publish(queue, outgoing([b"a"]))
        await_backlog(ours, queue, 1)
        assert list(self.permits(pulsar_server, queue).values()) == [0]

    def permits(self, server: PulsarServer, queue: str) -> dict[str, int]:
        """How many messages each consumer may be sent, by what names it."""
        consumers = server.subscription(queue)["consumers"]
        return {each["consumerName"] + each["connectedSince"]: each["availablePermits"] for each in consumers}

    def test_no_message_is_stuck_when_claimers_leave_one_after_the_other(
        self, ours: PulsarBinding, pulsar_server: PulsarServer, queue: str
    ) -> None:
        """Without somebody standing by, Pulsar 4.0 delivers a hundred messages and waits for ever."""
        ours.publish(queue, outgoing(numbered(600)))
        await_backlog(ours, queue, 600)
        for _ in range(3):
            with binding(pulsar_server) as one, binding(pulsar_server) as two:
                take(one, queue, 600)
                assert two.claim(queue, 600, MIB).num_rows == 0
                two.claim(queue, 600, MIB)
                one.close()
        assert take(ours, queue, 600).num_rows == 600

    def test_looking_counts_as_no_delivery(self, ours: PulsarBinding, queue: str) -> None:
        ours.publish(queue, outgoing(numbered(5)))
        for _ in range(5):
            await_backlog(ours, queue, 5)
        assert take(ours, queue, 5).column("redelivered").null_count == 5


class TestPartitions:
    @pytest.fixture
    def queue(self, pulsar_server: PulsarServer) -> str:
        name = f"orders-{uuid.uuid4().hex[:12]}"
        pulsar_server.make_partitioned(name, 3)
        return name

    def test_what_goes_in_comes_out(
        self, ours: PulsarBinding, pulsar_server: PulsarServer, queue: str
    ) -> None:
        sent = numbered(600)
        ours.publish(queue, outgoing(sent, keys=[f"customer-{number % 20}" for number in range(600)]))
        await_backlog(ours, queue, 600)
        assert sorted(bodies(joined(ours.browse(queue)))) == sorted(sent)
        claimed = take(ours, queue, 600)
        assert sorted(bodies(claimed)) == sorted(sent)
        assert len(set(ours.identities(claimed))) == 600
        partitions: dict[str, set[str]] = {}
        for key, name in zip(claimed.column("key").to_pylist(), ours.identities(claimed), strict=True):
            partitions.setdefault(key, set()).add(name.split(":")[2])
        assert {len(found) for found in partitions.values()} == {1}
        assert len(set.union(*partitions.values())) == 3
        assert ours.acknowledge(queue, claimed).true_count == 600
        for number in range(3):
            assert pulsar_server.subscription(f"{queue}-partition-{number}")["msgBacklog"] == 0

    def test_receipts_of_another_process(self, ours: PulsarBinding, other: PulsarBinding, queue: str) -> None:
        ours.publish(queue, outgoing(numbered(30)))
        kept = through_ipc(take(ours, queue, 30))
        ours.close()
        assert other.acknowledge(queue, kept).true_count == 30
        assert_empty(other, queue)

    def test_batches_of_several_partitions(self, ours: PulsarBinding, bare: Any, queue: str) -> None:
        for _ in range(6):
            send_batch(bare, queue, numbered(50))
        claimed = take(ours, queue, 300)
        assert len(set(ours.identities(claimed))) == claimed.num_rows == 300
        assert ours.acknowledge(queue, claimed).true_count == 300
        assert_empty(ours, queue)


class TestBrowseByReader:
    """With the admin endpoint, which tells what is acknowledged."""

    @pytest.fixture
    def ours(self, pulsar_server: PulsarServer) -> Iterator[PulsarBinding]:
        with binding(pulsar_server, admin_url=pulsar_server.admin_url) as opened:
            assert opened.capabilities.browse == "exact"
            yield opened

    @pytest.fixture
    def other(self, pulsar_server: PulsarServer) -> Iterator[PulsarBinding]:
        with binding(pulsar_server, admin_url=pulsar_server.admin_url) as opened:
            yield opened

    def seen(self, ours: PulsarBinding, queue: str) -> list[bytes]:
        return sorted(bodies(joined(ours.browse(queue))))

    def test_no_consumer_is_made(self, ours: PulsarBinding, pulsar_server: PulsarServer, queue: str) -> None:
        publish_all(ours, queue, numbered(2_500))
        browsing = ours.browse(queue)
        assert next(browsing).num_rows == 1_000
        found = pulsar_server.subscription(queue)
        assert (found["consumers"], found["msgBacklog"]) == ([], 2_500)
        assert joined(browsing).num_rows == 1_500
        assert take(ours, queue, 2_500).column("redelivered").null_count == 2_500

    def test_a_queue_that_is_new(self, ours: PulsarBinding, queue: str) -> None:
        assert self.seen(ours, queue) == []

    def test_what_was_acknowledged_is_not_shown(
        self, ours: PulsarBinding, other: PulsarBinding, bare: Any, queue: str
    ) -> None:
        """Neither from the front nor out of the middle, and of a batch only when it was acknowledged whole."""
        sent = [b"%02d" % number for number in range(20)]
        ours.publish(queue, outgoing(sent))
        send_batch(bare, queue, [b"x", b"y"])
        send_batch(bare, queue, [b"z"])
        claimed = take(other, queue, 23)
        done = {b"00", b"01", b"02", b"05", b"06", b"07", b"11", b"19", b"y", b"z"}
        some = pa.array([body in done for body in bodies(claimed)])
        other.acknowledge(queue, claimed.filter(some))
        left = sorted([*(set(sent) - done), b"x", b"y"])
        assert self.seen(ours, queue) == left
        other.close()
        assert sorted(bodies(take(ours, queue, len(left)))) == left

    def test_what_others_claimed_is_shown_and_what_we_claimed_is_not(
        self, ours: PulsarBinding, other: PulsarBinding, queue: str
    ) -> None:
        ours.publish(queue, outgoing(numbered(5)))
        take(ours, queue, 5)
        assert self.seen(ours, queue) == []
        assert self.seen(other, queue) == sorted(numbered(5))

    def test_partitions_and_delays(
        self, ours: PulsarBinding, pulsar_server: PulsarServer, queue: str
    ) -> None:
        pulsar_server.make_partitioned(queue, 3)
        sent = numbered(60)
        keys = [f"customer-{number}" for number in range(60)]
        delays = [60_000 if number % 2 else None for number in range(60)]
        ours.publish(queue, outgoing(sent, keys=keys, delays=delays))
        shown = joined(ours.browse(queue))
        assert sorted(bodies(shown)) == sorted(sent[::2])
        assert shown.column("receipt").null_count == 30
        assert sorted(ours.identities(shown)) == sorted(ours.identities(take(ours, queue, 30)))

    def test_a_subscription_that_is_named_in_signs(self, pulsar_server: PulsarServer, queue: str) -> None:
        with binding(pulsar_server, admin_url=pulsar_server.admin_url, subscription="réader one/2*") as ours:
            ours.publish(queue, outgoing(numbered(3)))
            ours.acknowledge(queue, take(ours, queue, 3).slice(0, 2))
            ours.close()
            assert self.seen(ours, queue) == [b"2"]


class TestBrowse:
    def test_it_goes_beyond_what_a_consumer_may_hold(self, pulsar_server: PulsarServer, queue: str) -> None:
        space = f"public/{queue}"
        pulsar_server.admin(f"namespaces/{space}", {}, "PUT")
        pulsar_server.admin(f"namespaces/{space}/maxUnackedMessagesPerConsumer", 100, "POST")
        with binding(pulsar_server, topic_prefix=f"persistent://{space}/") as ours:
            ours.publish("orders", outgoing(numbered(450)))
            seen = bodies(joined(ours.browse("orders")))
            assert sorted(seen) == sorted(numbered(450))

    def test_one_that_is_broken_off_gives_everything_back(
        self, ours: PulsarBinding, other: PulsarBinding, queue: str
    ) -> None:
        ours.publish(queue, outgoing(numbered(1_500)))
        browsing = ours.browse(queue)
        assert 0 < next(browsing).num_rows < 1_500
        browsing.close()
        assert take(other, queue, 1_500).column("redelivered").null_count == 1_500


class TestPublishing:
    def test_what_is_too_large_is_an_error(self, ours: PulsarBinding, queue: str) -> None:
        with pytest.raises(BrokerError, match="1 messages were not confirmed: a message is larger") as caught:
            ours.publish(queue, outgoing([b"x", b"x" * (6 * MIB)]))
        assert_safe(caught.value)

    def test_messages_wait_for_a_reader_that_comes_later(
        self, ours: PulsarBinding, pulsar_server: PulsarServer, queue: str
    ) -> None:
        """Without a subscription the broker would drop them, and the topic in the end."""
        ours.publish(queue, outgoing([b"x"]))
        assert pulsar_server.subscription(queue)["msgBacklog"] == 1

    def test_a_subscription_of_its_own(
        self, ours: PulsarBinding, pulsar_server: PulsarServer, queue: str
    ) -> None:
        with binding(pulsar_server, subscription="audit") as audit:
            audit.publish(queue, outgoing([b"x"]))
            assert bodies(take(audit, queue, 1)) == [b"x"]
            assert bodies(take(ours, queue, 1)) == [b"x"]

    def test_a_whole_topic_name(self, ours: PulsarBinding, queue: str) -> None:
        ours.publish(f"persistent://public/default/{queue}", outgoing([b"x"]))
        assert bodies(take(ours, queue, 1)) == [b"x"]

    def test_a_delay_is_mirrored(self, ours: PulsarBinding, queue: str) -> None:
        ours.publish(queue, outgoing([b"x"], delays=[250]))
        assert dict(take(ours, queue, 1).column("headers")[0].as_py()) == {"bq-delay": "250"}


class TestErrors:
    def test_a_namespace_that_is_missing(self, pulsar_server: PulsarServer, queue: str) -> None:
        with (
            binding(pulsar_server, topic_prefix="persistent://public/none/") as ours,
            pytest.raises(BrokerError, match=r"Pulsar at 127.*topic") as caught,
        ):
            ours.publish(queue, outgoing([b"x"]))
        assert_safe(caught.value)

    @pytest.mark.parametrize("name", ["a/b", "persistent://x"])
    def test_a_name_that_cannot_be(self, ours: PulsarBinding, name: str) -> None:
        with pytest.raises(BrokerError, match="cannot be the name of a topic") as caught:
            ours.backlog(name)
        assert_safe(caught.value)

    def test_a_subscription_of_another_type(self, ours: PulsarBinding, bare: Any, queue: str) -> None:
        exclusive = bare.subscribe(queue, "babelqueue")
        with pytest.raises(BrokerError, match="of another type") as caught:
            ours.claim(queue, 1, MIB)
        assert_safe(caught.value)
        assert ours.publish(queue, outgoing([b"x"])) == 1
        assert exclusive.receive(timeout_millis=60_000).data() == b"x"

    @pytest.mark.parametrize(
        "url",
        [
            "http://h",
            f"pulsar://u:{SECRET}@h",
            "pulsar://",
            "pulsar://h:port",
            "pulsar://h?token=x",
            "pulsar://a,",
        ],
    )
    def test_a_url_that_cannot_be_read(self, url: str) -> None:
        with pytest.raises(OptionError, match="write pulsar://host") as caught:
            PulsarBinding(BindingConfig(url=url))
        assert_safe(caught.value)

    @pytest.mark.parametrize(
        ("options", "advice"),
        [
            ({"batching": "perhaps"}, r"pulsar\.batching"),
            ({"operation_timeout_seconds": "0"}, r"pulsar\.operation_timeout_seconds"),
            ({"admin_url": "localhost:8080"}, r"pulsar\.admin_url"),
            ({"admin_url": f"http://u:{SECRET}@h"}, r"pulsar\.admin_url"),
            ({"token": " "}, r"pulsar\.token"),
            ({"tls_validate_hostname": "false"}, r"pulsar\+ssl://"),
            ({"tls_certificate_file_path": "/x", "admin_url": "https://h"}, "together"),
        ],
    )
    def test_options_that_cannot_be_used(self, options: dict[str, str], advice: str) -> None:
        with pytest.raises(OptionError, match=advice) as caught:
            PulsarBinding(BindingConfig(url="pulsar://localhost", client_options=options))
        assert_safe(caught.value)

    def test_two_logins(self) -> None:
        options = {"token": SECRET, "tls_certificate_file_path": "/x", "tls_private_key_file_path": "/y"}
        with pytest.raises(OptionError, match="use one") as caught:
            PulsarBinding(BindingConfig(url="pulsar+ssl://localhost", client_options=options))
        assert_safe(caught.value)

    def test_a_visibility_timeout_is_refused(self) -> None:
        with pytest.raises(OptionError, match="as long as its connection"):
            PulsarBinding(BindingConfig(url="pulsar://localhost", visibility_timeout=90))

    def test_several_hosts(self) -> None:
        assert PulsarBinding(BindingConfig(url="pulsar://a:6650,b:6651"))._options.address == "a:6650,b:6651"


@pytest.fixture(scope="module")
def secure(certificates: Certificates) -> Iterator[PulsarServer]:
    with PulsarServer(tls=certificates, logins=True) as server:
        yield server


class TestLogins:
    def round_trip(self, url: str, queue: str, **options: str) -> None:
        with PulsarBinding(BindingConfig(url=url, client_options=options)) as ours:
            ours.publish(queue, outgoing([b"a"]))
            assert ours.acknowledge(queue, take(ours, queue, 1)).to_pylist() == [True]

    def test_a_token(self, secure: PulsarServer, queue: str) -> None:
        self.round_trip(secure.url, queue, token=str(secure.token))

    def test_a_token_is_for_the_admin_endpoint_too(self, secure: PulsarServer, queue: str) -> None:
        with binding(secure, token=str(secure.token), admin_url=secure.admin_url) as ours:
            publish_all(ours, queue, numbered(1_200))
            await_backlog(ours, queue, 1_200)

    def test_tls_and_a_token(self, secure: PulsarServer, certificates: Certificates, queue: str) -> None:
        self.round_trip(
            secure.secure_url, queue, token=str(secure.token), tls_trust_certs_file_path=str(certificates.ca)
        )

    def test_a_client_certificate(self, secure: PulsarServer, certificates: Certificates, queue: str) -> None:
        self.round_trip(
            secure.secure_url,
            queue,
            tls_trust_certs_file_path=str(certificates.ca),
            tls_certificate_file_path=str(certificates.client),
            tls_private_key_file_path=str(certificates.client_key),
        )

    @pytest.mark.parametrize("token", [None, SECRET])
    def test_a_refused_login(self, secure: PulsarServer, queue: str, token: str | None) -> None:
        options = {"operation_timeout_seconds": "2"} | ({"token": token} if token else {})
        with (
            binding(secure, **options) as refused,
            pytest.raises(BrokerError, match="check host, port and login") as caught,
        ):
            refused.backlog(queue)
        assert_safe(caught.value)

    def test_an_authority_that_is_not_trusted(self, secure: PulsarServer, queue: str) -> None:
        options = {"token": str(secure.token), "operation_timeout_seconds": "2"}
        config = BindingConfig(url=secure.secure_url, client_options=options)
        with PulsarBinding(config) as refused, pytest.raises(BrokerError, match="Pulsar at") as caught:
            refused.backlog(queue)
        assert str(secure.token) not in str(caught.value)
        assert_safe(caught.value)


def test_a_consumer_has_a_name_of_its_own() -> None:
    assert BufferedConsumer(None, Claims()).holder != BufferedConsumer(None, Claims()).holder


@dataclass
class Arrival:
    """A message of a batch of five as the client gives it, which is its own id."""

    place: int

    def __getattr__(self, name: str) -> Any:
        answers = {
            "message_id": self,
            "batch_index": self.place,
            "serialize": b"\x30\x05",
            "data": b"%d" % self.place,
            "properties": {},
            "topic_name": "orders",
        }
        return lambda: answers.get(name, 0)


class Arrivals:
    """A consumer to which these come; None = nothing for a while."""

    def __init__(self, *places: int | None) -> None:
        self._places = iter(places)

    def receive(self, timeout_millis: int) -> Arrival:
        place = next(self._places, None)
        if place is None:
            raise client.Timeout
        return Arrival(place)


def test_what_comes_twice_is_claimed_once() -> None:
    [unit] = BufferedConsumer(Arrivals(0, 1, 2, 0, 1, 2, 3, 4, 0, 1, 2, 3, 4), Claims()).claim(10, MIB)
    assert [held.body for held in unit.messages] == numbered(5)


def test_a_batch_of_which_a_part_was_taken_for_the_rest_is_not_claimed() -> None:
    """The acknowledge of the part would be that of the whole."""
    with pytest.raises(ClaimRepeatedError):
        BufferedConsumer(Arrivals(0, 1, None, 0, 1, 2, 3, 4), Claims()).claim(10, MIB)
