"""What only Kafka does: tiers, transactions, gaps, the SDK beside us, logins and errors."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from babelqueue.kafka_retry import RetryReinjector

from babelqueue_spark.bindings.contract import BindingConfig
from babelqueue_spark.bindings.kafka import KafkaBinding, client
from babelqueue_spark.errors import BrokerError, LogEndedError, OptionError
from babelqueue_spark.testing import (
    SECRET,
    assert_safe,
    eventually,
    in_processes,
    joined,
    outgoing,
    unless_busy,
)
from tests.bindings import kafka_peers as peers
from tests.servers.certificates import Certificates
from tests.servers.kafka import KafkaServer
from tests.streams import envelope

pytestmark = pytest.mark.server


def binding(server: KafkaServer, **options: str) -> KafkaBinding:
    return KafkaBinding(BindingConfig(url=server.url, client_options=options))


@pytest.fixture
def ours(kafka_server: KafkaServer) -> Iterator[KafkaBinding]:
    with binding(kafka_server) as made:
        yield made


def bodies(found: KafkaBinding, topic: str) -> list[bytes]:
    return joined(found.browse(topic)).column("body").to_pylist()


class TestKeys:
    def test_a_key_goes_where_javas_clients_send_it(
        self, kafka_server: KafkaServer, ours: KafkaBinding, queue: str
    ) -> None:
        """`org.apache.kafka.common.utils.Utils.murmur2` of these, made positive, by 3."""
        peers.make_topic(kafka_server, queue, partitions=3)
        ours.publish(queue, outgoing([b"a"] * 3, keys=["a", "b", "customer-7"]))
        found = {message.key(): message.partition() for message in peers.records(kafka_server, queue, 3)}
        assert found == {key: murmur2(key) % 3 for key in (b"a", b"b", b"customer-7")}


def murmur2(data: bytes) -> int:
    """As Java's clients hash a key: positive."""
    seed, factor, mask = 0x9747B28C, 0x5BD1E995, 0xFFFFFFFF
    found = seed ^ len(data)
    whole = len(data) - len(data) % 4
    for at in range(0, whole, 4):
        part = int.from_bytes(data[at : at + 4], "little") * factor & mask
        found = (found * factor & mask) ^ ((part ^ part >> 24) * factor & mask)
    for place, byte in reversed(list(enumerate(data[whole:]))):
        found ^= byte << 8 * place
    if data[whole:]:
        found = found * factor & mask
    found = (found ^ found >> 13) * factor & mask
    return (found ^ found >> 15) & 0x7FFFFFFF


class TestTiers:
    def test_what_waits_is_seen_when_it_is_due(self, kafka_server: KafkaServer, queue: str) -> None:
        with binding(kafka_server, retry_tiers_ms="1500,60000") as ours:
            ours.publish(queue, outgoing([b"soon", b"later"], delays=[1_000, 2_000]))
            assert ours.backlog(f"{queue}.retry.1") == 0
            assert eventually(lambda: bodies(ours, f"{queue}.retry.1")) == [b"soon"]
            assert bodies(ours, f"{queue}.retry.2") == []
            assert ours.origin(f"{queue}.retry.2") == queue
        with binding(kafka_server) as untiered:
            assert bodies(untiered, f"{queue}.retry.2") == [b"later"]

    def test_the_sdks_reinjector_brings_them_back(self, kafka_server: KafkaServer, queue: str) -> None:
        body = envelope(1, queue, attempts=1)
        with binding(kafka_server, retry_tiers_ms="100,200") as ours:
            ours.publish(
                queue, outgoing([body], delays=[50], keys=["k"], headers=[{"traceparent": "00-1-2-01"}])
            )
            reinjector = RetryReinjector(
                kafka_server.url, work_topics=[queue], retry_tiers_ms=[100, 200], group_id=queue
            )
            eventually(lambda: reinjector.run_once() or bodies(ours, queue))
            [record] = peers.records(kafka_server, queue, 1)
        assert (record.value(), record.key()) == (body, b"k")
        headers = peers.headers_of(record)
        assert headers["traceparent"] == "00-1-2-01"
        assert not {"bq-delay", "bq-original-topic"} & headers.keys()

    def test_a_retry_of_the_sdk_waits_in_the_tier_that_we_read(
        self, kafka_server: KafkaServer, queue: str
    ) -> None:
        transport = peers.sdk(kafka_server, retry_tiers_ms=[100, 200], group_id=queue)
        sent = envelope(1, queue)
        transport.publish_delayed(queue, sent.decode(), 150)
        with binding(kafka_server, retry_tiers_ms="100,200") as ours:
            [body] = eventually(lambda: bodies(ours, f"{queue}.retry.2"))
        assert body == sent


class TestTheSdk:
    def test_it_reads_what_we_write(self, kafka_server: KafkaServer, ours: KafkaBinding, queue: str) -> None:
        body = envelope(1, queue)
        ours.publish(queue, outgoing([body]))
        message = peers.popped(peers.sdk(kafka_server, group_id=queue), queue)
        assert message.body.encode() == body

    def test_we_read_what_it_writes(self, kafka_server: KafkaServer, ours: KafkaBinding, queue: str) -> None:
        body = envelope(1, queue)
        transport = peers.sdk(kafka_server)
        transport.publish(queue, body.decode())
        found = joined(eventually(lambda: bodies(ours, queue) and list(ours.browse(queue))))
        assert found.column("body").to_pylist() == [body]
        assert dict(found.column("headers").to_pylist()[0])["bq-message-id"] == json.loads(body)["meta"]["id"]


class TestTransactions:
    def test_offsets_have_gaps_where_transactions_ended(self, ours: KafkaBinding, queue: str) -> None:
        for number in range(3):
            ours.publish(queue, outgoing([b"%d" % number]), idempotency_key=uuid.uuid4().hex)
        [(partition, end)] = ours.end_offsets(queue).items()
        assert end > 3
        assert bodies(ours, queue) == [b"0", b"1", b"2"]
        assert joined(ours.read(queue, partition, end - 1, end)).num_rows == 0

    def test_a_writer_is_remembered_by_his_last_marker(self, ours: KafkaBinding, queue: str) -> None:
        writer, first, second = (uuid.uuid4().hex[:16] for _ in range(3))
        assert ours.publish(queue, outgoing([b"1"]), idempotency_key=writer + first) == 1
        assert ours.publish(queue, outgoing([b"2"]), idempotency_key=writer + second) == 1
        assert ours.publish(queue, outgoing([b"2"]), idempotency_key=writer + second) == 0

    def test_a_batch_that_waits_in_a_tier_is_known_when_its_delay_is_over(
        self, kafka_server: KafkaServer, queue: str
    ) -> None:
        marker = uuid.uuid4().hex
        with binding(kafka_server, retry_tiers_ms="1000") as ours:
            assert ours.publish(queue, outgoing([b"later"], delays=[900]), idempotency_key=marker) == 1
            assert ours.publish(queue, outgoing([b"later"], delays=[0]), idempotency_key=marker) == 0

    def test_an_end_that_is_gone_is_told_from_a_broker_that_is_silent(
        self, kafka_server: KafkaServer, ours: KafkaBinding, queue: str
    ) -> None:
        ours.publish(queue, outgoing([b"a", b"b"]))

        def read_beyond_the_end(reader: KafkaBinding) -> list[bytes]:
            found: list[Any] = []
            with pytest.raises(LogEndedError, match="ends at 2, before 5"):
                found.extend(reader.read(queue, 0, 0, 5))
            return list(joined(found).column("body").to_pylist())

        with binding(kafka_server, timeout_seconds="2") as hasty:
            assert unless_busy(lambda: read_beyond_the_end(hasty)) == [b"a", b"b"]

    def test_a_writer_that_another_overtakes_finds_its_batch(
        self, kafka_server: KafkaServer, ours: KafkaBinding, queue: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        marker, overtaken = uuid.uuid4().hex, client.KafkaClient._produce
        published = []

        def overtake(*given: Any) -> None:
            monkeypatch.undo()
            with binding(kafka_server) as other:
                published.append(other.publish(queue, outgoing([b"once"] * 50), idempotency_key=marker))
            overtaken(*given)

        monkeypatch.setattr(client.KafkaClient, "_produce", overtake)
        assert ours.publish(queue, outgoing([b"once"] * 50), idempotency_key=marker) == 0
        assert published == [50]
        assert len(bodies(ours, queue)) == 50

    def test_a_batch_of_which_the_broker_refuses_a_message_is_not_published(
        self, kafka_server: KafkaServer, ours: KafkaBinding, queue: str
    ) -> None:
        peers.make_topic(kafka_server, queue, **{"max.message.bytes": "200"})
        with pytest.raises(BrokerError, match="larger than the topic takes"):
            ours.publish(queue, outgoing([b"small", b"x" * 500]), idempotency_key=uuid.uuid4().hex)
        assert bodies(ours, queue) == []

    def test_an_open_transaction_hides_itself_and_what_follows(
        self, kafka_server: KafkaServer, ours: KafkaBinding, queue: str
    ) -> None:
        from confluent_kafka import Producer

        ours.publish(queue, outgoing([b"before"]))
        other = Producer({"bootstrap.servers": kafka_server.address, "transactional.id": queue})
        other.init_transactions(30)
        other.begin_transaction()
        other.produce(queue, b"open")
        other.flush(30)
        ours.publish(queue, outgoing([b"after"]))
        assert bodies(ours, queue) == [b"before"]
        with binding(kafka_server, **{"isolation.level": "read_uncommitted"}) as hasty:
            assert bodies(hasty, queue) == [b"before", b"open", b"after"]
        other.abort_transaction(30)
        assert eventually(lambda: bodies(ours, queue)[1:]) == [b"after"]

    def test_a_process_that_dies_within_a_transaction_publishes_nothing(
        self, kafka_server: KafkaServer, ours: KafkaBinding, queue: str
    ) -> None:
        marker = uuid.uuid4().hex
        with pytest.raises(Exception, match="terminated abruptly"):
            in_processes(1, dies_before_the_commit, kafka_server.url, queue, marker)
        assert ours.publish(queue, outgoing([b"a", b"b"]), idempotency_key=marker) == 2
        assert bodies(ours, queue) == [b"a", b"b"]


def dies_before_the_commit(url: str, queue: str, marker: str) -> None:
    import os
    import signal

    class Mortal(client.Producer):
        def commit_transaction(self, *_: Any) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

    client.Producer = Mortal
    with KafkaBinding(BindingConfig(url=url)) as ours:
        ours.publish(queue, outgoing([b"a", b"b"]), idempotency_key=marker)


class TestLogins:
    @pytest.fixture(scope="class")
    @classmethod
    def guarded(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[KafkaServer, Certificates]]:
        certificates = Certificates(tmp_path_factory.mktemp("certificates"))
        with KafkaServer(tls=certificates, password=SECRET) as server:
            yield server, certificates

    def login(self, certificates: Certificates, **changes: str) -> dict[str, str]:
        return {
            "security.protocol": "sasl_ssl",
            "ssl.ca.location": str(certificates.ca),
            "sasl.mechanism": "PLAIN",
            "sasl.username": "spark",
            "sasl.password": SECRET,
            "timeout_seconds": "10",
            **changes,
        }

    def test_by_tls_and_a_password(self, guarded: tuple[KafkaServer, Certificates], queue: str) -> None:
        server, certificates = guarded
        with binding(server, **self.login(certificates)) as ours:
            assert ours.publish(queue, outgoing([b"a"])) == 1
            assert bodies(ours, queue) == [b"a"]

    def test_a_wrong_password(self, guarded: tuple[KafkaServer, Certificates], queue: str) -> None:
        server, certificates = guarded
        wrong = self.login(certificates, **{"sasl.password": "wrong-one", "timeout_seconds": "3"})
        error = self.error_that_says("refused the login", server, queue, wrong)
        assert_safe(error)
        assert "wrong-one" not in str(error)

    def test_an_authority_that_is_not_trusted(
        self, guarded: tuple[KafkaServer, Certificates], queue: str, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        server, _ = guarded
        others = Certificates(tmp_path_factory.mktemp("others"))
        wrong = self.login(others, timeout_seconds="3")
        self.error_that_says("TLS failed", server, queue, wrong)

    def error_that_says(
        self, text: str, server: KafkaServer, queue: str, options: dict[str, str]
    ) -> BrokerError:
        """What a poll ends with; repeated, for on a busy machine its time may end before a login does."""

        def error() -> BrokerError | None:
            with binding(server, **options) as ours, pytest.raises(BrokerError) as caught:
                ours.end_offsets(queue)
            return caught.value if text in str(caught.value) else None

        found: BrokerError = eventually(error)
        return found


class TestErrors:
    def test_a_message_that_is_too_large(self, ours: KafkaBinding, queue: str) -> None:
        with pytest.raises(BrokerError, match="larger than the topic takes"):
            ours.publish(queue, outgoing([b"x" * 2_000_000]))

    def test_a_name_that_is_no_topics(self, ours: KafkaBinding) -> None:
        with pytest.raises(OptionError, match="a topic has 1 to 249"):
            ours.publish("ord ers", outgoing([b"x"]))

    def test_a_tier_is_written_by_way_of_its_topic(self, kafka_server: KafkaServer) -> None:
        with binding(kafka_server, retry_tiers_ms="100,200") as ours:
            with pytest.raises(OptionError, match="messages wait there"):
                ours.publish("orders.retry.1", outgoing([b"x"]))
            ours.check_target("orders.retry.3")


class TestOptions:
    @pytest.mark.parametrize(
        "url", ["kafka://", "kafka://a", "kafka://u:p@a:1", "kafka://a:1,b", "kafka://a:port", "a b:1"]
    )
    def test_a_url_that_cannot_be_read(self, url: str) -> None:
        with pytest.raises(OptionError, match="the Kafka URL cannot be read"):
            KafkaBinding(BindingConfig(url=url))

    @pytest.mark.parametrize("url", ["kafka://a:1", "kafka://a:1,b:2", "a:1,b:2", "kafka://[::1]:9092"])
    def test_connection_strings(self, url: str) -> None:
        KafkaBinding(BindingConfig(url=url))

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("retry_tiers_ms", "5,3"),
            ("retry_tiers_ms", "0"),
            ("retry_tiers_ms", "x"),
            ("timeout_seconds", "0"),
            ("group.id", " "),
        ],
    )
    def test_a_value_that_cannot_be_used(self, name: str, value: str) -> None:
        with pytest.raises(OptionError, match=f"kafka.{name} has the value"):
            KafkaBinding(BindingConfig(url="kafka://a:1", client_options={name: value}))

    def test_a_visibility_timeout(self) -> None:
        with pytest.raises(OptionError, match="'visibilityTimeout' has no meaning"):
            KafkaBinding(BindingConfig(url="kafka://a:1", visibility_timeout=5))
