"""What every binding of a queue promises."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

import pyarrow as pa
import pytest

from babelqueue_spark.bindings import DELIVERIES, BaseBinding, Binding, BindingConfig
from babelqueue_spark.errors import BrokerError
from babelqueue_spark.testing.common import Contract
from babelqueue_spark.testing.silence import Verb
from babelqueue_spark.testing.steps import (
    ENVELOPE,
    MIB,
    Connect,
    assert_empty,
    await_backlog,
    claim_some,
    claim_until_empty,
    claimed_by_a_killed_process,
    consume,
    in_processes,
    joined,
    outgoing,
    publish_all,
    take,
    through_ipc,
)


class BindingContract(Contract):
    """Tests of a queue's binding against its real server; see the module's description."""

    binding_class: ClassVar[type[Binding]]
    shortest_timeout: ClassVar[float | None] = 1.0
    """The least `visibility_timeout` the binding takes; tests of lapsed claims wait for it. None: none."""
    verbs = (lambda binding: binding.claim("orders", 1, MIB),)

    @staticmethod
    def reading(binding: Binding, queue: str) -> pa.RecordBatch:
        return binding.claim(queue, 1, MIB)

    def _later_verb(self, binding: Binding, queue: str) -> Verb | None:
        binding.publish(queue, outgoing([b"a"]))
        claimed = take(binding, queue, 1)
        return lambda binding: binding.acknowledge(queue, claimed)

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
        """Make bindings whose claims lapse soon."""
        return lambda: connect(visibility_timeout=self.shortest_timeout)

    @pytest.fixture
    def heir(self, hasty: Callable[[], Binding]) -> Binding:
        """Make a binding for what lapsed: hasty too, where the timeout of who claims decides what did."""
        return hasty()

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
            assert before - 20 <= moment.timestamp() <= time.time() + 20

    def test_an_empty_queue_gives_an_empty_batch_at_once(self, binding: Binding, queue: str) -> None:
        binding.claim(queue, 10, MIB)
        took = []
        for _ in range(3):
            start = time.monotonic()
            assert binding.claim(queue, 10, MIB).num_rows == 0
            took.append(time.monotonic() - start)
        assert min(took) < 5

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
        left = claim_until_empty(binding, queue, len(bodies) - sum(map(len, shares)))
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

    def test_claims_of_several_queues_are_held_at_once(self, binding: Binding, queue: str) -> None:
        names = [queue.replace("orders", f"orders{number}") for number in range(3)]
        for name in names:
            binding.publish(name, outgoing([name.encode()]))
        claims = {name: take(binding, name, 1) for name in names}
        for name, claimed in claims.items():
            assert claimed.column("body").to_pylist() == [name.encode()]
            assert binding.acknowledge(name, claimed).to_pylist() == [True]
            assert_empty(binding, name)

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
        self, hasty: Callable[[], Binding], heir: Binding, queue: str
    ) -> None:
        lost = hasty()
        lost.publish(queue, outgoing([b"a", b"b"]))
        first = take(lost, queue, 2)
        self.expire_claims(lost)
        await_backlog(heir, queue, 2)
        second = take(heir, queue, 2)
        self._assert_bodies(second, [b"a", b"b"])
        assert Counter(heir.identities(second)) == Counter(lost.identities(first))
        assert False not in second.column("redelivered").to_pylist()
        assert all(count is None or count >= 2 for count in second.column("count").to_pylist())

    def test_a_late_acknowledge_neither_loses_nor_removes_the_message(
        self, hasty: Callable[[], Binding], heir: Binding, queue: str
    ) -> None:
        late = hasty()
        late.publish(queue, outgoing([b"a"]))
        first = take(late, queue, 1)
        self.expire_claims(late)
        second = take(heir, queue, 1)
        assert late.acknowledge(queue, first).to_pylist() == [False]
        late.release(queue, first)
        assert heir.acknowledge(queue, second).to_pylist() == [True]
        assert_empty(heir, queue)

    def test_what_acknowledge_says_of_a_lapsed_claim_is_true(
        self, hasty: Callable[[], Binding], heir: Binding, queue: str
    ) -> None:
        holder = hasty()
        holder.publish(queue, outgoing([b"a"]))
        claimed = take(holder, queue, 1)
        self.expire_claims(holder)
        await_backlog(heir, queue, 1)
        if holder.acknowledge(queue, claimed).to_pylist() == [False]:
            assert heir.acknowledge(queue, take(heir, queue, 1)).to_pylist() == [True]
        assert_empty(heir, queue)

    def test_the_claim_of_a_killed_process_comes_back(
        self, heir: Binding, config: BindingConfig, queue: str
    ) -> None:
        heir.publish(queue, outgoing([b"a", b"b"]))
        short = replace(config, visibility_timeout=self.shortest_timeout)
        claimed = claimed_by_a_killed_process(self.binding_class, short, queue, 2)
        assert sorted(claimed) == [b"a", b"b"]
        await_backlog(heir, queue, 2)
        again = take(heir, queue, 2)
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

    def test_the_oldest_message_waits_since_it_came_where_the_broker_tells(
        self, binding: Binding, queue: str
    ) -> None:
        assert binding.oldest(queue) is None
        before = binding.now()
        first = json.loads(ENVELOPE)
        first["meta"]["created_at"] = int(before * 1000)
        later = ENVELOPE.replace(b"1750000000000", b"%d" % ((before + 3600) * 1000))
        binding.publish(queue, outgoing([json.dumps(first).encode(), later]))
        since = binding.oldest(queue)
        if type(binding).oldest is BaseBinding.oldest:
            assert since is None
        else:
            assert since is not None
            assert before - 2 <= since <= binding.now()

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
