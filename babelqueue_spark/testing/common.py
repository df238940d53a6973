"""What holds of queues and logs alike."""

from __future__ import annotations

import json
import os
import pickle
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from babelqueue_spark.bindings import OUTGOING, BaseBinding, BindingConfig
from babelqueue_spark.bindings.batches import ENVELOPE_COLUMN, envelopes_of
from babelqueue_spark.bindings.registry import BINDINGS, Registration
from babelqueue_spark.connector.rows.reading import SCHEMA, to_rows
from babelqueue_spark.envelope import decode
from babelqueue_spark.errors import BrokerError, BrokerUnreachableError, OptionError
from babelqueue_spark.exchange import ask
from babelqueue_spark.testing.forms import FormContract, options_for
from babelqueue_spark.testing.requests import answer, options_of
from babelqueue_spark.testing.silence import SilenceContract
from babelqueue_spark.testing.steps import (
    BEYOND_ALL_BOUNDS,
    ENVELOPE,
    MIB,
    PATIENCE,
    SECRET,
    Connect,
    assert_safe,
    await_backlog,
    in_processes,
    joined,
    outgoing,
    publish_all,
    publish_marked,
)
from babelqueue_spark.worker.rows import VERSION_HEADERS


class Contract(FormContract, SilenceContract):
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
    creates_queues: ClassVar[bool] = False
    """Whether the first use of a queue creates it, and `missing` tells of it before."""
    queue_suffixes: ClassVar[Sequence[str]] = (" eu", "-ß-注文", ":a:b", ".v2", "_%", "'\"", "{tag}")
    """What queue names may hold."""
    no_queues: ClassVar[Sequence[str]] = ()
    """Names that are no queues of this broker."""
    own_suffixes: ClassVar[Sequence[str]] = ()
    """What the broker or the connector keeps beside a queue, behind its name."""

    @pytest.fixture
    def config(self) -> BindingConfig:
        """Return how to reach the server, with a visibility timeout that does not end within a test."""
        raise NotImplementedError

    @pytest.fixture
    def unreachable(self) -> BindingConfig:
        """Return a configuration that cannot connect; with `SECRET` where it can hold a password."""
        raise NotImplementedError

    def read(self, binding: Any, queue: str, count: int) -> pa.RecordBatch:
        """Return the next `count` messages, which are not read again."""
        raise NotImplementedError

    def assert_read(self, binding: Any, queue: str) -> None:
        """There are no messages beyond those that were read."""
        raise NotImplementedError

    def send_hostile(self, config: BindingConfig, queue: str) -> Sequence[bytes]:
        """Send messages with the worst metadata that a sender may set, by a bare client; return their bodies.

        The queue exists. None where the broker lets senders set no more than a body.
        """
        del config, queue
        return ()

    @pytest.fixture
    def queue(self) -> str:
        return f"orders-{uuid.uuid4().hex[:12]}"

    @pytest.fixture
    def connect(self, config: BindingConfig) -> Iterator[Connect]:
        """Make bindings, with changes of the configuration; they are closed after the test."""
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

    def test_asking_what_is_missing_creates_nothing(self, binding: Any, queue: str) -> None:
        missing = binding.missing(queue)
        if self.creates_queues:
            assert queue in missing
        assert binding.missing(queue) == missing
        binding.publish(queue, outgoing([b"first"]))
        assert binding.missing(queue) == ""

    def test_queues_keep_apart_whatever_their_names(self, binding: Any, queue: str) -> None:
        names = [queue + suffix for suffix in self.queue_suffixes]
        for name in names:
            binding.publish(name, outgoing([name.encode()]))
        for name in names:
            assert self.read(binding, name, 1).column("body").to_pylist() == [name.encode()]
            self.assert_read(binding, name)

    def test_a_name_that_is_no_queue_is_refused(self, binding: Any, queue: str) -> None:
        beside = [queue + suffix for suffix in self.own_suffixes]
        for name in ["", " ", "line\nbreak", "nul\0", "half \ud800", *self.no_queues, *beside]:
            for use in (binding.check_target, lambda name: binding.publish(name, outgoing([b"x"]))):
                with pytest.raises(OptionError) as caught:
                    use(name)
                assert_safe(caught.value)
        binding.check_target(queue)
        self.assert_read(binding, queue)

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

    def test_an_envelope_handed_along_shows_what_its_body_shows(self, binding: Any, queue: str) -> None:
        messages = outgoing([ENVELOPE.replace(b'"id":"0', b'"id":"1')])
        envelopes = envelopes_of(messages).select([field.name for field in ENVELOPE_COLUMN.type])
        handed = messages.append_column(ENVELOPE_COLUMN, envelopes.to_struct_array())
        binding.publish(queue, outgoing([ENVELOPE]))
        binding.publish(queue, handed)
        got = self.read(binding, queue, 2)
        headers = dict(zip(*(got.column(name).to_pylist() for name in ("body", "headers")), strict=True))
        assert len(headers) == 2
        shown = [json.dumps(each).replace("1e9d1f4a", "0e9d1f4a") for each in headers.values()]
        assert shown[0] == shown[1]

    def test_no_metadata_stops_a_queue(self, binding: Any, config: BindingConfig, queue: str) -> None:
        binding.publish(queue, outgoing([BEYOND_ALL_BOUNDS]))
        expected = [BEYOND_ALL_BOUNDS, *self.send_hostile(config, queue), ENVELOPE]
        binding.publish(queue, outgoing([ENVELOPE]))
        if binding.capabilities.browse != "none":
            self._assert_bodies(joined(binding.browse(queue)), expected)
        found = self.read(binding, queue, len(expected))
        self._assert_bodies(found, expected)
        assert len(to_rows(found, queue, binding, SCHEMA, options_for(queue)).to_pylist()) == len(expected)
        dead = self.binding_class.dead_letter_name(queue, "babelqueue")
        none = pa.nulls(len(expected), OUTGOING.field("delay").type)
        columns = [*found.select(["body", "headers", "key"]).columns, none]
        binding.publish(dead, pa.RecordBatch.from_arrays(columns, schema=OUTGOING))
        self._assert_bodies(self.read(binding, dead, len(expected)), expected)

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
        came = {}
        for _ in range(3):
            [body] = self.read(binding, queue, 1).column("body").to_pylist()
            came[body] = time.time() - start
        assert sorted(came) == [b"later", b"now", b"soon"]
        assert came[b"later"] >= 1.5 - self.early

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

    # Requests.

    def test_a_request_is_answered_where_messages_can_be_taken(
        self, binding: Any, config: BindingConfig, queue: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(BINDINGS, binding.name, Registration(self.binding_class, "", (), ()))
        options, urn = options_of(binding, config, queue), "urn:babel:orders:price"
        if not binding.capabilities.claim_batch:
            with pytest.raises(OptionError, match="nothing can be taken out of it"):
                ask(options, urn, {})
            self.assert_read(binding, queue)
            return
        replies = self.binding_class.dead_letter_name(queue, "babelqueue")  # a name that each broker takes
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(ask, options, urn, {"sku": "é"}, timeout=2 * PATIENCE, reply_queue=replies)
            request = self.read(binding, queue, 1)
            answer(binding, options, request)
            reply = asked.result()
        [sent] = decode(request.column("body")).to_pylist()
        assert (reply.job, reply.data) == (f"{urn}:reply", {"asked": {"sku": "é"}})
        assert (reply.trace_id, reply.meta["causation_id"]) == (sent["trace_id"], sent["meta"]["id"])
        self.assert_read(binding, replies)

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
