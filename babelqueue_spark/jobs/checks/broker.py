"""A broker: whether it can be reached, what the user may do, and whose clock is off."""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from babelqueue_spark.errors import BrokerUnreachableError
from babelqueue_spark.jobs.checks.findings import Finding, explained, failed, ok, reason_of, warning

if TYPE_CHECKING:
    from babelqueue_spark.bindings import BaseBinding, Binding

OWN_QUEUE = "babelqueue-doctor"
"""How the queues begin that a probe makes."""
_PROBE_SECONDS = 20.0
_IDLE_SECONDS = 60.0
_DRIVERS = {"psycopg": "postgresql", "pymysql": "mysql"}


def extra_of(url: str, broker: str | None = None) -> str:
    """Return the extra that brings the client for a URL (or a reference to one); empty where none does."""
    from babelqueue_spark.bindings import BINDINGS, broker_of
    from babelqueue_spark.secrets import resolve

    scheme = resolve(url, "url").partition("://")[0].lower()
    name = broker or broker_of(f"{scheme}://")
    if name == "sql":
        return _DRIVERS.get(scheme.partition("+")[2], "sql")
    return BINDINGS[name].extra if name in BINDINGS else ""


def findings(given: Mapping[str, str], probe: str | None = None) -> Iterator[Finding]:
    """Check the broker and queues of a read, without consuming or creating anything.

    A probe publishes a message to an empty queue, and takes it from there; '' stands for a queue of its own.
    """
    from babelqueue_spark.connector.options import read_options

    options = read_options(given)
    warnings = _Warnings()
    logger = logging.getLogger()  # clients log too, to standard error where nobody takes it
    logger.addHandler(warnings)
    try:
        with options.binding() as binding:
            good = True
            for queue in options.queue:
                found = _queue(binding, queue)
                good = good and found.status != "failed"
                yield found
            if good:
                yield from _clock(binding)
            if good and probe is not None:
                yield from explained("probe", _probe(binding, probe))
    finally:
        logger.removeHandler(warnings)
    yield from (warning("broker", text) for text in warnings.texts)


def _queue(binding: BaseBinding, queue: str) -> Finding:
    check = f"queue {queue}"
    try:
        binding.check_queue(queue)
        if missing := binding.missing(queue):
            return ok(
                check, f"{binding.title} answers; {missing} is not there: the first use creates it if it may"
            )
        ready = binding.backlog(queue)
        can = "its backlog can be asked for"
        if binding.capabilities.browse == "exact":
            next(iter(binding.browse(queue)), None)
            can += ", and it can be browsed"
        if not ready and (advice := binding.advice(queue)):
            return warning(check, f"{binding.title} answers: no messages, but {advice}")
        return ok(check, f"{binding.title} answers: {ready:,} messages; {can}")
    except BrokerUnreachableError:
        raise  # the next queue would say the same
    except Exception as error:  # noqa: BLE001 (the other queues are checked too)
        return failed(check, reason_of(error))


def _clock(binding: BaseBinding) -> Iterator[Finding]:
    from babelqueue_spark.bindings.clocks import LARGEST_SKEW

    ahead = binding.skew()
    if ahead is None:
        return
    text = f"this host's is {abs(ahead):.1f} s {'ahead of' if ahead > 0 else 'behind'} the server's"
    if abs(ahead) > LARGEST_SKEW:
        yield warning("clock", f"{text}: set both by NTP")
    else:
        yield ok("clock", text)


def _probe(binding: BaseBinding, named: str) -> Iterator[Finding]:
    from babelqueue_spark.bindings import Binding

    takes = isinstance(binding, Binding)
    if not takes and not named:
        yield failed(
            "probe", f"{binding.title} keeps what is published: name a queue of tests, --probe QUEUE"
        )
        return
    queue = named or f"{OWN_QUEUE}-{uuid.uuid4().hex[:12]}"
    if takes and named and (found := binding.backlog(queue)):
        yield failed("probe", f"queue '{queue}' has {found:,} messages: name an empty one")
        return
    if not named:
        binding.make_temporary(queue, _IDLE_SECONDS)
    body = _publish(binding, queue)
    if not isinstance(binding, Binding):
        yield ok("probe", f"a message was published to '{queue}'")
    elif _take(binding, queue, body):
        yield ok("probe", f"a message was published to '{queue}', claimed and acknowledged")
    else:
        yield failed(
            "probe",
            f"a message was published to '{queue}', and did not come back within {_PROBE_SECONDS:g} s, or "
            "not first: look for other readers and writers of the queue",
        )


def _publish(binding: BaseBinding, queue: str) -> bytes:
    """Publish a message; returns its body."""
    from babelqueue_spark.bindings.batches import outgoing

    envelope = {
        "job": "urn:babelqueue:doctor",
        "trace_id": str(uuid.uuid4()),
        "data": {},
        "meta": {
            "id": str(uuid.uuid4()),
            "queue": queue,
            "lang": "python",
            "schema_version": 1,
            "created_at": int(time.time() * 1000),
        },
        "attempts": 0,
    }
    body = json.dumps(envelope).encode()
    binding.publish(queue, outgoing(1, body=[body]))
    return body


def _take(binding: Binding, queue: str, body: bytes) -> bool:
    """Return whether the message comes first, and is acknowledged; one of somebody else is released."""
    deadline = time.monotonic() + _PROBE_SECONDS
    while time.monotonic() < deadline:
        claimed = binding.claim(queue, 1, 1 << 20)
        if claimed.num_rows and claimed.column("body")[0].as_py() != body:
            binding.release(queue, claimed)
            return False
        if claimed.num_rows:
            acknowledged: bool = binding.acknowledge(queue, claimed)[0].as_py()
            return acknowledged
        time.sleep(0.1)
    return False


class _Warnings(logging.Handler):
    """Takes what our bindings warn of, but for clocks, which have a line of their own."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.startswith("babelqueue_spark.") and not record.name.endswith(".clocks"):
            self.texts.append(" ".join(record.getMessage().split()))
