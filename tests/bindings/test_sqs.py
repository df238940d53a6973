"""What only SQS does: its queues, limits, groups, attributes, receipts, credentials and errors."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from botocore import exceptions
from botocore.exceptions import ClientError
from botocore.loaders import JSONFileLoader
from moto import mock_aws

from babelqueue_spark.bindings.aws import session
from babelqueue_spark.bindings.contract import BindingConfig
from babelqueue_spark.bindings.sqs import SqsBinding, client
from babelqueue_spark.bindings.sqs.options import SqsOptions
from babelqueue_spark.errors import BrokerError, OptionError, QueueForbiddenError
from babelqueue_spark.testing import (
    MIB,
    SECRET,
    assert_empty,
    assert_safe,
    await_backlog,
    claim_until_empty,
    outgoing,
    take,
)
from tests.bindings.sqs_peers import NO_LIMIT, binding, bodies, claim
from tests.bindings.sqs_peers import client as bare_client
from tests.servers.elasticmq import LIMIT, ElasticMqServer
from tests.streams import envelope

pytestmark = pytest.mark.server

Call = Callable[..., dict[str, Any]]
NO_NETWORK = {"access_key_id": "test", "secret_access_key": SECRET, "max_attempts": "1"}


@pytest.fixture
def bare(elasticmq_server: ElasticMqServer) -> Iterator[Any]:
    made = bare_client(elasticmq_server)
    yield made
    made.close()


@pytest.fixture
def sqs(elasticmq_server: ElasticMqServer) -> Iterator[SqsBinding]:
    with binding(elasticmq_server) as made:
        yield made


def intercept(monkeypatch: pytest.MonkeyPatch, sqs: SqsBinding, answer: Callable[..., Any]) -> None:
    """Let `answer(call, operation, parameters)` answer the requests of a binding."""
    call = sqs._sqs.call
    monkeypatch.setattr(sqs._sqs, "call", lambda operation, **parameters: answer(call, operation, parameters))


def offline(url: str = "sqs://eu-west-1", **options: str) -> SqsBinding:
    return SqsBinding(BindingConfig(url=url, client_options={**NO_NETWORK, **options}))


class TestQueues:
    def test_a_queue_is_known_by_name_url_and_arn(self, sqs: SqsBinding, bare: Any, queue: str) -> None:
        sqs.publish(queue, outgoing([b"by name"]))
        url = bare.get_queue_url(QueueName=queue)["QueueUrl"]
        arn = bare.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        sqs.publish(url, outgoing([b"by URL"]))
        sqs.publish(arn, outgoing([b"by ARN"]))
        assert sorted(claim_until_empty(sqs, arn)) == [b"by ARN", b"by URL", b"by name"]

    def test_a_prefix_stands_in_for_the_lookup(
        self, elasticmq_server: ElasticMqServer, sqs: SqsBinding, bare: Any, queue: str
    ) -> None:
        sqs.publish(queue, outgoing([b"x"]))
        prefix = bare.get_queue_url(QueueName=queue)["QueueUrl"].removesuffix(queue)
        with binding(elasticmq_server, prefix=prefix) as other:
            assert bodies(take(other, queue, 1)) == [b"x"]

    def test_only_a_name_is_created(self, sqs: SqsBinding, bare: Any, queue: str) -> None:
        for missing in (f"arn:aws:sqs:elasticmq:000000000000:{queue}", f"http://127.0.0.1/0/{queue}"):
            with pytest.raises(BrokerError, match=f"queue '{queue}': it does not exist: create it"):
                sqs.backlog(missing)
        assert sqs.backlog(queue) == 0
        assert bare.get_queue_url(QueueName=queue)

    def test_a_fifo_queue_is_created_as_its_name_and_options_say(
        self, elasticmq_server: ElasticMqServer, bare: Any, queue: str
    ) -> None:
        for dedup in ("0", "1"):
            name = f"{queue}-{dedup}.fifo"
            with binding(elasticmq_server, content_dedup=dedup) as sqs:
                sqs.backlog(name)
            url = bare.get_queue_url(QueueName=name)["QueueUrl"]
            found = bare.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
            assert found["FifoQueue"] == "true"
            assert found["ContentBasedDeduplication"] == ("true" if dedup == "1" else "false")

    @pytest.mark.parametrize("name", ["orders eu", "orders.dlq", "x" * 81, "", ".fifo", "ördrs"])
    def test_a_name_that_sqs_cannot_have_is_refused(self, sqs: SqsBinding, name: str) -> None:
        with pytest.raises(OptionError, match="1 to 80 letters"):
            sqs.publish(name, outgoing([b"x"]))

    @pytest.mark.parametrize(
        "queue", ["arn:aws:sqs:us-east-1:123456789012:orders", "https://sqs.us-east-1.amazonaws.com/1/orders"]
    )
    def test_a_queue_of_another_region_is_refused(self, queue: str) -> None:
        with offline() as sqs, pytest.raises(BrokerError, match=r"at eu-west-1: .*write sqs://us-east-1"):
            sqs.backlog(queue)

    @pytest.mark.parametrize("queue", ["orders", "arn:aws:sqs:x:1:orders", "https://h/1/orders"])
    @pytest.mark.parametrize("fifo", ["", ".fifo"])
    def test_dead_letter_names(self, queue: str, fifo: str) -> None:
        assert SqsBinding.dead_letter_name(queue + fifo, "babelqueue") == f"{queue}-dlq{fifo}"
        assert SqsBinding.dead_letter_name(queue + fifo, "initphp") == f"{queue}_failed{fifo}"


class TestWhatCanBeSent:
    @pytest.mark.parametrize(
        ("body", "reason"),
        [
            (b"", "empty"),
            (b"\xff\xfe", "not UTF-8"),
            (b"a\x00b", r"U\+0000"),
            ("\ufffe".encode(), r"U\+FFFE"),
            (b"x" * (LIMIT + 1), "262,145 bytes, and the limit is 262,144"),
        ],
    )
    @pytest.mark.parametrize("suffix", ["", ".fifo"])
    def test_a_body_that_sqs_cannot_carry_stops_the_batch_before_it_is_sent(
        self, sqs: SqsBinding, queue: str, body: bytes, reason: str, suffix: str
    ) -> None:
        with pytest.raises(BrokerError, match=rf"row 1 cannot be sent: .*{reason}"):
            sqs.publish(queue + suffix, outgoing([b"good", body]))
        assert_empty(sqs, queue + suffix)

    def test_the_message_is_named_by_its_id(self, sqs: SqsBinding, queue: str) -> None:
        body = envelope(1)
        with pytest.raises(BrokerError, match=json.loads(body)["meta"]["id"]):
            sqs.publish(queue, outgoing([body], keys=["two words"]))

    @pytest.mark.parametrize("key", ["", "two words", "ключ", "x" * 129])
    def test_a_key_that_cannot_be_a_message_group(self, sqs: SqsBinding, queue: str, key: str) -> None:
        with pytest.raises(BrokerError, match="row 0 cannot be sent: its key"):
            sqs.publish(queue, outgoing([b"x"], keys=[key]))

    def test_requests_hold_no_more_bytes_than_the_limit(self, sqs: SqsBinding, queue: str) -> None:
        sent = [bytes([65 + number]) * (LIMIT // 3) for number in range(12)]
        sqs.publish(queue, outgoing(sent))
        assert sorted(claim_until_empty(sqs, queue)) == sent

    @pytest.mark.parametrize(
        ("milliseconds", "seconds"), [(0, None), (1, 1), (1_000, 1), (1_001, 2), (900_000, 900)]
    )
    def test_delays_are_whole_seconds(
        self,
        sqs: SqsBinding,
        queue: str,
        monkeypatch: pytest.MonkeyPatch,
        milliseconds: int,
        seconds: int | None,
    ) -> None:
        sent: list[Any] = []

        def record(call: Call, operation: str, parameters: Any) -> Any:
            sent.extend(parameters.get("Entries", ()))
            return call(operation, **parameters)

        intercept(monkeypatch, sqs, record)
        sqs.publish(queue, outgoing([b"x"], delays=[milliseconds]))
        assert [entry.get("DelaySeconds") for entry in sent] == [seconds]

    def test_several_lanes_send_everything_once(self, elasticmq_server: ElasticMqServer, queue: str) -> None:
        sent = [b"%d" % number for number in range(1_003)]
        with binding(elasticmq_server, concurrency="8") as sqs:
            assert sqs.publish(queue, outgoing(sent)) == len(sent)
            assert sorted(claim_until_empty(sqs, queue)) == sorted(sent)


class TestAttributes:
    def headers(self, sqs: SqsBinding, queue: str, body: bytes, sent: dict[str, str]) -> dict[str, str]:
        sqs.publish(queue, outgoing([body], headers=[sent]))
        return dict(take(sqs, queue, 1).column("headers").to_pylist()[0] or ())

    def test_the_contract_wins_over_headers(self, sqs: SqsBinding, queue: str) -> None:
        got = self.headers(sqs, queue, envelope(1), {"bq-job": "urn:other", "traceparent": "00-a-b-01"})
        assert got["bq-job"] == "urn:babel:orders:created"
        assert got["traceparent"] == "00-a-b-01"

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("Ünï", "x"), ("a b", "x"), (".a", "x"), ("a.", "x"), ("a..b", "x"), ("AWS.x", "x"), ("amazon.x", "x"),
            ("n" * 257, "x"), ("empty", ""), ("blank", " "), ("control", "a\x00"), ("large", "x" * LIMIT),
        ],
    )  # fmt: skip
    def test_a_header_that_cannot_be_an_attribute_is_left_out_with_a_warning(
        self, sqs: SqsBinding, queue: str, caplog: pytest.LogCaptureFixture, name: str, value: str
    ) -> None:
        with caplog.at_level(logging.WARNING):
            assert self.headers(sqs, queue, b"x", {name: value, "kept": "y"}) == {"kept": "y"}
        assert repr(name) in caplog.text
        assert "'kept'" not in caplog.text

    def test_ten_attributes_at_most(
        self, sqs: SqsBinding, queue: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        got = self.headers(sqs, queue, envelope(1), {f"h{number}": "x" for number in range(6)})
        assert len(got) == 10
        assert sorted(name for name in got if name.startswith("h")) == ["h0", "h1", "h2", "h3"]
        assert "'h4', 'h5'" in caplog.text

    @pytest.mark.parametrize(
        ("changes", "missing"),
        [
            ({"job": "urn:babel:a\x01b"}, {"bq-job"}),
            ({"job": 7, "trace_id": ["x"]}, {"bq-job", "bq-trace-id"}),
            ({"meta": "none"}, {"bq-message-id", "bq-schema-version", "bq-source-lang", "bq-created-at"}),
            ({"trace_id": "t" * LIMIT}, None),
        ],
    )
    def test_a_projection_never_stops_a_message(
        self, sqs: SqsBinding, queue: str, changes: dict[str, Any], missing: set[str] | None
    ) -> None:
        body = envelope(1, **changes)
        if missing is None:
            body = body[:LIMIT]  # as large as can be, so that nothing fits beside it
        every = {
            "bq-job", "bq-trace-id", "bq-message-id", "bq-schema-version", "bq-source-lang", "bq-created-at"
        }  # fmt: skip
        got = self.headers(sqs, queue, body, {})
        assert got.keys() == (set() if missing is None else every - missing)

    def test_text_and_numbers_of_other_senders_are_headers(
        self, sqs: SqsBinding, bare: Any, queue: str
    ) -> None:
        sqs.backlog(queue)
        bare.send_message(
            QueueUrl=bare.get_queue_url(QueueName=queue)["QueueUrl"],
            MessageBody="x",
            MessageAttributes={
                "text": {"DataType": "String.custom", "StringValue": "ü"},
                "number": {"DataType": "Number", "StringValue": "1.50"},
                "bytes": {"DataType": "Binary", "BinaryValue": b"\x00"},
            },
        )
        claimed = take(sqs, queue, 1)
        assert sorted(claimed.column("headers").to_pylist()[0]) == [("number", "1.50"), ("text", "ü")]


class TestFifo:
    def test_order_is_kept_within_each_group(self, elasticmq_server: ElasticMqServer, queue: str) -> None:
        name = f"{queue}.fifo"
        sent = [b"%d" % number for number in range(200)]
        keys = [f"customer-{number % 7}" for number in range(200)]
        expected, got = defaultdict(list), defaultdict(list)
        for key, body in zip(keys, sent, strict=True):
            expected[key].append(body)
        with binding(elasticmq_server, concurrency="4") as sqs:
            sqs.publish(name, outgoing(sent, keys=keys))
            while (claimed := claim(sqs, name)).num_rows:
                for key, body in zip(claimed.column("key").to_pylist(), bodies(claimed), strict=True):
                    got[key].append(body)
                sqs.acknowledge(name, claimed)
        assert got == expected

    @pytest.mark.parametrize(("group", "expected"), [({}, None), ({"group_id": "eu"}, "eu")])
    def test_the_group_of_messages_without_a_key(
        self, elasticmq_server: ElasticMqServer, queue: str, group: dict[str, str], expected: str | None
    ) -> None:
        name = f"{queue}.fifo"
        with binding(elasticmq_server, **group) as sqs:
            sqs.publish(name, outgoing([b"x"]))
            assert take(sqs, name, 1).column("key").to_pylist() == [expected or name]

    def test_a_repeated_id_is_dropped_and_a_retry_is_not(self, sqs: SqsBinding, queue: str) -> None:
        name = f"{queue}.fifo"
        first = envelope(1)
        retry = json.dumps({**json.loads(first), "attempts": 1}).encode()
        for body in (first, first, retry, retry):
            sqs.publish(name, outgoing([body]))
        assert claim_until_empty(sqs, name) == [first, retry]

    def test_deduplication_by_content(self, elasticmq_server: ElasticMqServer, queue: str) -> None:
        name = f"{queue}.fifo"
        same = json.loads(envelope(1))
        sent = [json.dumps({**same, "data": {"n": number}}).encode() for number in (1, 2, 1)]
        with binding(elasticmq_server, content_dedup="1") as sqs:
            sqs.publish(name, outgoing(sent))
            assert claim_until_empty(sqs, name) == sent[:2]

    def test_a_delay_is_refused(self, sqs: SqsBinding, queue: str) -> None:
        with pytest.raises(BrokerError, match="it can delay none"):
            sqs.publish(f"{queue}.fifo", outgoing([b"x"], delays=[1_000]))

    def test_the_option_narrows_the_capabilities(self) -> None:
        narrowed = offline(fifo="1").capabilities
        assert (narrowed.ordered, narrowed.max_delay, narrowed.duplicate_detection) == (True, 0, True)
        plain = offline().capabilities
        assert (plain.ordered, plain.max_delay, plain.duplicate_detection) == (False, 900_000, False)

    def test_the_option_refuses_other_queues(self) -> None:
        with offline(fifo="1") as sqs, pytest.raises(BrokerError, match=r"does not end in \.fifo"):
            sqs.backlog("orders")


class TestClaims:
    @pytest.mark.parametrize("concurrency", ["1", "8"])
    def test_no_more_is_received_than_was_asked_for(
        self, elasticmq_server: ElasticMqServer, queue: str, concurrency: str
    ) -> None:
        with binding(elasticmq_server, concurrency=concurrency) as sqs:
            sqs.publish(queue, outgoing([b"%d" % number for number in range(100)]))
            assert claim(sqs, queue, 25).num_rows == 25
            await_backlog(sqs, queue, 75)
            assert False not in [count == 1 for count in claim(sqs, queue, 75).column("count").to_pylist()]

    def test_what_the_bound_of_bytes_leaves_out_goes_back_at_once(self, sqs: SqsBinding, queue: str) -> None:
        """Receives are sized by the mean so far, which a run of larger messages can break."""
        small, large = [b"s"], [bytes([65 + number]) * 20_000 for number in range(10)]
        sqs.publish(queue, outgoing(small))
        sqs.publish(queue, outgoing(large))
        first = sqs.claim(queue, 100, 30_000)
        assert bodies(first) == [b"s", large[0]]
        rest = sqs.claim(queue, 100, NO_LIMIT)
        assert sorted(bodies(rest)) == large[1:]
        assert rest.column("redelivered").to_pylist() == [True] * 9

    def test_a_small_bound_of_bytes_is_kept_without_giving_back(self, sqs: SqsBinding, queue: str) -> None:
        sqs.publish(queue, outgoing([b"x" * 1_000 for _ in range(40)]))
        assert sqs.claim(queue, 100, 15_500).num_rows == 15
        assert True not in claim(sqs, queue).column("redelivered").to_pylist()

    @pytest.mark.parametrize("kind", [BrokerError, client.OverLimitError])
    def test_an_error_ends_a_claim_with_what_it_has(
        self, sqs: SqsBinding, queue: str, monkeypatch: pytest.MonkeyPatch, kind: type[BrokerError]
    ) -> None:
        sqs.publish(queue, outgoing([b"%d" % number for number in range(40)]))
        receives: list[Any] = []

        def third_fails(call: Call, operation: str, parameters: Any) -> Any:
            receives.append(operation)
            if len(receives) > 2:
                raise kind("not now")
            return call(operation, **parameters)

        intercept(monkeypatch, sqs, third_fails)
        assert claim(sqs, queue, 40).num_rows == 20
        if kind is client.OverLimitError:
            assert claim(sqs, queue, 40).num_rows == 0
        else:
            with pytest.raises(BrokerError, match="not now"):
                claim(sqs, queue, 40)

    def test_a_claim_that_fails_otherwise_does_not_hang(
        self, sqs: SqsBinding, queue: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sqs.backlog(queue)

        def broken(call: Call, operation: str, parameters: Any) -> Any:
            raise ZeroDivisionError

        intercept(monkeypatch, sqs, broken)
        with pytest.raises(ZeroDivisionError):
            claim(sqs, queue, 100)

    def test_one_empty_receive_does_not_end_a_claim(
        self, sqs: SqsBinding, queue: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sqs.publish(queue, outgoing([b"x"]))
        missed: list[str] = []

        def miss_once(call: Call, operation: str, parameters: Any) -> Any:
            if not missed:
                missed.append(operation)
                return {}
            return call(operation, **parameters)

        intercept(monkeypatch, sqs, miss_once)
        assert bodies(sqs.claim(queue, 1, MIB)) == [b"x"]

    def test_servers_that_a_short_poll_missed_are_asked(
        self, sqs: SqsBinding, queue: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A short poll asks some servers of SQS, a long one all of them."""
        sqs.publish(queue, outgoing([b"x"]))

        def short_polls_miss(call: Call, operation: str, parameters: Any) -> Any:
            if operation == "receive_message" and not parameters["WaitTimeSeconds"]:
                return {}
            return call(operation, **parameters)

        intercept(monkeypatch, sqs, short_polls_miss)
        assert bodies(sqs.claim(queue, 10, MIB)) == [b"x"]

    def test_the_visibility_timeout_is_given_with_each_receive(
        self, elasticmq_server: ElasticMqServer, bare: Any, queue: str
    ) -> None:
        url = bare.create_queue(QueueName=queue, Attributes={"VisibilityTimeout": "0"})["QueueUrl"]
        with binding(elasticmq_server) as sqs:
            sqs.publish(url, outgoing([b"x"]))
            assert take(sqs, url, 1).num_rows == 1
            assert sqs.lease == 90
            assert_empty(sqs, url)

    def test_threads_end_with_the_binding(self, elasticmq_server: ElasticMqServer, queue: str) -> None:
        before = threading.active_count()
        with binding(elasticmq_server) as sqs:
            sqs.publish(queue, outgoing([b"x"] * 50))
            assert threading.active_count() > before
        assert threading.active_count() == before


class TestReceipts:
    def test_nothing_is_asked_of_sqs_after_the_claim_lapsed(
        self, elasticmq_server: ElasticMqServer, queue: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """AWS would say yes to the old handle, and deliver the message again."""
        with binding(elasticmq_server) as sqs:
            sqs.publish(queue, outgoing([b"x"]))
            claimed = take(sqs, queue, 1)
            now = time.time()
            monkeypatch.setattr("babelqueue_spark.bindings.sqs.binding.time.time", lambda: now + 91)
            intercept(monkeypatch, sqs, lambda *_: pytest.fail("a request was sent"))
            assert sqs.acknowledge(queue, claimed).to_pylist() == [False]
            sqs.release(queue, claimed)

    def test_nothing_is_asked_once_the_claim_lapses_in_the_middle(
        self, elasticmq_server: ElasticMqServer, queue: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The first ten were deleted in time; what follows is not asked for, and comes again."""
        with binding(elasticmq_server, concurrency="1") as sqs:
            sqs.publish(queue, outgoing([b"%d" % number for number in range(25)]))
            claimed = take(sqs, queue, 25)
            requests: list[int] = []

            def lapse_afterwards(call: Call, operation: str, parameters: Any) -> Any:
                requests.append(len(parameters["Entries"]))
                answer = call(operation, **parameters)
                if len(requests) == 2:
                    clock = SimpleNamespace(time=lambda: time.time() + 91)
                    monkeypatch.setattr("babelqueue_spark.bindings.sqs.binding.time", clock)
                return answer

            intercept(monkeypatch, sqs, lapse_afterwards)
            assert sqs.acknowledge(queue, claimed).to_pylist() == [True] * 10 + [False] * 15
            assert requests == [10, 10]

    def test_a_handle_that_sqs_refuses_is_false_and_the_others_are_true(
        self, sqs: SqsBinding, bare: Any, queue: str
    ) -> None:
        sqs.publish(queue, outgoing([b"%d" % number for number in range(15)]))
        claimed = take(sqs, queue, 15)
        handle = claimed.column("receipt")[12].as_py().decode().partition(" ")[2]
        bare.delete_message(QueueUrl=bare.get_queue_url(QueueName=queue)["QueueUrl"], ReceiptHandle=handle)
        assert sqs.acknowledge(queue, claimed).to_pylist() == [row != 12 for row in range(15)]

    @pytest.mark.parametrize(
        "reason",
        [
            {"SenderFault": False, "Code": "InternalError"},
            {"SenderFault": True, "Code": "ThrottlingException"},
        ],
    )
    @pytest.mark.parametrize("verb", ["publish", "acknowledge", "release"])
    def test_entries_that_fail_on_the_side_of_sqs_are_sent_again(
        self, sqs: SqsBinding, queue: str, monkeypatch: pytest.MonkeyPatch, verb: str, reason: dict[str, Any]
    ) -> None:
        sqs.publish(queue, outgoing([b"0", b"1"]))
        claimed = take(sqs, queue, 2)
        sent: list[list[str]] = []

        def fail_once(call: Call, operation: str, parameters: Any) -> Any:
            entries = parameters["Entries"]
            sent.append([entry["Id"] for entry in entries])
            if len(sent) > 1:
                return call(operation, **parameters)
            call(operation, QueueUrl=parameters["QueueUrl"], Entries=entries[:1])
            return {"Failed": [{"Id": "1", **reason}]}

        intercept(monkeypatch, sqs, fail_once)
        if verb == "publish":
            assert sqs.publish(queue, outgoing([b"2", b"3"])) == 2
        elif verb == "acknowledge":
            assert sqs.acknowledge(queue, claimed).to_pylist() == [True, True]
        else:
            sqs.release(queue, claimed)
        assert sent == [["0", "1"], ["1"]]
        monkeypatch.undo()
        await_backlog(sqs, queue, 0 if verb == "acknowledge" else 2)

    def test_entries_that_keep_failing_are_an_error(
        self, sqs: SqsBinding, queue: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sqs.backlog(queue)
        failed = [{"Id": "0", "SenderFault": False, "Code": "InternalError", "Message": "try\nlater"}]
        intercept(monkeypatch, sqs, lambda *_: {"Failed": failed})
        with pytest.raises(BrokerError, match="failed for 1 messages: InternalError: try") as caught:
            sqs.publish(queue, outgoing([b"x"]))
        assert_safe(caught.value)

    def test_entries_refused_for_good_are_an_error_that_names_them(
        self, sqs: SqsBinding, queue: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sqs.backlog(queue)
        failed = [{"Id": "1", "SenderFault": True, "Code": "InvalidMessageContents", "Message": "no"}]
        intercept(monkeypatch, sqs, lambda *_: {"Failed": failed})
        with pytest.raises(BrokerError, match=r"refused: row 1: InvalidMessageContents: no$"):
            sqs.publish(queue, outgoing([b"x", b"y"]))


class TestCredentials:
    @pytest.fixture(autouse=True)
    def bare_environment(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_DEFAULT_REGION"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))

    def bare(self, url: str, **options: str) -> SqsBinding:
        return SqsBinding(BindingConfig(url=url, client_options=options))

    def test_a_profile(self, elasticmq_server: ElasticMqServer, queue: str, tmp_path: Path) -> None:
        (tmp_path / "credentials").write_text("[reader]\naws_access_key_id=a\naws_secret_access_key=b\n")
        (tmp_path / "config").write_text("[profile reader]\nregion=elasticmq\n")
        endpoint = elasticmq_server.endpoint
        with self.bare(f"sqs://?endpoint={endpoint}", profile="reader") as sqs:
            assert sqs.backlog(queue) == 0
        with (
            self.bare(f"sqs://?endpoint={endpoint}", profile="nobody") as sqs,
            pytest.raises(BrokerError, match=r"check sqs\.profile"),
        ):
            sqs.backlog(queue)

    def test_the_environment(
        self, elasticmq_server: ElasticMqServer, queue: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
        monkeypatch.setenv("AWS_DEFAULT_REGION", "elasticmq")
        with self.bare(f"sqs://?endpoint={elasticmq_server.endpoint}") as sqs:
            assert sqs.backlog(queue) == 0

    def test_a_role(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """In moto, as ElasticMQ has no STS."""
        arn = "arn:aws:iam::123456789012:role/reader"
        config = BindingConfig(
            url="sqs://eu-west-1",
            client_options={
                "access_key_id": "a", "secret_access_key": "b", "role_arn": arn, "external_id": "ours",
                "role_session_name": "night",
            },
        )  # fmt: skip
        with mock_aws():
            opened = session(SqsOptions.parse(config))
            caller = opened.create_client("sts").get_caller_identity()["Arn"]
            assert caller == "arn:aws:sts::123456789012:assumed-role/reader/night"
            with SqsBinding(config) as sqs:
                sqs.publish("orders", outgoing([b"x"]))
                assert bodies(take(sqs, "orders", 1)) == [b"x"]

    def test_the_descriptions_of_services_are_read_once_a_process(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Else each reader task would spend a tenth of a second of its core on them."""
        with offline() as first, offline() as second:
            first._sqs.connected()
            monkeypatch.delattr(JSONFileLoader, "load_file")
            second._sqs.connected()

    @pytest.mark.parametrize("options", [{}, {"role_arn": "arn:aws:iam::1:role/reader"}])
    def test_none_at_all(self, options: dict[str, str]) -> None:
        with (
            self.bare("sqs://eu-west-1", **options) as sqs,
            pytest.raises(BrokerError, match=r"SQS at eu-west-1: .*no credentials were found") as caught,
        ):
            sqs.backlog("orders")
        assert_safe(caught.value)

    def test_no_region(self) -> None:
        with self.bare("sqs://", **NO_NETWORK) as sqs, pytest.raises(BrokerError, match="write sqs://REGION"):
            sqs.backlog("orders")


class TestErrors:
    @pytest.mark.parametrize(
        ("code", "advice"),
        [
            ("AccessDenied", "allow sqs:GetQueueUrl"),
            ("AccessDeniedException", "allow sqs:GetQueueUrl"),
            ("ExpiredToken", "renew them"),
            ("InvalidClientTokenId", "check access key"),
            ("SignatureDoesNotMatch", "check access key"),
            ("AWS.SimpleQueueService.QueueDeletedRecently", "less than a minute"),
            ("OverLimit", "too many messages are in flight"),
            ("ThrottlingException", "it throttles requests"),
            ("KmsAccessDenied", "kms:Decrypt"),
            ("Unheard", "Unheard: said so"),
        ],
    )
    def test_what_sqs_refuses_says_what_to_do(
        self, sqs: SqsBinding, queue: str, monkeypatch: pytest.MonkeyPatch, code: str, advice: str
    ) -> None:
        answer: Any = {"Error": {"Code": code, "Message": "said so\nand more"}}

        def refuse(**_: Any) -> None:
            raise ClientError(answer, "GetQueueUrl")

        monkeypatch.setattr(sqs._sqs.connected(), "get_queue_url", refuse)
        with pytest.raises(
            BrokerError, match=rf"SQS at 127\.0\.0\.1:\d+: queue '{queue}': .*{advice}"
        ) as caught:
            sqs.backlog(queue)
        assert_safe(caught.value)
        assert isinstance(caught.value, QueueForbiddenError) == ("AccessDenied" in code)

    @pytest.mark.parametrize(
        ("failure", "advice"),
        [
            (exceptions.ReadTimeoutError(endpoint_url=f"http://u:{SECRET}@h/"), "sqs.read_timeout"),
            (exceptions.ConnectTimeoutError(endpoint_url=f"http://u:{SECRET}@h/"), "cannot be reached"),
            (exceptions.SSLError(endpoint_url=f"http://u:{SECRET}@h/", error=""), "TLS failed"),
            (exceptions.CredentialRetrievalError(provider="sso", error_msg=SECRET), "could not be fetched"),
            (
                exceptions.UnknownServiceError(service_name=SECRET, known_service_names=""),
                "UnknownServiceError",
            ),
        ],
    )
    def test_what_the_client_fails_at_says_what_to_do(
        self, sqs: SqsBinding, queue: str, monkeypatch: pytest.MonkeyPatch, failure: Exception, advice: str
    ) -> None:
        def fail(**_: Any) -> None:
            raise failure

        monkeypatch.setattr(sqs._sqs.connected(), "get_queue_url", fail)
        with pytest.raises(BrokerError, match=advice) as caught:
            sqs.backlog(queue)
        assert_safe(caught.value)

    def test_the_password_of_an_endpoint_is_not_shown(self) -> None:
        options = {**NO_NETWORK, "endpoint_url": f"http://user:{SECRET}@127.0.0.1:1"}
        with SqsBinding(BindingConfig(url="sqs://x", client_options=options)) as sqs:
            with pytest.raises(BrokerError, match=r"SQS at 127\.0\.0\.1:1: .*cannot be reached") as caught:
                sqs.backlog("orders")
            assert SECRET not in repr(sqs._options)
        assert_safe(caught.value)

    def test_what_does_not_speak_sqs(self, elasticmq_server: ElasticMqServer, queue: str) -> None:
        url = f"sqs://elasticmq?endpoint={elasticmq_server.endpoint}/nothing/here/at/all"
        with (
            SqsBinding(BindingConfig(url=url, client_options=NO_NETWORK)) as sqs,
            pytest.raises(BrokerError) as caught,
        ):
            sqs.backlog(queue)
        assert_safe(caught.value)

    def test_it_cannot_publish_once(self, sqs: SqsBinding, queue: str) -> None:
        with pytest.raises(BrokerError, match="without a key"):
            sqs.publish(queue, outgoing([b"x"]), idempotency_key="m")


class TestOptions:
    def parsed(self, url: str, visibility: float | None = None, **options: str) -> SqsOptions:
        return SqsOptions.parse(BindingConfig(url=url, visibility_timeout=visibility, client_options=options))

    def test_the_sdks_url_form(self) -> None:
        options = self.parsed(
            "sqs://eu-west-1?endpoint=http://localhost:4566&prefix=http://localhost:4566/1&wait_time=20"
            "&visibility_timeout=30&fifo=1&group_id=g&content_dedup=1"
        )
        assert (options.region, options.endpoint_url) == ("eu-west-1", "http://localhost:4566")
        assert (options.prefix, options.visibility) == ("http://localhost:4566/1", 30)
        assert (options.fifo, options.group_id, options.content_dedup) == (True, "g", True)

    def test_options_win_over_the_url_and_the_general_one_over_both(self) -> None:
        options = self.parsed("sqs://a?visibility_timeout=30", 12.5, region="b", visibility_timeout="40")
        assert (options.region, options.visibility) == ("b", 13)

    @pytest.mark.parametrize(
        "url",
        [
            "redis://x",
            "sqs://key:secret@eu-west-1",
            "sqs://localhost:9324",
            "sqs://eu-west-1/orders",
            "sqs://[",
        ],
    )
    def test_a_url_that_cannot_be_read(self, url: str) -> None:
        with pytest.raises(OptionError, match="write sqs://REGION") as caught:
            self.parsed(url)
        assert_safe(caught.value)

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("endpoint_url", "localhost:9324"), ("endpoint_url", "ftp://x"), ("endpoint_url", "http://x:port"),
            ("concurrency", "0"), ("max_attempts", "many"), ("connect_timeout", "-1"), ("read_timeout", "inf"),
            ("visibility_timeout", "nan"), ("fifo", "perhaps"), ("max_message_bytes", "1.5"),
        ],
    )  # fmt: skip
    def test_a_value_that_cannot_be_used(self, name: str, value: str) -> None:
        with pytest.raises(OptionError, match=rf"sqs\.{name}"):
            self.parsed("sqs://x", **{name: value})

    @pytest.mark.parametrize("seconds", [0, -1, 43_201])
    def test_a_visibility_timeout_out_of_range(self, seconds: float) -> None:
        with pytest.raises(OptionError, match="1 to 43200 seconds"):
            self.parsed("sqs://x", seconds)

    def test_half_a_key(self) -> None:
        with pytest.raises(OptionError, match="together"):
            self.parsed("sqs://x", secret_access_key=SECRET)


@pytest.mark.parametrize(
    "name", ["https://sqs.eu-west-1.amazonaws.com/1/orders", "arn:aws:sqs:eu-west-1:1:orders"]
)
def test_a_message_may_not_name_a_queue_of_another_account(name: str) -> None:
    binding = SqsBinding(BindingConfig(url="sqs://eu-west-1"))
    binding.check_target(name)
    with pytest.raises(OptionError, match="of this account alone"):
        binding.check_foreign(name)
    binding.check_foreign("orders.fifo")
