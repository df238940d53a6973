"""Attempts at one partition, at once and one after the other, and claims that fail."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from babelqueue_spark.bindings import Binding, BindingConfig
from babelqueue_spark.bindings.rabbitmq import RabbitBinding
from babelqueue_spark.bindings.redis import RedisBinding
from babelqueue_spark.bindings.sql import SqlBinding
from babelqueue_spark.connector.options import read_options
from babelqueue_spark.connector.rows.reading import SCHEMA
from babelqueue_spark.connector.source import claiming
from babelqueue_spark.connector.source.claiming import deliveries_of
from babelqueue_spark.connector.source.plan import Claim, Share
from babelqueue_spark.connector.source.stream import QueueStreamReader
from babelqueue_spark.errors import JournalError, JournalMissingError
from babelqueue_spark.journal import Journal, Segment
from babelqueue_spark.testing import eventually, take
from tests.servers.rabbitmq import RabbitServer
from tests.servers.redis import RedisServer
from tests.streams import backlog, envelope, in_time, publish

HERE = "/proc/self/cwd/journal"


def attempt(
    url: str, queue: str, location: str, index: int, timeout: str | None = "60s", batch: int = 1
) -> list[bytes]:
    """What one task attempt yields."""
    bound = {"visibilityTimeout": timeout} if timeout else {}
    options = read_options({"url": url, "queue": queue, **bound})
    journal = Journal(location)
    if batch > journal.state().cleaned:
        journal.record_plan(batch, {})
    claim = Claim(
        journal=journal.id,
        batch=batch,
        index=index,
        shares=[Share(queue, messages=500, max_bytes=1 << 20)],
        max_bytes=1 << 20,
        committed=0,
    )
    with options.binding() as binding:
        batches = deliveries_of(claim, options, journal, binding)
    return [body for _, batch in batches for body in batch.column("body").to_pylist()]


def hasty_attempt(url: str, queue: str, location: str, index: int, batch: int = 1) -> list[bytes]:
    """What an attempt yields whose claims lapse after two seconds."""
    return list(in_time(lambda: attempt(url, queue, location, index, "2s", batch), 2))


@pytest.fixture
def location(tmp_path: Path) -> str:
    made = Journal(str(tmp_path / "journal"))
    _ = made.id
    return made.location


def test_two_attempts_at_once_yield_the_same_rows(url: str, queue: str, location: str) -> None:
    publish(url, queue, (envelope(n) for n in range(2000)))  # enough for each of the four to claim its share
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(4, mp_context=context) as pool:
        results = list(pool.map(attempt, [url] * 4, [queue] * 4, [location] * 4, [0] * 4))
    assert len(results[0]) == 500
    assert all(result == results[0] for result in results)
    assert backlog(url, queue) == 1500


def test_a_repeated_attempt_reads_the_journal_and_not_the_queue(url: str, queue: str, location: str) -> None:
    publish(url, queue, (envelope(n) for n in range(10)))
    first = attempt(url, queue, location, 0)
    publish(url, queue, (envelope(n) for n in range(10, 20)))
    assert attempt(url, queue, location, 0) == first
    assert backlog(url, queue) == 10


def test_a_consumer_that_stops_at_its_first_row_leaves_nothing_to_acknowledge(
    url: str, queue: str, location: str
) -> None:
    """As `take` and `isEmpty` do: Spark calls the batch finished then, and the process may be killed."""
    publish(url, queue, (envelope(n) for n in range(10)))
    journal = Journal(location)
    journal.record_plan(1, {})
    claim = Claim(journal.id, 1, 0, [Share(queue, 500, 1 << 20)], 1 << 20, committed=0)
    options = read_options({"url": url, "queue": queue, "journalLocation": location})
    rows = QueueStreamReader(options, SCHEMA).read(claim)
    assert next(rows).num_rows == 10
    assert journal.segment(1, 0).acknowledged()
    assert backlog(url, queue) == 0
    rows.close()


def test_messages_come_back_when_the_journal_cannot_be_written(
    url: str, queue: str, location: str, tmp_path: Path
) -> None:
    publish(url, queue, (envelope(n) for n in range(10)))
    (tmp_path / "journal/batches").write_text("a file where a folder should be")
    with pytest.raises(JournalError, match="journalLocation"):
        attempt(url, queue, location, 0, "2s")
    (tmp_path / "journal/batches").unlink()
    moment, read = threading.Event(), 0
    for number in range(1, 200):
        read += len(hasty_attempt(url, queue, location, 0, batch=number))
        if read == 10:
            return
        moment.wait(0.1)
    raise AssertionError(f"{read} of 10 messages came back")


def test_an_attempt_that_comes_after_the_batch_was_cleaned_gives_its_claims_back(
    url: str, queue: str, location: str
) -> None:
    """A zombie: the batch was finished by another attempt, and its segment is gone."""
    publish(url, queue, (envelope(n) for n in range(1000)))
    assert len(attempt(url, queue, location, 0)) == 500
    Journal(location).commit(1)
    with pytest.raises(JournalError, match="came too late"):
        attempt(url, queue, location, 0)
    assert backlog(url, queue) == 500


def test_a_second_acknowledge_leaves_nothing_unacknowledged(url: str, queue: str, location: str) -> None:
    """Killed between acknowledge and its record: the same bytes, sent again later, are a new message."""
    bodies = [envelope(n) for n in range(3)]
    publish(url, queue, bodies)
    attempt(url, queue, location, 0)
    [record] = Path(location).glob("batches/*/*.ack")
    record.unlink()
    assert attempt(url, queue, location, 0) == bodies
    publish(url, queue, bodies)
    assert attempt(url, queue, location, 0, batch=2) == bodies


def test_no_warning_where_the_attempt_before_acknowledged(
    url: str, queue: str, location: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Killed between acknowledge and its record, and repeated when the claims would have lapsed."""
    bodies = [envelope(n) for n in range(3)]
    publish(url, queue, bodies)
    attempt(url, queue, location, 0)
    [record] = Path(location).glob("batches/*/*.ack")
    record.unlink()
    kind = type(read_options({"url": url, "queue": queue}).binding())
    monkeypatch.setattr(kind, "now", lambda _: time.time() + 61)
    assert attempt(url, queue, location, 0) == bodies
    assert not caplog.records


def test_one_task_reads_several_queues(url: str, queue: str, location: str) -> None:
    """Killed before the acknowledge: the next attempt yields the same rows, and acknowledges each queue."""
    names = [f"{queue}-{number}" for number in range(5)]
    firsts = {name: envelope(number) for number, name in enumerate(names)}
    for name, first in firsts.items():
        publish(url, name, [first, envelope(10)])
    journal = Journal(location)
    journal.record_plan(1, {})
    claim = Claim(journal.id, 1, 0, [Share(name, 1, 1 << 20) for name in names], 1 << 20, committed=0)
    options = read_options({"url": url, "queue": ",".join(names), "visibilityTimeout": "60s"})
    with options.binding() as killed, pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(killed), "acknowledge", _die)
        with pytest.raises(ZeroDivisionError):
            deliveries_of(claim, options, journal, killed)
    with options.binding() as binding:
        found = deliveries_of(claim, options, journal, binding)
    rows = [(name, body) for name, batch in found for body in batch.column("body").to_pylist()]
    assert sorted(rows) == sorted(firsts.items())
    assert [backlog(url, name) for name in names] == [1] * 5
    record = journal.segment(1, 0).ack_record()
    assert record is not None
    assert (record.claimed, record.unacknowledged) == ([1] * 5, {})


def test_the_bytes_of_several_queues_are_bounded_together(url: str, queue: str, location: str) -> None:
    names = [f"{queue}-{number}" for number in range(5)]
    for name in names:
        publish(url, name, [envelope(1)])
    journal = Journal(location)
    journal.record_plan(1, {})
    claim = Claim(journal.id, 1, 0, [Share(name, 1, 1 << 20) for name in names], 1, committed=0)
    options = read_options({"url": url, "queue": ",".join(names)})
    with options.binding() as binding:
        assert len(deliveries_of(claim, options, journal, binding)) == 1
    assert sum(backlog(url, name) for name in names) == 4


def test_a_queue_that_is_no_longer_read_is_left_alone(url: str, queue: str, location: str) -> None:
    """Planned, and taken out of the option before anything was claimed."""
    names = [f"{queue}-kept", f"{queue}-removed"]
    for name in names:
        publish(url, name, [envelope(1)])
    journal = Journal(location)
    journal.record_plan(1, {})
    claim = Claim(journal.id, 1, 0, [Share(name, 1, 1 << 20) for name in names], 1 << 20, committed=0)
    options = read_options({"url": url, "queue": names[0]})
    with options.binding() as binding:
        assert [name for name, _ in deliveries_of(claim, options, journal, binding)] == names[:1]
    assert [backlog(url, name) for name in names] == [0, 1]


def test_what_is_journalled_of_a_queue_that_is_no_longer_read_is_yielded(
    url: str, queue: str, location: str
) -> None:
    bodies = [envelope(n) for n in range(3)]
    publish(url, queue, bodies)
    assert attempt(url, queue, location, 0) == bodies
    journal = Journal(location)
    claim = Claim(journal.id, 1, 0, [Share(queue, 500, 1 << 20)], 1 << 20, committed=0)
    options = read_options({"url": url, "queue": f"{queue}-another"})
    with options.binding() as binding:
        [(name, batch)] = deliveries_of(claim, options, journal, binding)
    assert (name, batch.column("body").to_pylist()) == (queue, bodies)


def _die(*_: object) -> None:
    raise ZeroDivisionError


def test_what_lapses_during_the_acknowledge_is_recognised(
    url: str, queue: str, location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claims lived as it began; when the broker says no, they may be somebody else's already."""
    body = envelope(1)
    publish(url, queue, [body])
    kind = type(read_options({"url": url, "queue": queue}).binding())
    with monkeypatch.context() as slow:

        def acknowledge(self: Binding, queue: str, deliveries: pa.RecordBatch) -> pa.BooleanArray:
            self.release(queue, deliveries)
            lapsed = self.now() + 61
            slow.setattr(kind, "now", lambda _: lapsed)
            return pa.repeat(pa.scalar(False), deliveries.num_rows)

        slow.setattr(kind, "acknowledge", acknowledge)
        assert attempt(url, queue, location, 0) == [body]
    assert backlog(url, queue) == 1
    assert attempt(url, queue, location, 0, batch=2) == []


def test_a_later_message_of_the_same_bytes_is_taken_for_a_redelivery_once(
    redis_server: RedisServer, queue: str, location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between acknowledge and its record, and repeated when the claim has lapsed: nobody knows of it."""
    url, body = redis_server.url, envelope(1)
    publish(url, queue, [body])
    with monkeypatch.context() as killed:
        killed.setattr(Segment, "mark_acknowledged", _die)
        with pytest.raises(ZeroDivisionError):
            attempt(url, queue, location, 0)
    with monkeypatch.context() as later:
        later.setattr(RedisBinding, "now", lambda _: time.time() + 61)
        assert attempt(url, queue, location, 0) == [body]
    publish(url, queue, [body])
    assert attempt(url, queue, location, 0, batch=2) == []
    publish(url, queue, [body])
    assert attempt(url, queue, location, 0, batch=3) == [body]


def test_two_tasks_yield_what_was_claimed_on_a_connection_that_ended_before_the_journal(
    rabbitmq_server: RabbitServer, queue: str, location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, body = rabbitmq_server.url, envelope(1)
    publish(url, queue, [body])
    original, write = RabbitBinding.claim, Segment.write
    claimers: list[RabbitBinding] = []
    others: list[bytes] = []

    def claim(binding: RabbitBinding, queue: str, messages: int, max_bytes: int) -> pa.RecordBatch:
        claimers.append(binding)
        return original(binding, queue, messages, max_bytes)

    def lose_the_connection(*given: Any) -> bool:
        monkeypatch.undo()
        claimers[0].close()
        others.extend(attempt(url, queue, location, 1, None))
        return write(*given)

    monkeypatch.setattr(RabbitBinding, "claim", claim)
    monkeypatch.setattr(Segment, "write", lose_the_connection)
    assert attempt(url, queue, location, 0, None) == [body]
    assert others == [body]


def test_claims_are_released_in_the_order_of_their_queue(redis_server: RedisServer, queue: str) -> None:
    sent = [envelope(number) for number in range(6)]
    publish(redis_server.url, queue, sent)
    with read_options({"url": redis_server.url, "queue": queue}).binding() as binding:
        claiming._release([(queue, take(binding, queue, 2)) for _ in range(3)], binding)
        assert take(binding, queue, 6)["body"].to_pylist() == sent


def test_the_same_message_in_another_queue_is_another_message(
    url: str, queue: str, location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two queues of a query, and an acknowledge whose answer was lost in one of them."""
    other, body = f"{queue}-other", envelope(1)
    for each in (queue, other):
        publish(url, each, [body])
    kind = type(read_options({"url": url, "queue": queue}).binding())
    with monkeypatch.context() as lost:
        acknowledge = kind.acknowledge
        lost.setattr(kind, "acknowledge", lambda *given: pc.invert(acknowledge(*given)))
        assert attempt(url, queue, location, 0, "4s") == [body]
    assert attempt(url, other, location, 1) == [body]


def test_a_first_delivery_is_not_taken_for_a_redelivery(
    rabbitmq_server: RabbitServer, queue: str, location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An acknowledge whose answer was lost, and then the same bytes once more, beside a redelivery."""
    url = rabbitmq_server.url
    publish(url, queue, [b"ping"])
    with monkeypatch.context() as lost:
        acknowledge = RabbitBinding.acknowledge
        lost.setattr(RabbitBinding, "acknowledge", lambda *given: pc.invert(acknowledge(*given)))
        assert attempt(url, queue, location, 0, None) == [b"ping"]
    publish(url, queue, [b"other"])
    with read_options({"url": url, "queue": queue}).binding() as binding:
        binding.release(queue, take(binding, queue, 1))
    publish(url, queue, [b"ping"])
    assert attempt(url, queue, location, 0, None, batch=2) == [b"other", b"ping"]


def test_a_segment_that_is_not_there_is_never_an_empty_one(
    url: str, queue: str, location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that says "taken" while the other attempt's file is still on its way."""
    publish(url, queue, [envelope(1)])
    monkeypatch.setattr(Segment, "write", lambda *_: False)
    with pytest.raises(JournalError, match="cannot be read yet"):
        attempt(url, queue, location, 0)
    assert backlog(url, queue) == 1
    assert not list(Path(location).glob("batches/*/*.ack"))


def attempt_on_another_host(url: str, queue: str, folder: Path) -> list[bytes]:
    """What an attempt yields where the journal's path leads into another folder."""
    os.chdir(folder)
    options = read_options({"url": url, "queue": queue})
    journal = Journal(HERE)
    claim = Claim((folder / "id").read_text(), 1, 0, [Share(queue, 500, 1 << 20)], 1 << 20, committed=0)
    with options.binding() as binding:
        return [
            body for _, batch in deliveries_of(claim, options, journal, binding) for body in batch["body"]
        ]


@pytest.mark.parametrize("there", ["nothing", "another journal"])
def test_an_executor_without_the_journals_mount_claims_nothing(
    url: str, queue: str, tmp_path: Path, there: str
) -> None:
    """One path, which leads to other storage on each host: here, into the folder a process works in."""
    publish(url, queue, (envelope(n) for n in range(10)))
    drivers, executors = Journal(str(tmp_path / "driver/journal")), tmp_path / "executor"
    executors.mkdir()
    (executors / "id").write_text(drivers.id)
    if there == "another journal":
        _ = Journal(str(executors / "journal")).id
    before = sorted(executors.rglob("*"))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        attempted = pool.submit(attempt_on_another_host, url, queue, executors)
        with pytest.raises(JournalMissingError, match="mount it on each host"):
            attempted.result()
    assert backlog(url, queue) == 10
    assert sorted(executors.rglob("*")) == before


@pytest.mark.parametrize("stalls_in", ["claim", "write"])
def test_a_claim_that_lapsed_while_its_task_stalled_drops_no_later_message(
    url: str, queue: str, location: str, monkeypatch: pytest.MonkeyPatch, stalls_in: str
) -> None:
    """Another task takes the redelivery; the same bytes, sent later, are a new message."""
    body = envelope(1)
    publish(url, queue, [body])
    kind = type(read_options({"url": url, "queue": queue}).binding())
    stalled, name = (kind, "claim") if stalls_in == "claim" else (Segment, "write")
    verb = getattr(stalled, name)
    others: list[bytes] = []

    def stall(*given: Any) -> Any:
        monkeypatch.setattr(stalled, name, verb)
        if stalls_in == "write":
            others.extend(redelivered())
            return verb(*given)
        claimed = verb(*given)
        others.extend(redelivered())
        return claimed

    def redelivered() -> list[bytes]:
        eventually(lambda: backlog(url, queue, visibilityTimeout="2s"))
        return hasty_attempt(url, queue, location, 1)

    monkeypatch.setattr(stalled, name, stall)
    if stalls_in == "write":
        with pytest.raises(JournalError, match=r"did not write batches/0000000001/00000\.arrow in time"):
            attempt(url, queue, location, 0, "2s")
    assert hasty_attempt(url, queue, location, 0) == []
    assert others == [body]
    publish(url, queue, [body])
    assert attempt(url, queue, location, 0, batch=2) == [body]


class Leisurely(SqlBinding):
    """Claims ten messages at a time, each time for two seconds of a clock of its own."""

    capabilities = replace(SqlBinding.capabilities, claim_batch=10)
    seconds = 0.0

    def claim(self, queue: str, messages: int, max_bytes: int) -> pa.RecordBatch:
        self.seconds += 2
        return super().claim(queue, messages, max_bytes)


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ({"maxFetchTime": "3s"}, 20),
        ({"maxFetchTime": "1h", "visibilityTimeout": "8s"}, 20),
        ({"maxFetchTime": "1h", "visibilityTimeout": "3h"}, 100),
    ],
)
def test_a_claim_ends_after_the_fetch_time_or_half_of_its_lease(
    tmp_path: Path,
    queue: str,
    location: str,
    monkeypatch: pytest.MonkeyPatch,
    bounds: dict[str, str],
    expected: int,
) -> None:
    url = f"sqlite:///{tmp_path}/queue.db"
    publish(url, queue, (envelope(n) for n in range(100)))
    options = read_options({"url": url, "queue": queue, **bounds})
    journal = Journal(location)
    journal.record_plan(1, {})
    claim = Claim(journal.id, 1, 0, [Share(queue, 500, 1 << 20)], 1 << 20, committed=0)
    with Leisurely(BindingConfig(url=url, visibility_timeout=options.visibility_timeout)) as binding:
        started = time.monotonic()
        clock = SimpleNamespace(time=time.time, monotonic=lambda: started + binding.seconds)
        monkeypatch.setattr("babelqueue_spark.connector.source.claiming.time", clock)
        batches = deliveries_of(claim, options, journal, binding)
    assert sum(batch.num_rows for _, batch in batches) == expected
    assert backlog(url, queue) == 100 - expected
