"""What tests of bindings do again and again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from multiprocessing.connection import Connection
from threading import Barrier
from typing import Any

import pyarrow as pa

from babelqueue_spark.bindings import Binding, BindingConfig, batches
from babelqueue_spark.errors import BrokerUnreachableError

ENVELOPE = (
    b'{"job":"urn:babel:orders:created","trace_id":"5f0c1c0e-1d6b-4d52-9d4b-0b8a0c7f6d11","data":{"order_id":1},'
    b'"meta":{"id":"0e9d1f4a-6a53-4a8e-8a0b-3a1f9a7c2b10","queue":"orders","lang":"python","schema_version":1,'
    b'"created_at":1750000000000},"attempts":0}'
)
"""A body that every reader accepts."""
BEYOND_ALL_BOUNDS = ENVELOPE.replace(b"1750000000000", b"%d" % 2**62).replace(
    b'"attempts":0', b'"attempts":%d' % 2**62
)
"""A body whose time and count no column can hold."""
SECRET = "s3cret-w0rd"
PATIENCE = 30.0
MIB = 1 << 20
_LONGEST_START = 120.0
"""Seconds for a new process to do its work."""

Connect = Callable[..., Any]


def outgoing(
    bodies: Sequence[bytes],
    *,
    headers: Sequence[Mapping[str, str] | None] | None = None,
    keys: Sequence[str | None] | None = None,
    delays: Sequence[int | None] | None = None,
) -> pa.RecordBatch:
    """Return an `OUTGOING` batch; delays in milliseconds."""
    pairs = (
        None if headers is None else [None if header is None else list(header.items()) for header in headers]
    )
    return batches.outgoing(len(bodies), body=list(bodies), headers=pairs, key=keys, delay=delays)


def publish_all(binding: Binding, queue: str, bodies: Sequence[bytes]) -> None:
    """Publish in several batches, none larger than the broker takes."""
    size = min(1_000, binding.capabilities.publish_batch)
    for start in range(0, len(bodies), size):
        part = bodies[start : start + size]
        assert binding.publish(queue, outgoing(part)) == len(part)


def eventually(probe: Callable[[], Any], patience: float = PATIENCE) -> Any:
    """Return what `probe` returns, once that is true; fails when it takes too long."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        found = probe()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"not within {patience:.0f} seconds")


def unless_busy(step: Callable[[], Any], patience: float = PATIENCE) -> Any:
    """Return what a step returns; it is repeated while a busy machine makes its impatient client give up."""
    deadline = time.monotonic() + patience
    while True:
        try:
            return step()
        except BrokerUnreachableError:
            if time.monotonic() > deadline:
                raise


def claim_some(
    binding: Binding, queue: str, *, messages: int = 100, max_bytes: int = 64 * MIB
) -> pa.RecordBatch:
    """Claim once, repeated while it gives nothing."""

    def claim() -> pa.RecordBatch | None:
        batch = binding.claim(queue, min(messages, binding.capabilities.claim_batch), max_bytes)
        return batch if batch.num_rows else None

    return eventually(claim)


def take(binding: Binding, queue: str, count: int) -> pa.RecordBatch:
    """Claim as often as it takes to have `count` messages, as one batch."""
    claimed: list[pa.RecordBatch] = []
    while (missing := count - sum(batch.num_rows for batch in claimed)) > 0:
        claimed.append(claim_some(binding, queue, messages=missing))
    return joined(claimed)


def claim_until_empty(binding: Binding, queue: str, count: int = 0) -> list[bytes]:
    """Claim and acknowledge until a claim gives nothing, and `count` messages came; the bodies."""
    bodies: list[bytes] = []

    def claim() -> pa.RecordBatch:
        if len(bodies) < count:
            return claim_some(binding, queue, messages=20, max_bytes=MIB)
        return binding.claim(queue, min(20, binding.capabilities.claim_batch), MIB)

    while (batch := claim()).num_rows:
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
    """Assert that an error is one line, holds no secret, and has no cause that would show one."""
    assert str(error).strip()
    assert "\n" not in str(error)
    assert SECRET not in str(error)
    assert error.__cause__ is None
    assert error.__context__ is None or error.__suppress_context__


def joined(parts: Iterable[pa.RecordBatch]) -> pa.RecordBatch:
    """Join batches, or none, to one."""
    return pa.concat_batches([batches.deliveries(0), *parts])


def through_ipc(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch as it comes out of a file."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return pa.ipc.open_file(sink.getvalue()).get_batch(0)


# What runs in processes of its own.

Work = Callable[..., Any]


def in_processes(count: int, work: Work, *arguments: Any) -> list[Any]:
    """Return what `work` returns in each of `count` new processes, which begin it together."""
    context = get_context("spawn")
    barrier = context.Barrier(count)
    with ProcessPoolExecutor(count, context, initializer=_begin_together, initargs=(barrier,)) as pool:
        futures = [pool.submit(work, *arguments) for _ in range(count)]
        return [future.result(timeout=_LONGEST_START) for future in futures]


def _begin_together(barrier: Barrier) -> None:
    barrier.wait(timeout=_LONGEST_START)


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
    """Return the bodies that a process had claimed when it was killed."""
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_claim_and_wait, args=(binding_class, config, queue, count, theirs))
    process.start()
    try:
        assert ours.poll(_LONGEST_START)
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
