"""A task publishes its rows in chunks: the next one is encoded while the last is on its way to the broker."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from babelqueue_spark.connector.options import Options, write_options
from babelqueue_spark.connector.rows.ids import IdSource
from babelqueue_spark.connector.sink import writer
from babelqueue_spark.errors import BabelQueueError, BrokerError
from tests.streams import backlog

CHUNKS = 3
WAIT = 20


@pytest.fixture
def options(url: str, queue: str) -> Options:
    return write_options({"url": url, "queue": queue})


@pytest.fixture
def size(options: Options) -> int:
    return options.binding().capabilities.publish_batch


def rows(first: int, count: int) -> pa.RecordBatch:
    data = [f'{{"n":{number}}}' for number in range(first, first + count)]
    return pa.record_batch({"job": pa.repeat(pa.scalar("urn:x"), count), "data": data})


def published(options: Options) -> list[int]:
    with options.binding() as binding:
        bodies = [body for batch in binding.browse(options.queue[0]) for body in batch["body"].to_pylist()]
    return [json.loads(body)["data"]["n"] for body in bodies]


def publish(batches: Iterator[pa.RecordBatch], options: Options) -> int:
    return writer._publish(batches, IdSource("query 7 0"), options)


def test_the_next_chunk_is_encoded_while_the_last_is_on_its_way(
    options: Options, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded = threading.Semaphore(0)
    kind: Any = type(options.binding())
    to_messages, send = writer.to_messages, kind.publish
    sent = 0

    def encode(*given: Any, **named: Any) -> Any:
        messages = to_messages(*given, **named)
        encoded.release()
        return messages

    def wait_and_send(*given: Any, **named: Any) -> int:
        nonlocal sent
        sent += 1
        wanted = 2 if sent == 1 else 1 if sent < CHUNKS else 0
        assert all(encoded.acquire(timeout=WAIT) for _ in range(wanted)), "the next chunk was not encoded"
        return int(send(*given, **named))

    monkeypatch.setattr(writer, "to_messages", encode)
    monkeypatch.setattr(kind, "publish", wait_and_send)
    assert publish(iter([rows(0, CHUNKS * size)]), options) == CHUNKS * size
    assert sent == CHUNKS
    assert published(options) == list(range(CHUNKS * size))


def test_nothing_is_published_after_a_refusal(
    options: Options, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind: Any = type(options.binding())
    send, tried = kind.publish, []

    def refuse_the_second(*given: Any, **named: Any) -> int:
        tried.append(named["idempotency_key"])
        if len(tried) == 2:
            raise BrokerError("it refused the chunk")
        return int(send(*given, **named))

    with monkeypatch.context() as refusing:
        refusing.setattr(kind, "publish", refuse_the_second)
        with pytest.raises(BrokerError, match="it refused the chunk"):
            publish(iter([rows(0, 4 * size)]), options)
    assert len(tried) == 2
    assert published(options) == list(range(size))
    assert publish(iter([rows(0, 4 * size)]), options) == 3 * size  # the repeated task
    assert published(options) == list(range(4 * size))


@pytest.mark.parametrize("fault", ["in a row", "of the input"])
def test_what_was_on_its_way_arrives_when_the_next_chunk_fails(
    options: Options, url: str, queue: str, size: int, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    kind: Any = type(options.binding())
    send, asked = kind.publish, threading.Event()

    def wait_and_send(*given: Any, **named: Any) -> int:
        assert asked.wait(WAIT), "no more rows were asked for"
        return int(send(*given, **named))

    def batches() -> Iterator[pa.RecordBatch]:
        yield rows(0, size)
        asked.set()
        if fault == "of the input":
            raise BabelQueueError("no more rows")
        yield pa.record_batch({"job": ["urn:x"] * size, "data": ["{}"] * (size - 1) + ["[]"]})

    monkeypatch.setattr(kind, "publish", wait_and_send)
    with pytest.raises(BabelQueueError):
        publish(batches(), options)
    assert backlog(url, queue) == size
