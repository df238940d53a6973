"""What every binding promises, as tests written once.

A broker's test module inherits them, and says only how to reach its server:

    class TestMyBroker(BindingContract):
        binding_class = MyBinding

        @pytest.fixture
        def config(self, my_server):
            return BindingConfig(url=my_server.url, visibility_timeout=60)

        @pytest.fixture
        def unreachable(self):
            return BindingConfig(url=f"my://user:{SECRET}@127.0.0.1:1/")

Nothing is skipped: where a binding's `capabilities` say that it lacks something, the test asserts what
the contract says of such a binding. Class attributes narrow the examples to what a broker can carry.
"""

from __future__ import annotations

import os
import pickle
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from threading import Barrier
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from babelqueue_spark.bindings import DELIVERIES, OUTGOING, BaseBinding, Binding, BindingConfig, LogBinding
from babelqueue_spark.bindings.batches import empty_deliveries
from babelqueue_spark.errors import BrokerError, BrokerUnreachableError, DataLossError, OptionError
from babelqueue_spark.worker.rows import VERSION_HEADERS

ENVELOPE = (
    b'{"job":"urn:babel:orders:created","trace_id":"5f0c1c0e-1d6b-4d52-9d4b-0b8a0c7f6d11","data":{"order_id":1},'
    b'"meta":{"id":"0e9d1f4a-6a53-4a8e-8a0b-3a1f9a7c2b10","queue":"orders","lang":"python","schema_version":1,'
    b'"created_at":1750000000000},"attempts":0}'
)
"""A body that every reader accepts."""
SECRET = "s3cret-w0rd"
PATIENCE = 30.0
MIB = 1 << 20

Connect = Callable[..., Any]


class Contract:
    """What holds of queues and logs alike."""

    binding_class: ClassVar[type[BaseBinding]]
    """The binding under test."""
    bodies: ClassVar[Sequence[bytes]] = (
        b'{"job":"urn:babel:orders:created","data":{}}',
        b"",
        b"not json",
        b"\x00nul\x00inside\x00",
        b"\xff\xfe invalid utf-8 \xc3",
        "ünïcödé 注文 \U0001f4e6".encode(),
        bytes(range(256)),
        b" leading and trailing space \r\n",
    )
    """Bodies that must come back byte for byte."""
    early: ClassVar[float] = 0
    """Seconds by which a delay may fall short."""
    largest_body: ClassVar[int] = 5 * MIB
    """Bytes of the largest body that must come back."""
    verbs: ClassVar[Sequence[Callable[[Any], Any]]] = ()
    """Calls of a binding that reach its broker, beside those that all have."""
    unreachable_error: ClassVar[type[BrokerError]] = BrokerUnreachableError
    """What a verb of the `unreachable` broker raises."""
    queue_suffixes: ClassVar[Sequence[str]] = (" eu", "-ß-注文", ":a:b", ".v2", "_%", "'\"", "{tag}")
    """What queue names may hold."""

    @pytest.fixture
    def config(self) -> BindingConfig:
        """How to reach the server, with a visibility timeout that does not end within a test."""
        raise NotImplementedError

    @pytest.fixture
    def unreachable(self) -> BindingConfig:
        """A configuration that parses and cannot connect; with `SECRET` where it can hold a password."""
        raise NotImplementedError

    def read(self, binding: Any, queue: str, count: int) -> pa.RecordBatch:
        """The next `count` messages, which are not read again."""
        raise NotImplementedError

    def assert_read(self, binding: Any, queue: str) -> None:
        """There are no messages beyond those that were read."""
        raise NotImplementedError

    @pytest.fixture
    def queue(self) -> str:
        """A queue of this test alone."""
        return f"orders-{uuid.uuid4().hex[:12]}"

    @pytest.fixture
    def connect(self, config: BindingConfig) -> Iterator[Connect]:
        """Makes bindings, with changes of the configuration; they are closed after the test."""
        opened: list[BaseBinding] = []

        def connect(**changes: Any) -> Any:
            opened.append(self.binding_class(replace(config, **changes)))
            return opened[-1]

        yield connect
        for binding in opened:
            binding.close()

    @pytest.fixture
    def binding(self, connect: Connect) -> Any:
        return connect()

    # What is published is what is read.

    def test_bodies_come_back_byte_for_byte_and_once(self, binding: Any, queue: str) -> None:
        assert binding.publish(queue, outgoing(self.bodies)) == len(self.bodies)
        self._assert_bodies(self.read(binding, queue, len(self.bodies)), self.bodies)
        self.assert_read(binding, queue)

    def test_a_large_body_comes_back(self, binding: Any, queue: str) -> None:
        body = os.urandom(self.largest_body // 2).hex().encode()
        binding.publish(queue, outgoing([body, b"next"]))
        assert self.read(binding, queue, 1).column("body").to_pylist() == [body]

    def test_many_messages_of_several_publishes(self, binding: Any, queue: str) -> None:
        bodies = [f"message {number}".encode() for number in range(2_500)]
        publish_all(binding, queue, bodies)
        self._assert_bodies(self.read(binding, queue, len(bodies)), bodies)

    def test_an_empty_batch_publishes_nothing(self, binding: Any, queue: str) -> None:
        assert binding.publish(queue, outgoing([])) == 0
        self.assert_read(binding, queue)

    def test_queues_keep_apart_whatever_their_names(self, binding: Any, queue: str) -> None:
        names = [queue + suffix for suffix in self.queue_suffixes]
        for name in names:
            binding.publish(name, outgoing([name.encode()]))
        for name in names:
            assert self.read(binding, name, 1).column("body").to_pylist() == [name.encode()]
            self.assert_read(binding, name)

    def test_headers_travel_where_the_broker_keeps_them(self, binding: Any, queue: str) -> None:
        headers = {"bq-job": "urn:babel:x", "Ünï": "wert 注"}
        binding.publish(queue, outgoing([b"with", b"without"], headers=[headers, None]))
        columns = self.read(binding, queue, 2).select(["body", "headers"])
        got = dict(zip(*(column.to_pylist() for column in columns), strict=True))
        kept = dict(got[b"with"] or ())
        if binding.capabilities.headers:
            assert headers.items() <= kept.items()
            assert not headers.keys() & dict(got[b"without"] or ()).keys()
        else:
            assert kept == {}

    @pytest.mark.parametrize("version", ["2", " 1", "01", "1.0", "\u00a0", "\u0661"])
    def test_a_version_beside_a_message_stays_as_it_was_given(
        self, binding: Any, queue: str, version: str
    ) -> None:
        given = dict.fromkeys(VERSION_HEADERS, version)
        binding.publish(queue, outgoing([ENVELOPE], headers=[given]))
        [headers] = self.read(binding, queue, 1).column("headers").to_pylist()
        found = {value for name, value in headers or () if name in VERSION_HEADERS}
        assert found == ({version} if binding.capabilities.headers else set())

    def test_a_key_travels_where_the_broker_keeps_it(self, binding: Any, queue: str) -> None:
        binding.publish(queue, outgoing([b"keyed"], keys=["customer-7"]))
        expected = "customer-7" if binding.capabilities.keys else None
        assert self.read(binding, queue, 1).column("key").to_pylist() == [expected]

    # Delays.

    def test_a_delayed_message_comes_when_it_is_due(self, binding: Any, queue: str) -> None:
        start = time.time()
        if binding.capabilities.max_delay == 0:
            with pytest.raises(BrokerError):
                binding.publish(queue, outgoing([b"later"], delays=[1_500]))
            self.assert_read(binding, queue)
            return
        binding.publish(queue, outgoing([b"later", b"now", b"soon"], delays=[1_500, None, 0]))
        first = self.read(binding, queue, 2)
        assert sorted(first.column("body").to_pylist()) == [b"now", b"soon"]
        assert self.read(binding, queue, 1).column("body").to_pylist() == [b"later"]
        assert time.time() - start >= 1.5 - self.early

    def test_a_message_is_not_seen_before_it_is_due(self, binding: Any, queue: str) -> None:
        if binding.capabilities.max_delay == 0:
            return
        binding.publish(queue, outgoing([b"later"], delays=[60_000]))
        self.assert_read(binding, queue)
        if binding.capabilities.browse == "exact":
            assert joined(binding.browse(queue)).num_rows == 0

    def test_a_delay_beyond_the_longest_is_refused(self, binding: Any, queue: str) -> None:
        longest = binding.capabilities.max_delay
        far = outgoing([b"far"], delays=[10 * 365 * 86_400_000 if longest is None else longest + 1])
        if longest is None:
            assert binding.publish(queue, far) == 1
        else:
            with pytest.raises(BrokerError):
                binding.publish(queue, far)
        self.assert_read(binding, queue)

    # Publishing once.

    def test_a_marked_batch_is_published_once(self, connect: Connect, queue: str) -> None:
        one, other = connect(), connect()
        batch, marker = outgoing([b"a", b"b"]), uuid.uuid4().hex
        if not one.capabilities.publish_once:
            with pytest.raises(BrokerError):
                one.publish(queue, batch, idempotency_key=marker)
            self.assert_read(one, queue)
            return
        assert one.publish(queue, batch, idempotency_key=marker) == 2
        assert one.publish(queue, batch, idempotency_key=marker) == 0
        assert other.publish(queue, batch, idempotency_key=marker) == 0
        assert other.publish(queue, batch, idempotency_key=uuid.uuid4().hex) == 2
        self.read(other, queue, 4)
        assert one.publish(queue, batch, idempotency_key=marker) == 0
        self.assert_read(other, queue)

    def test_processes_publish_a_marked_batch_once_between_them(
        self, binding: Any, config: BindingConfig, queue: str
    ) -> None:
        if not binding.capabilities.publish_once:
            return
        published = in_processes(2, publish_marked, self.binding_class, config, queue, uuid.uuid4().hex, 50)
        assert sorted(published) == [0, 50]
        self.read(binding, queue, 50)
        self.assert_read(binding, queue)

    # Dead letters.

    @pytest.mark.parametrize("style", ["babelqueue", "initphp"])
    def test_dead_letters_go_to_a_queue_of_their_own(self, binding: Any, queue: str, style: Any) -> None:
        name = self.binding_class.dead_letter_name(queue, style)
        assert queue in name
        assert name != queue
        assert binding.publish(name, outgoing([b"dead"])) == 1
        await_backlog(binding, name, 1)
        self.assert_read(binding, queue)
        if binding.capabilities.browse == "exact":
            assert joined(binding.browse(name)).column("body").to_pylist() == [b"dead"]

    # Configuration and errors.

    def test_a_binding_is_built_pickled_and_closed_without_a_connection(
        self, unreachable: BindingConfig
    ) -> None:
        binding = pickle.loads(pickle.dumps(self.binding_class(unreachable)))
        assert binding.config == unreachable
        binding.close()
        binding.close()

    def test_an_unreachable_broker_is_one_line_without_the_secret(
        self, unreachable: BindingConfig, queue: str
    ) -> None:
        assert SECRET not in repr(unreachable)
        verbs: list[Callable[[Any], Any]] = [
            lambda binding: binding.backlog(queue),
            lambda binding: binding.publish(queue, outgoing([b"x"])),
        ]
        for verb in [*verbs, *self.verbs]:
            with self.binding_class(unreachable) as binding, pytest.raises(self.unreachable_error) as caught:
                verb(binding)
            assert_safe(caught.value)

    def test_an_unknown_client_option_is_refused(self, config: BindingConfig) -> None:
        options = {**config.client_options, "no_such_option": "1"}
        with pytest.raises(OptionError, match="no_such_option") as caught:
            self.binding_class(replace(config, client_options=options))
        assert_safe(caught.value)

    def _assert_bodies(self, batch: pa.RecordBatch, expected: Sequence[bytes]) -> None:
        got = batch.column("body").to_pylist()
        if self.binding_class.capabilities.ordered:
            assert got == list(expected)
        else:
            assert sorted(got) == sorted(expected)


class BindingContract(Contract):
    """Tests of a queue's binding against its real server; see the module's description."""

    binding_class: ClassVar[type[Binding]]
    shortest_timeout: ClassVar[float | None] = 1.0
    """The least `visibility_timeout` the binding takes; tests of lapsed claims wait for it. None: none."""
    verbs = (lambda binding: binding.claim("orders", 1, MIB),)

    def read(self, binding: Binding, queue: str, count: int) -> pa.RecordBatch:
        claimed = take(binding, queue, count)
        assert binding.acknowledge(queue, claimed).true_count == count
        return claimed

    def assert_read(self, binding: Binding, queue: str) -> None:
        assert_empty(binding, queue)

    def expire_claims(self, holder: Binding) -> None:
        """Make the claims of `holder` lapse, where it takes more than waiting for `shortest_timeout`."""

    @pytest.fixture
    def hasty(self, connect: Connect) -> Callable[[], Binding]:
        """Makes bindings whose claims lapse soon."""
        return lambda: connect(visibility_timeout=self.shortest_timeout)

    def test_identical_bodies_are_separate_messages(self, binding: Binding, queue: str) -> None:
        binding.publish(queue, outgoing([b"same"] * 3))
        claimed = take(binding, queue, 3)
        assert binding.acknowledge(queue, claimed.slice(0, 1)).to_pylist() == [True]
        binding.release(queue, claimed.slice(1))
        again = take(binding, queue, 2)
        assert binding.acknowledge(queue, again).to_pylist() == [True, True]
        assert_empty(binding, queue)

    # Claims.

    def test_claims_have_the_schema_of_deliveries(self, binding: Binding, queue: str) -> None:
        assert binding.claim(queue, 10, MIB).schema.equals(DELIVERIES)
        before = time.time()
        binding.publish(queue, outgoing([b"one", b"two"]))
        claimed = take(binding, queue, 2)
        claimed.validate(full=True)
        assert claimed.schema.equals(DELIVERIES)
        assert claimed.column("body").null_count == claimed.column("receipt").null_count == 0
        assert set(claimed.column("redelivered").to_pylist()) <= {False, None}
        assert set(claimed.column("count").to_pylist()) <= {1, None}
        for moment in claimed.column("enqueued_at").drop_null().to_pylist():
            assert before - 2 <= moment.timestamp() <= time.time() + 2

    def test_an_empty_queue_gives_an_empty_batch_at_once(self, binding: Binding, queue: str) -> None:
        binding.claim(queue, 10, MIB)
        start = time.monotonic()
        assert binding.claim(queue, 10, MIB).num_rows == 0
        assert time.monotonic() - start < 5

    def test_a_claim_is_bounded_by_messages(self, binding: Binding, queue: str) -> None:
        bodies = [b"%d" % number for number in range(10)]
        binding.publish(queue, outgoing(bodies))
        first = claim_some(binding, queue, messages=3)
        assert 1 <= first.num_rows <= 3
        rest = take(binding, queue, 10 - first.num_rows)
        assert sorted([*first.column("body").to_pylist(), *rest.column("body").to_pylist()]) == bodies

    def test_a_claim_is_bounded_by_bytes(self, binding: Binding, queue: str) -> None:
        bodies = [b"%d" % number * 1_000 for number in range(5)]
        binding.publish(queue, outgoing(bodies))
        first = claim_some(binding, queue, max_bytes=2_500)
        assert 1 <= first.num_rows <= 2
        rest = take(binding, queue, 5 - first.num_rows)
        assert sorted([*first.column("body").to_pylist(), *rest.column("body").to_pylist()]) == bodies

    def test_a_message_larger_than_the_bound_is_claimed_alone(self, binding: Binding, queue: str) -> None:
        binding.publish(queue, outgoing([b"x" * 5_000, b"y" * 5_000]))
        assert claim_some(binding, queue, max_bytes=1).num_rows == 1
        assert take(binding, queue, 1).num_rows == 1

    def test_a_claimed_message_is_nobody_elses(self, connect: Connect, queue: str) -> None:
        one, other = connect(), connect()
        bodies = [b"%d" % number for number in range(10)]
        one.publish(queue, outgoing(bodies))
        first = claim_some(one, queue, messages=4)
        second = take(other, queue, 10 - first.num_rows)
        assert sorted([*first.column("body").to_pylist(), *second.column("body").to_pylist()]) == bodies
        assert one.claim(queue, 10, MIB).num_rows == other.claim(queue, 10, MIB).num_rows == 0

    def test_processes_share_a_queue_without_sharing_a_message(
        self, binding: Binding, config: BindingConfig, queue: str
    ) -> None:
        bodies = [f"{number}".encode() for number in range(600)]
        publish_all(binding, queue, bodies)
        shares = in_processes(3, consume, self.binding_class, config, queue)
        left = claim_until_empty(binding, queue)
        assert Counter(body for share in [*shares, left] for body in share) == Counter(bodies)
        assert_empty(binding, queue)

    # Acknowledge and release.

    def test_release_gives_messages_back_at_once(self, connect: Connect, queue: str) -> None:
        one, other = connect(), connect()
        one.publish(queue, outgoing([b"a", b"b", b"c"]))
        claimed = take(one, queue, 3)
        one.release(queue, claimed)
        again = take(other, queue, 3)
        self._assert_bodies(again, [b"a", b"b", b"c"])
        assert Counter(other.identities(again)) == Counter(one.identities(claimed))
        assert False not in again.column("redelivered").to_pylist()
        assert other.acknowledge(queue, again).true_count == 3

    def test_a_part_of_a_claim_can_be_acknowledged(self, binding: Binding, queue: str) -> None:
        binding.publish(queue, outgoing([b"%d" % number for number in range(6)]))
        claimed = take(binding, queue, 6)
        even = claimed.take(pa.array([0, 2, 4]))
        assert binding.acknowledge(queue, even).to_pylist() == [True] * 3
        odd = claimed.take(pa.array([1, 3, 5]))
        binding.release(queue, odd)
        again = take(binding, queue, 3)
        assert set(again.column("body").to_pylist()) == set(odd.column("body").to_pylist())

    def test_nothing_to_acknowledge_or_release(self, binding: Binding, queue: str) -> None:
        none = binding.claim(queue, 10, MIB)
        assert binding.acknowledge(queue, none).to_pylist() == []
        binding.release(queue, none)

    def test_a_receipt_outlives_its_connection_where_receipts_are_durable(
        self, connect: Connect, queue: str
    ) -> None:
        one, other = connect(), connect()
        one.publish(queue, outgoing([b"a", b"b"]))
        kept = through_ipc(take(one, queue, 2))
        one.close()
        if other.capabilities.durable_receipts:
            assert other.acknowledge(queue, kept).to_pylist() == [True, True]
        else:
            assert other.acknowledge(queue, kept).to_pylist() == [False, False]
            assert other.acknowledge(queue, take(other, queue, 2)).to_pylist() == [True, True]
        assert_empty(other, queue)

    # Claims that lapse.

    def test_a_lapsed_claim_is_delivered_again_under_the_same_name(
        self, hasty: Callable[[], Binding], queue: str
    ) -> None:
        lost, heir = hasty(), hasty()
        lost.publish(queue, outgoing([b"a", b"b"]))
        first = take(lost, queue, 2)
        self.expire_claims(lost)
        second = take(heir, queue, 2)
        self._assert_bodies(second, [b"a", b"b"])
        assert Counter(heir.identities(second)) == Counter(lost.identities(first))
        assert False not in second.column("redelivered").to_pylist()
        assert all(count is None or count >= 2 for count in second.column("count").to_pylist())

    def test_a_late_acknowledge_neither_loses_nor_removes_the_message(
        self, hasty: Callable[[], Binding], queue: str
    ) -> None:
        late, prompt = hasty(), hasty()
        late.publish(queue, outgoing([b"a"]))
        first = take(late, queue, 1)
        self.expire_claims(late)
        second = take(prompt, queue, 1)
        assert late.acknowledge(queue, first).to_pylist() == [False]
        late.release(queue, first)
        assert prompt.acknowledge(queue, second).to_pylist() == [True]
        assert_empty(prompt, queue)

    def test_what_acknowledge_says_of_a_lapsed_claim_is_true(
        self, hasty: Callable[[], Binding], queue: str
    ) -> None:
        holder, other = hasty(), hasty()
        holder.publish(queue, outgoing([b"a"]))
        claimed = take(holder, queue, 1)
        self.expire_claims(holder)
        await_backlog(other, queue, 1)
        if holder.acknowledge(queue, claimed).to_pylist() == [False]:
            assert other.acknowledge(queue, take(other, queue, 1)).to_pylist() == [True]
        assert_empty(other, queue)

    def test_the_claim_of_a_killed_process_comes_back(
        self, hasty: Callable[[], Binding], config: BindingConfig, queue: str
    ) -> None:
        survivor = hasty()
        survivor.publish(queue, outgoing([b"a", b"b"]))
        short = replace(config, visibility_timeout=self.shortest_timeout)
        claimed = claimed_by_a_killed_process(self.binding_class, short, queue, 2)
        assert sorted(claimed) == [b"a", b"b"]
        again = take(survivor, queue, 2)
        self._assert_bodies(again, [b"a", b"b"])

    def test_a_lease_ends_no_later_than_the_visibility_timeout(self, binding: Binding) -> None:
        assert 0 <= binding.lease <= (binding.config.visibility_timeout or 0)

    # Backlog and browse.

    def test_the_backlog_counts_what_a_claim_could_get(
        self, hasty: Callable[[], Binding], connect: Connect, queue: str
    ) -> None:
        binding, short = connect(), hasty()
        await_backlog(binding, queue, 0)
        binding.publish(queue, outgoing([b"a", b"b", b"c"]))
        await_backlog(binding, queue, 3)
        claimed = take(binding, queue, 3)
        await_backlog(binding, queue, 0)
        binding.release(queue, claimed.slice(0, 1))
        await_backlog(binding, queue, 1)
        binding.acknowledge(queue, claimed.slice(1))
        await_backlog(binding, queue, 1)
        take(short, queue, 1)
        self.expire_claims(short)
        await_backlog(short, queue, 1)

    def test_browsing_consumes_nothing(self, binding: Binding, queue: str) -> None:
        binding.publish(queue, outgoing(self.bodies))
        if binding.capabilities.browse == "none":
            with pytest.raises(BrokerError):
                list(binding.browse(queue))
            return
        for _ in range(2):
            seen = joined(binding.browse(queue))
            assert seen.schema.equals(DELIVERIES)
            self._assert_bodies(seen, self.bodies)
            assert seen.column("receipt").null_count == seen.num_rows
        await_backlog(binding, queue, len(self.bodies))
        claimed = take(binding, queue, len(self.bodies))
        self._assert_bodies(claimed, self.bodies)
        if binding.capabilities.browse == "exact":
            assert True not in claimed.column("redelivered").to_pylist()
            assert joined(binding.browse(queue)).num_rows == 0

    def test_dead_letters_of_our_style_are_claimed_as_from_any_queue(
        self, binding: Binding, queue: str
    ) -> None:
        name = self.binding_class.dead_letter_name(queue, "babelqueue")
        binding.publish(name, outgoing([b"dead"]))
        assert binding.acknowledge(name, take(binding, name, 1)).to_pylist() == [True]


class LogContract(Contract):
    """Tests of a log's binding against its real server, where a new topic has one partition."""

    binding_class: ClassVar[type[LogBinding]]
    verbs = (
        lambda binding: binding.end_offsets("orders"),
        lambda binding: list(binding.read("orders", 0, 0, 1)),
    )

    @pytest.fixture(autouse=True)
    def _nothing_was_read(self) -> None:
        self._seen: Counter[str] = Counter()

    def read(self, binding: LogBinding, queue: str, count: int) -> pa.RecordBatch:
        def unread() -> pa.RecordBatch | None:
            rows = joined(binding.browse(queue)).slice(self._seen[queue])
            return rows.slice(0, count) if rows.num_rows >= count else None

        found = eventually(unread)
        self._seen[queue] += count
        return found

    def assert_read(self, binding: LogBinding, queue: str) -> None:
        assert joined(binding.browse(queue)).num_rows == self._seen[queue]

    def test_what_is_read_has_the_schema_of_deliveries(self, binding: LogBinding, queue: str) -> None:
        before = time.time()
        binding.publish(queue, outgoing([b"one", b"two"]))
        found = self.read(binding, queue, 2)
        found.validate(full=True)
        assert found.schema.equals(DELIVERIES)
        assert (found.column("body").null_count, found.column("receipt").null_count) == (0, 2)
        for moment in found.column("enqueued_at").drop_null().to_pylist():
            assert before - 2 <= moment.timestamp() <= time.time() + 2

    def test_offsets_name_the_same_messages_each_time(self, connect: Connect, queue: str) -> None:
        one, other = connect(), connect()
        publish_all(one, queue, numbered := [b"%d" % number for number in range(100)])
        [(partition, first)] = one.beginning_offsets(queue).items()
        assert one.end_offsets(queue) == {partition: first + 100}
        for reader in (one, other, one):
            middle = joined(reader.read(queue, partition, first + 20, first + 70))
            assert middle.column("body").to_pylist() == numbered[20:70]
        assert joined(one.read(queue, partition, first, first)).num_rows == 0
        assert one.backlog(queue) == 100

    def test_a_log_that_nobody_made_is_empty(self, binding: LogBinding, queue: str) -> None:
        assert binding.beginning_offsets(queue) == binding.end_offsets(queue) == {}
        assert binding.backlog(queue) == joined(binding.browse(queue)).num_rows == 0

    def test_offsets_that_were_never_there_are_data_loss(self, binding: LogBinding, queue: str) -> None:
        binding.publish(queue, outgoing([b"one"]))
        with pytest.raises(DataLossError) as caught:
            list(binding.read(queue, 0, 1_000, 1_001))
        assert_safe(caught.value)

    def test_monitors_are_told_how_far_a_reader_is(self, binding: LogBinding, queue: str) -> None:
        binding.publish(queue, outgoing([b"one", b"two"]))
        binding.commit_offsets(queue, binding.end_offsets(queue))
        binding.commit_offsets(queue, binding.end_offsets(queue))


def outgoing(
    bodies: Sequence[bytes],
    *,
    headers: Sequence[Mapping[str, str] | None] | None = None,
    keys: Sequence[str | None] | None = None,
    delays: Sequence[int | None] | None = None,
) -> pa.RecordBatch:
    """An `OUTGOING` batch; delays in milliseconds."""
    given = [None] * len(bodies)
    pairs = [None if header is None else list(header.items()) for header in headers or given]
    columns = (bodies, pairs, keys or given, delays or given)
    arrays = [pa.array(values, field.type) for values, field in zip(columns, OUTGOING, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=OUTGOING)


def publish_all(binding: Binding, queue: str, bodies: Sequence[bytes]) -> None:
    """Publish in several batches, none larger than the broker takes."""
    size = min(1_000, binding.capabilities.publish_batch)
    for start in range(0, len(bodies), size):
        part = bodies[start : start + size]
        assert binding.publish(queue, outgoing(part)) == len(part)


def eventually(probe: Callable[[], Any], patience: float = PATIENCE) -> Any:
    """What `probe` returns, once that is true; fails when it takes too long."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        found = probe()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"not within {patience:.0f} seconds")


def claim_some(
    binding: Binding, queue: str, *, messages: int = 100, max_bytes: int = 64 * MIB
) -> pa.RecordBatch:
    """One claim, repeated while it gives nothing."""

    def claim() -> pa.RecordBatch | None:
        batch = binding.claim(queue, min(messages, binding.capabilities.claim_batch), max_bytes)
        return batch if batch.num_rows else None

    return eventually(claim)


def take(binding: Binding, queue: str, count: int) -> pa.RecordBatch:
    """As many claims as it takes to have `count` messages, as one batch."""
    claimed: list[pa.RecordBatch] = []
    while (missing := count - sum(batch.num_rows for batch in claimed)) > 0:
        claimed.append(claim_some(binding, queue, messages=missing))
    return joined(claimed)


def claim_until_empty(binding: Binding, queue: str) -> list[bytes]:
    """Claim and acknowledge until a claim gives nothing; the bodies."""
    bodies: list[bytes] = []
    while (batch := binding.claim(queue, min(20, binding.capabilities.claim_batch), MIB)).num_rows:
        assert binding.acknowledge(queue, batch).true_count == batch.num_rows
        bodies.extend(batch.column("body").to_pylist())
    return bodies


def await_backlog(binding: Binding, queue: str, count: int) -> None:
    """Wait until a queue has so many messages that can be claimed."""
    eventually(lambda: binding.backlog(queue) == count)


def assert_empty(binding: Binding, queue: str) -> None:
    """Assert that nothing can be claimed, once the broker has settled."""
    await_backlog(binding, queue, 0)
    assert binding.claim(queue, 10, MIB).num_rows == 0


def assert_safe(error: Exception) -> None:
    """One line, no secret, and nothing chained that would show one."""
    assert str(error).strip()
    assert "\n" not in str(error)
    assert SECRET not in str(error)
    assert error.__cause__ is None
    assert error.__context__ is None or error.__suppress_context__


def joined(batches: Iterable[pa.RecordBatch]) -> pa.RecordBatch:
    """One batch out of several, or out of none."""
    return pa.concat_batches([empty_deliveries(), *batches])


def through_ipc(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch as it comes out of a file."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return pa.ipc.open_file(sink.getvalue()).get_batch(0)


# What runs in processes of its own.

Work = Callable[..., Any]


def in_processes(count: int, work: Work, *arguments: Any) -> list[Any]:
    """What `work` returns in each of `count` new processes, which begin it together."""
    context = get_context("spawn")
    barrier = context.Barrier(count)
    with ProcessPoolExecutor(count, context, initializer=_begin_together, initargs=(barrier,)) as pool:
        futures = [pool.submit(work, *arguments) for _ in range(count)]
        return [future.result(timeout=120) for future in futures]


def _begin_together(barrier: Barrier) -> None:
    barrier.wait(timeout=120)


def consume(binding_class: type[Binding], config: BindingConfig, queue: str) -> list[bytes]:
    """Claim and acknowledge, in a process of its own, until nothing is left."""
    with binding_class(config) as binding:
        return claim_until_empty(binding, queue)


def publish_marked(
    binding_class: type[Binding], config: BindingConfig, queue: str, marker: str, count: int
) -> int:
    """Publish a batch under an idempotency key, in a process of its own."""
    with binding_class(config) as binding:
        return binding.publish(queue, outgoing([b"once"] * count), idempotency_key=marker)


def claimed_by_a_killed_process(
    binding_class: type[Binding], config: BindingConfig, queue: str, count: int
) -> list[bytes]:
    """The bodies that a process had claimed when it was killed."""
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_claim_and_wait, args=(binding_class, config, queue, count, theirs))
    process.start()
    try:
        assert ours.poll(PATIENCE)
        bodies: list[bytes] = ours.recv()
    finally:
        process.kill()
        process.join()
        process.close()
        ours.close()
        theirs.close()
    return bodies


def _claim_and_wait(
    binding_class: type[Binding], config: BindingConfig, queue: str, count: int, reports_to: Connection
) -> None:
    binding = binding_class(config)
    reports_to.send(take(binding, queue, count).column("body").to_pylist())
    reports_to.recv()
