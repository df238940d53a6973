"""The worker: a function for foreachBatch that hands messages to handlers, and settles each of them."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from typing import Any, TypeVar, get_args

from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import DataType, StructType

from babelqueue_spark.envelope import SCHEMA_VERSION
from babelqueue_spark.envelope.columns import BLANKS
from babelqueue_spark.errors import OptionError
from babelqueue_spark.functions import decode
from babelqueue_spark.journal import open_store
from babelqueue_spark.options import write_options
from babelqueue_spark.rows.reading import SCHEMA
from babelqueue_spark.worker.backoff import Backoff
from babelqueue_spark.worker.counts import Counts
from babelqueue_spark.worker.handling import Task, Work, admit, handle, settle
from babelqueue_spark.worker.idempotency import IdempotencyStore
from babelqueue_spark.worker.ledger import Entry, Ledger, fingerprint
from babelqueue_spark.worker.messages import HandlerTimeoutError
from babelqueue_spark.worker.outcomes import Failure, Policy, UnknownUrn
from babelqueue_spark.worker.routes import FrameHandler, MessageHandler, Routes
from babelqueue_spark.worker.rows import VERSION_HEADERS
from babelqueue_spark.worker.timeouts import StuckHandlerError, with_jobs_cancelled_after

Handler = TypeVar("Handler", bound=Callable[..., Any])

_INPUT = [
    "body",
    "queue",
    "headers",
    "attempts",
    "job",
    "trace_id",
    "meta.id AS id",
    "delivery.key AS key",
    "error",
]
_NEEDED = ("body", "queue", "headers", "attempts", "job", "trace_id", "data", "meta", "delivery", "error")
_STOPPED = (
    *("SPARK_JOB_CANCELLED", "SparkContext was shut down", "stopped SparkContext"),
    *("OPERATION_CANCELED", "INVALID_HANDLE", "StatusCode.UNAVAILABLE"),  # over Spark Connect
)
_COUNTS = "job STRING, outcome STRING, reason STRING, messages BIGINT"


class Worker:
    """Messages to handlers, and whatever becomes of them to where it belongs.

        worker = Worker({"url": "redis://localhost:6379/0"}, journal="/mnt/streams/orders/worker")

        @worker.handler("urn:babel:orders:created")
        def charge(message): ...

        orders.writeStream.foreachBatch(worker).option("checkpointLocation", ...).start()

    Args:
        options: of the connector's writes, by name: where retries, dead letters and what handlers return
            are published.
        journal: a directory or fsspec URL that driver and executors share, for this worker alone.
        checkpoint: the `checkpointLocation` of the query, for Spark Connect, which does not tell a function
            of foreachBatch whose batches it gets: its id is read there.
        max_attempts: deliveries of a failing message before it becomes a dead letter, the first included.
        backoff: seconds before the first, second, … retry, the last for all that follow; or a `Backoff`.
        unknown_urn: what becomes of a message that no handler is for: `fail` (as if one had raised),
            `delete`, `release` (back into its queue, not counted), `dead_letter`.
        release_delay: seconds before a released message can be read again.
        handler_timeout: seconds that a message handler has for a message; None = for ever.
        frame_timeout: seconds that a DataFrame handler has for a batch; None = for ever.
        idempotency: where to remember what was handled; None = messages are handled as often as they come.
        on_batch: called on the driver after each batch, with its number and its `Counts`.
        exchange: a directory that driver and executors share, for a JSON line about each message that is
            taken or published; None = no lines. They hold whole bodies.
    """

    def __init__(
        self,
        options: Mapping[str, str],
        *,
        journal: str,
        checkpoint: str | None = None,
        max_attempts: int = 3,
        backoff: Sequence[float] | Backoff = (0.0,),
        unknown_urn: UnknownUrn = "fail",
        release_delay: float = 5.0,
        handler_timeout: float | None = None,
        frame_timeout: float | None = None,
        idempotency: IdempotencyStore | None = None,
        on_batch: Callable[[int, Counts], None] | None = None,
        exchange: str | None = None,
    ) -> None:
        self._given = dict(options)
        self._options = write_options(options)
        self._journal = journal
        self._checkpoint = checkpoint
        self._policy = _checked(
            Policy(
                max_attempts=max_attempts,
                backoff=backoff if isinstance(backoff, Backoff) else tuple(backoff),
                unknown_urn=unknown_urn,
                release_delay=release_delay,
            )
        )
        self._handler_timeout = _timeout("handler_timeout", handler_timeout, idempotency)
        self._frame_timeout = _timeout("frame_timeout", frame_timeout, idempotency)
        self._idempotency = idempotency
        self._on_batch = on_batch
        self._exchange = exchange
        self._routes = Routes()
        self._probed = False
        self.counts = Counts()
        """What this object did so far."""

    # -- handlers ----------------------------------------------------------------------------------

    def handler(
        self,
        pattern: str,
        *,
        partition_setup: Callable[[], AbstractContextManager[Any]] | None = None,
    ) -> Callable[[Handler], Handler]:
        """Decorate a function that handles one `Message` at a time, on the executors.

        It returns nothing, an `Outgoing`, or several; or it raises.

        Args:
            pattern: a URN, in which `*` stands for any text. An exact one comes first, then the one with most
                characters besides `*`.
            partition_setup: gives a context manager, such as a connection, for the messages of a partition;
                what it yields is the handler's second argument.
        """

        def added(run: Handler) -> Handler:
            self._routes.add(MessageHandler(pattern, run, partition_setup))
            return run

        return added

    def frame_handler(
        self, pattern: str, *, data_schema: DataType | str | None = None
    ) -> Callable[[Handler], Handler]:
        """Decorate a function that handles the rows of a batch as a DataFrame, on the driver.

        It takes the DataFrame, with the columns of a read, and the number of the batch; it may return a
        DataFrame with the columns of a write, which is published. When it raises, all its messages failed.

        Args:
            pattern: a URN, in which `*` stands for any text; see `handler`.
            data_schema: type of `data`, such as `order_id BIGINT, amount DECIMAL(10,2)`; by default it is
                JSON text.
        """

        def added(run: Handler) -> Handler:
            self._routes.add(FrameHandler(pattern, run, data_schema))
            return run

        return added

    # -- batches -----------------------------------------------------------------------------------

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Handle a micro-batch: the function for foreachBatch.

        `frame` has the columns of a read, `data` as text. A batch that is repeated after a crash goes on
        where its partitions have the same rows: give the worker the batch itself, filtered perhaps, but
        not shuffled.
        """
        work = self._work(_query_id(frame.sparkSession, self._checkpoint), batch_id)
        work.ledger().begin()
        self._finish(batch_id, self._handled(frame, work))

    def run(self, frame: DataFrame) -> Counts:
        """Handle the rows of a DataFrame that is no stream, once; what it did.

        They are taken from no queue: a batch read of the connector only looks into one.
        """
        work = self._work(uuid.uuid4().hex, 0)
        work.ledger().begin()
        try:
            counts = self._handled(frame, work)
        finally:
            work.ledger().end()
        self._finish(0, counts)
        return counts

    def summary(self, spark: SparkSession) -> DataFrame:
        """What this object did so far: job, outcome, reason, messages."""
        return spark.createDataFrame(self.counts.rows(), _COUNTS)

    def _work(self, run: str, batch: int) -> Work:
        if not self._probed:
            Ledger(self._journal, run, batch).probe()
            self._check_retries()
            self._probed = True
        return Work(
            options=self._options,
            routes=self._routes,
            policy=self._policy,
            timeout=self._handler_timeout,
            store=self._idempotency,
            location=self._journal,
            run=run,
            batch=batch,
            exchange=self._exchange,
        )

    def _check_retries(self) -> None:
        """Where a queue's retries cannot be, that is said before any handler has run."""
        if self._policy.publishes_again or self._idempotency is not None:
            with self._options.binding() as binding:
                binding.retry_delay(",".join(self._options.queue) or "*", 0, 0)

    def _handled(self, frame: DataFrame, work: Work) -> Counts:
        _check_columns(frame.schema)
        counts = Counts()
        if not self._routes.frame_handlers():
            counts.add(_run(frame, handle(work)))
            return counts
        frame = frame.persist()
        try:
            left = F.lit(True)
            for handler, urns in self._frames(frame):
                its = _acceptable() & F.col("job").isin(urns)
                counts.add(self._handled_as_frame(handler, frame.where(its), work))
                left &= ~its
            counts.add(_run(frame.where(left), handle(work)))
        finally:
            frame.unpersist()
        return counts

    def _frames(self, frame: DataFrame) -> list[tuple[FrameHandler, list[str]]]:
        """The DataFrame handlers that have rows, with the URNs of them."""
        urns = [row.job for row in frame.where(_acceptable()).select("job").distinct().collect()]
        found = [
            (handler, [urn for urn in urns if self._routes.of(urn) is handler])
            for handler in self._routes.frame_handlers()
        ]
        return [(handler, its) for handler, its in found if its]

    def _handled_as_frame(self, handler: FrameHandler, frame: DataFrame, work: Work) -> list[Any]:
        name = f"frame-{fingerprint([handler.pattern.encode()])}"
        outcome = work.ledger().read(f"{name}-outcome")
        if outcome is None:
            # Cut off from its plan, so that the handler may join or coalesce what was admitted.
            admitted = frame if work.store is None else _admitted(frame, admit(work, name)).localCheckpoint()
            failure = self._outcome(handler, admitted, work)
            notes = {"failure": None if failure is None else asdict(failure)}
            outcome = work.ledger().write(f"{name}-outcome", Entry(notes))
        noted = outcome.notes["failure"]
        return _run(frame, settle(work, name, None if noted is None else Failure(**noted)))

    def _outcome(self, handler: FrameHandler, frame: DataFrame, work: Work) -> Failure | None:
        """Run a handler once; what it raised."""
        try:
            with_jobs_cancelled_after(
                self._frame_timeout, frame.sparkSession, lambda: self._run_on_driver(handler, frame, work)
            )
        except StuckHandlerError:
            raise
        except (Exception, SystemExit, HandlerTimeoutError) as error:
            if _was_stopped(error):
                raise
            return Failure.of(error)
        return None

    def _run_on_driver(self, handler: FrameHandler, frame: DataFrame, work: Work) -> None:
        if handler.data_schema is not None:
            typed = decode("body", handler.data_schema, allow_empty_list_data=True)["data"]
            frame = frame.withColumn("data", typed)
        returned = handler.run(frame, work.batch)
        if isinstance(returned, DataFrame):
            own = {**self._given, "txnAppId": work.run, "txnVersion": str(work.batch)}
            returned.write.format("babelqueue").options(**own).mode("append").save()
        elif returned is not None:
            raise TypeError(
                f"a DataFrame handler returns nothing or a DataFrame, not a {type(returned).__name__}"
            )

    def _finish(self, batch: int, counts: Counts) -> None:
        self.counts.by += counts.by
        if self._on_batch is not None:
            self._on_batch(batch, counts)


def _query_id(spark: Any, checkpoint: str | None) -> str:
    if isinstance(spark, SparkSession):
        query: str | None = spark.sparkContext.getLocalProperty("sql.streaming.queryId")
        if query is None:
            raise OptionError("a worker is called by foreachBatch: for a DataFrame by itself, use run(frame)")
        return query
    if checkpoint is None:
        raise OptionError(
            "Spark Connect does not tell a worker whose batches it gets: give it checkpoint=, the "
            "checkpointLocation of its query"
        )
    metadata = open_store(checkpoint, "checkpoint").read("metadata")
    try:
        return str(json.loads(metadata or "")["id"])
    except (ValueError, KeyError):
        raise OptionError(
            "the worker's checkpoint is not its query's, or out of reach of the server's Python: there is no "
            "query's id in its file 'metadata'"
        ) from None


def _acceptable() -> Column:
    """As `Rows.is_acceptable`."""
    wanted = F.col("error").isNull()
    for name in VERSION_HEADERS:
        value = F.col("headers")[name]
        gated = value.rlike(f"[^{BLANKS}]") & (value != str(SCHEMA_VERSION))
        wanted &= ~F.coalesce(gated, F.lit(False))
    return wanted


def _was_stopped(error: BaseException) -> bool:
    """Whether the query or Spark itself was stopped under a handler, which is no failure of its messages."""
    return isinstance(error, Py4JNetworkError) or any(words in str(error) for words in _STOPPED)


def _run(frame: DataFrame, task: Task) -> list[Any]:
    return frame.selectExpr(*_INPUT).mapInArrow(task, _COUNTS).collect()


def _admitted(frame: DataFrame, task: Task) -> DataFrame:
    rows = frame.select(F.struct("*").alias("row"), *map(F.expr, _INPUT))
    return rows.mapInArrow(task, rows.schema).select("row.*")


def _check_columns(schema: StructType) -> None:
    names = {field.name: field.dataType for field in schema}
    missing = [name for name in _NEEDED if names.get(name) != SCHEMA[name].dataType]
    if missing:
        raise OptionError(
            f"a worker needs the columns of a read as they are, but {', '.join(missing)} is missing or of "
            "another type: leave .schema(...) out, and give a DataFrame handler its data_schema"
        )


def _checked(policy: Policy) -> Policy:
    if policy.max_attempts < 1:
        raise OptionError(f"max_attempts is {policy.max_attempts}, but takes a whole number of at least 1")
    if policy.unknown_urn not in get_args(UnknownUrn):
        known = ", ".join(get_args(UnknownUrn))
        raise OptionError(f"unknown_urn is '{policy.unknown_urn}', but takes one of {known}")
    if not isinstance(policy.backoff, Backoff) and any(seconds < 0 for seconds in policy.backoff):
        raise OptionError(f"backoff is {list(policy.backoff)}, but takes seconds, 0 or more")
    if policy.release_delay < 1:
        raise OptionError(
            f"release_delay is {policy.release_delay}, but takes at least 1 s: else it spins hot"
        )
    return policy


def _timeout(name: str, seconds: float | None, store: IdempotencyStore | None) -> float | None:
    if seconds is None:
        return None
    if seconds <= 0:
        raise OptionError(f"{name} is {seconds:g}, but takes seconds, more than 0; None = for ever")
    if store is not None and seconds > store.lease / 2:
        raise OptionError(
            f"{name} is {seconds:g} s, but the store's lease is {store.lease:g} s: make it twice as long, or "
            "another worker may handle what this one is at"
        )
    return seconds
