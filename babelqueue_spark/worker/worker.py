"""The worker: a function for foreachBatch that calls handlers and decides the outcome of each message."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import DataType

from babelqueue_spark.connector.options import journal_config, resolved_config, write_options
from babelqueue_spark.errors import OptionError
from babelqueue_spark.functions import decode
from babelqueue_spark.packages import require
from babelqueue_spark.schemas.registry import Registry, registry_of
from babelqueue_spark.tracing.setting import Source, Tracing
from babelqueue_spark.worker import frames, observers
from babelqueue_spark.worker.counts import Counts
from babelqueue_spark.worker.decisions import DecisionLog, LogEntry, fingerprint
from babelqueue_spark.worker.events import log_unhandled
from babelqueue_spark.worker.handlers.limits import Circuit, Limits, OrderedBy
from babelqueue_spark.worker.handlers.responder import Responder
from babelqueue_spark.worker.handlers.routes import (
    DataFrameHandler,
    MessageHandler,
    PartitionSetup,
    Routes,
    Subscriber,
    check_pattern,
    check_plain,
)
from babelqueue_spark.worker.handlers.timeouts import (
    StuckHandlerError,
    checked_timeout,
    with_jobs_cancelled_after,
)
from babelqueue_spark.worker.handling import Work, admit, handle, settle
from babelqueue_spark.worker.outcomes import Failure, Policy
from babelqueue_spark.worker.publishing import Publishing
from babelqueue_spark.worker.query import check_idle_timeout, query_id
from babelqueue_spark.worker.stores.idempotency import IdempotencyStore

if TYPE_CHECKING:
    from babelqueue_spark.tracing.spans import Batch

Handler = TypeVar("Handler", bound=Callable[..., Any])
T = TypeVar("T")

_STOPPED = (
    *("SPARK_JOB_CANCELLED", "SparkContext was shut down", "stopped SparkContext"),
    *("OPERATION_CANCELED", "INVALID_HANDLE", "StatusCode.UNAVAILABLE"),  # over Spark Connect
)


class Worker:
    """Calls handlers with messages, and decides the outcome: acknowledge, retry, release, drop, dead-letter.

        worker = Worker({"url": "redis://localhost:6379/0"}, state="/mnt/streams/orders/worker")

        @worker.handler("urn:babel:orders:created")
        def charge(message): ...

        orders.writeStream.foreachBatch(worker).option("checkpointLocation", ...).start()

    Args:
        options: of the connector's writes, by name: where to publish retries, dead letters and what handlers
            return; and `journal.<name>` for the object store of `state`.
        state: a directory or object store that driver and executors share, for this worker alone.
        checkpoint: the `checkpointLocation` of the query, needed over Spark Connect only: the query's id is
            read there.
        policy: of retries, releases, and messages without a handler.
        publishing: of what handlers and subscribers return.
        handler_timeout: seconds that a message handler has for a message; None = no limit.
        idempotency: where to remember handled messages; None = a message is handled as often as it comes.
        catalog: a `Catalog`, or where its `registry.json` is: a message whose payload violates the schema of
            its URN becomes a dead letter, and no handler gets it. Sensitive fields are `***` in the message
            log (option `messageLog`).
        on_batch: called on the driver after each batch, with its number and its `Counts`.
        tracing: a function that returns a `TracerProvider` of OpenTelemetry, called once in each process of
            Python; or its name, as `module:function`; or `environment`; None = what the option `tracing`
            says, else no spans.

    Raises:
        OptionError: an option or argument is invalid.
        MissingPackageError: a package is missing that they need.
    """

    def __init__(
        self,
        options: Mapping[str, str],
        *,
        state: str,
        checkpoint: str | None = None,
        policy: Policy = Policy(),
        publishing: Publishing = Publishing(),
        handler_timeout: float | None = None,
        idempotency: IdempotencyStore | None = None,
        catalog: Registry | str | None = None,
        on_batch: Callable[[int, Counts], None] | None = None,
        tracing: Source | None = None,
    ) -> None:
        require("a worker", "pandas")  # PySpark's mapInArrow checks for it
        self._journal_config = journal_config(options)
        self._given = {name: options[name] for name in options if not name.lower().startswith("journal.")}
        self._options = write_options(self._given)
        self._state = state
        self._checkpoint = checkpoint
        self._policy = _instance_of(Policy, "policy", policy)
        self._publishing = _instance_of(Publishing, "publishing", publishing)
        publishing.check_queues(self._options)
        self._handler_timeout = checked_timeout("handler_timeout", handler_timeout, idempotency)
        self._idempotency = idempotency
        self._catalog = None if catalog is None else registry_of(catalog)
        self._on_batch = on_batch
        if self._catalog is not None and self._options.message_log:
            self._catalog.sensitive_fields()
        self._tracing = self._options.tracing if tracing is None else Tracing.of(tracing)
        self._routes = Routes()
        self._probed = self._told_unhandled = False
        self.counts = Counts()
        """Count what this object did so far."""

    # -- handlers ----------------------------------------------------------------------------------

    def handler(
        self,
        pattern: str,
        *,
        partition_setup: PartitionSetup | None = None,
        concurrency: int = 1,
        ordered_by: OrderedBy | None = None,
        rate_limit: str | None = None,
        circuit: Circuit | None = None,
    ) -> Callable[[Handler], Handler]:
        """Decorate a function, plain or async, that handles a `Message`, on the executors.

        It returns nothing, an `Outgoing` or a `Cancel`, or several; or it raises.

        Args:
            pattern: a URN, in which `*` stands for any text. An exact one comes first, then the one with most
                characters besides `*`.
            partition_setup: gives a context manager, plain or async, such as a connection, for the messages
                of a partition; what it yields is the handler's second argument.
            concurrency: how many calls, of all handlers together, may be under way in a task while it is
                called: plain functions in threads, async ones on an event loop. 1 = it is called alone.
            ordered_by: `key`, or a function of the message: messages of the same key, or value, are handled
                one after the other, in the order in which they were read.
            rate_limit: how often each task calls it, such as `100/s`, `30/m` or `5/h`; or how often all tasks
                of a batch do, such as `100/s total`.
            circuit: releases messages for a while after many calls in a row have failed.

        Raises:
            OptionError: one of them is invalid.
        """
        limits = Limits.of(concurrency, ordered_by, rate_limit, circuit)

        def added(run: Handler) -> Handler:
            check_pattern(pattern)
            self._routes.add(MessageHandler(pattern, run, limits, partition_setup))
            return run

        return added

    def subscriber(self, pattern: str, *, concurrency: int = 1) -> Callable[[Handler], Handler]:
        """Decorate a function, plain or async, that hears of each `Message` that was handled.

        All subscribers whose pattern matches run, after the handler has returned, or where there is none. One
        returns nothing, an `Outgoing`, or several. One that raises touches neither the others nor the
        message: a message `urn:babel:worker:execution_failed` goes to the `failure_queue`.

        Args:
            pattern: a URN, in which `*` stands for any text.
            concurrency: as of `handler`; a plain function with 1 is called while no other subscriber is.

        Raises:
            OptionError: the worker has no `failure_queue`.
        """
        limits = Limits(concurrency)

        def added(run: Handler) -> Handler:
            check_pattern(pattern, "subscriber")
            if self._publishing.failure_queue is None:
                raise OptionError(
                    "a worker with subscribers needs a queue for what they raise: Publishing(failure_queue=…)"
                )
            self._routes.subscribe(Subscriber(pattern, run, limits))
            return run

        return added

    def responder(
        self,
        pattern: str,
        *,
        partition_setup: PartitionSetup | None = None,
        concurrency: int = 1,
        ordered_by: OrderedBy | None = None,
        rate_limit: str | None = None,
        circuit: Circuit | None = None,
    ) -> Callable[[Handler], Handler]:
        """Decorate a function, plain or async, that answers a request, a `Message`, on the executors.

        It returns the data of the reply, a mapping, or an `Outgoing` without a queue. The reply goes to the
        queue that the request names (see `Message.reply_to`), with the URN of the request and `:reply`, or
        that of the `Outgoing`. Where the function raises, the reply is
        `urn:babel:worker:request_failed`, and the request is done; only a `Retry` is retried. A request that
        names no queue is dead-lettered, with the reason `no_reply_to`.

        Args:
            pattern: a URN, in which `*` stands for any text; see `handler`.
            partition_setup, concurrency, ordered_by, rate_limit, circuit: as of `handler`.
        """
        limits = Limits.of(concurrency, ordered_by, rate_limit, circuit)

        def added(run: Handler) -> Handler:
            check_pattern(pattern, "responder")
            responder = Responder(self._options)
            self._routes.add(MessageHandler(pattern, run, limits, partition_setup, responder))
            return run

        return added

    def dataframe_handler(
        self, pattern: str, *, data_schema: DataType | str | None = None, timeout: float | None = None
    ) -> Callable[[Handler], Handler]:
        """Decorate a function that handles the rows of a batch as a DataFrame, on the driver.

        It takes the DataFrame, with the columns of a read, and the number of the batch; it may return a
        DataFrame with the columns of a write, which is published. When it raises, all its messages failed.

        Args:
            pattern: a URN, in which `*` stands for any text; see `handler`.
            data_schema: type of `data`, such as `order_id BIGINT, amount DECIMAL(10,2)`; by default it is
                JSON text.
            timeout: seconds that it has for a batch; None = no limit.

        Raises:
            OptionError: one of them is invalid, or the worker's message log would not know the catalog.
        """
        checked_timeout("timeout", timeout, self._idempotency)
        if self._options.message_log and self._catalog is not None and self._options.catalog is None:
            raise OptionError(
                "messageLog of a worker with catalog= would show what a DataFrame handler returns unmasked: "
                "give the catalog by the option 'catalog'"
            )

        def added(run: Handler) -> Handler:
            check_pattern(pattern)
            check_plain(pattern, run)
            self._routes.add(DataFrameHandler(pattern, run, data_schema, timeout))
            return run

        return added

    # -- batches -----------------------------------------------------------------------------------

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Handle a micro-batch: the function for foreachBatch.

        `frame` has the columns of a read, `data` as text. It may be filtered, but not shuffled: a batch that
        is repeated after a crash finds its decisions by the rows of each partition.
        """
        run = query_id(frame.sparkSession, self._checkpoint, self._journal_config)
        with self._batch_span(run, batch_id) as span:
            work = self._work(run, batch_id, span)
            work.decisions().begin()
            counts = self._handled(frame, work, span)
        self._finish(batch_id, counts)

    def run(self, frame: DataFrame) -> Counts:
        """Handle the rows of a DataFrame that is no stream, once; returns the counters.

        Nothing is removed from a queue: a batch read of the connector only browses one.
        """
        run = uuid.uuid4().hex
        with self._batch_span(run, 0) as span:
            work = self._work(run, 0, span)
            work.decisions().begin()
            try:
                counts = self._handled(frame, work, span)
            finally:
                work.decisions().end()
        self._finish(0, counts)
        return counts

    def summary(self, spark: SparkSession) -> DataFrame:
        """Make a DataFrame of the counters so far: job, outcome, reason, messages."""
        return spark.createDataFrame(self.counts.rows(), frames.COUNTS)

    def _batch_span(self, run: str, batch: int) -> AbstractContextManager[Batch | None]:
        if self._tracing is None:
            return nullcontext()
        return self._tracing.spans(self._options.broker).batch(run, batch)

    def _work(self, run: str, batch: int, span: Batch | None) -> Work:
        if not self._probed:
            DecisionLog(self._state, run, batch, resolved_config(self._journal_config)).probe()
            self._check_retries()
            self._probed = True
        return Work(
            options=self._options,
            routes=self._routes,
            policy=self._policy,
            publishing=self._publishing,
            timeout=self._handler_timeout,
            store=self._idempotency,
            location=self._state,
            run=run,
            batch=batch,
            catalog=self._catalog or self._options.catalog,
            journal_config=self._journal_config,
            tracing=self._tracing,
            batch_span=None if span is None else span.traceparent,
        )

    def _check_retries(self) -> None:
        """Raise, before any handler has run, where the broker cannot hold a queue's retries."""
        if self._policy.publishes_again or self._idempotency is not None:
            with self._options.binding() as binding:
                binding.retry_delay(",".join(self._options.queue) or "*", 0, 0)

    def _handled(self, frame: DataFrame, work: Work, span: Batch | None) -> Counts:
        returned = self._returned(frame, work)
        counts = Counts()
        counts.add(returned)
        if span is not None:
            span.count(counts.read)
            span.link(chain.from_iterable(row.links or () for row in returned))
        return counts

    def _returned(self, frame: DataFrame, work: Work) -> list[Any]:
        """Handle the rows; returns what all tasks returned."""
        check_idle_timeout(frame.sparkSession)
        frames.check_columns(frame.schema)
        frame = frames.judged(frame, self._catalog)
        if not self._routes.dataframe_handlers():
            return self._handled_message_by_message(frame, work)
        frame = frame.persist()
        returned: list[Any] = []
        try:
            left = F.lit(True)
            for handler, urns in self._dataframe_handlers(frame):
                its = frames.acceptable() & F.col("job").isin(urns)
                returned += self._handled_as_dataframe(handler, frame.where(its), work)
                left &= ~its
            returned += self._handled_message_by_message(frame.where(left), work)
        finally:
            frame.unpersist()
        return returned

    def _handled_message_by_message(self, frame: DataFrame, work: Work) -> list[Any]:
        rates = (limits.rate_limit for limits in self._routes.limits)
        tasks = frames.tasks(frame) if any(rate and rate.is_total for rate in rates) else None
        return frames.run(frame, handle(replace(work, tasks=tasks)))

    def _dataframe_handlers(self, frame: DataFrame) -> list[tuple[DataFrameHandler, list[str]]]:
        """Return the DataFrame handlers that have rows, with the URNs of them."""
        urns = [row.job for row in frame.where(frames.acceptable()).select("job").distinct().collect()]
        found = [
            (handler, [urn for urn in urns if self._routes.of(urn) is handler])
            for handler in self._routes.dataframe_handlers()
        ]
        return [(handler, its) for handler, its in found if its]

    def _handled_as_dataframe(self, handler: DataFrameHandler, frame: DataFrame, work: Work) -> list[Any]:
        name = f"frame-{fingerprint([handler.pattern.encode()])}"
        outcome = work.decisions().read(f"{name}-outcome")
        if outcome is None:
            # Cut off from its plan, so that the handler may join or coalesce what was admitted.
            admitted = (
                frame if work.store is None else frames.admitted(frame, admit(work, name)).localCheckpoint()
            )
            failure = self._outcome(handler, admitted, work)
            notes = {"failure": None if failure is None else asdict(failure)}
            outcome = work.decisions().write(f"{name}-outcome", LogEntry(notes))
        noted = outcome.notes["failure"]
        return frames.run(frame, settle(work, name, None if noted is None else Failure(**noted)))

    def _outcome(self, handler: DataFrameHandler, frame: DataFrame, work: Work) -> Failure | None:
        """Run a handler once; returns what it raised, if anything."""
        try:
            with self._handler_span(handler):
                with_jobs_cancelled_after(
                    handler.timeout,
                    frame.sparkSession,
                    lambda: self._run_on_driver(handler, frame, work),
                )
        except (StuckHandlerError, KeyboardInterrupt):
            raise
        except BaseException as error:
            if _was_stopped(error):
                raise
            return Failure.of(error)
        return None

    def _handler_span(self, handler: DataFrameHandler) -> AbstractContextManager[None]:
        if self._tracing is None:
            return nullcontext()
        return self._tracing.spans(self._options.broker).dataframe_handler(handler.pattern)

    def _run_on_driver(self, handler: DataFrameHandler, frame: DataFrame, work: Work) -> None:
        if handler.data_schema is not None:
            typed = self._typed(handler.data_schema)
            frame = frame.withColumn("data", typed)
        returned = handler.run(frame, work.batch)
        if isinstance(returned, DataFrame):
            own = {**self._given, "txnAppId": work.run, "txnVersion": str(work.batch)}
            if self._tracing is not None and isinstance(self._tracing.source, str):
                own["tracing"] = self._tracing.source
            returned.write.format("babelqueue").options(**own).mode("append").save()
        elif returned is not None:
            raise TypeError(
                f"a DataFrame handler returns nothing or a DataFrame, not a {type(returned).__name__}"
            )

    def _typed(self, schema: DataType | str) -> Column:
        if self._options.form.native:
            return F.from_json("data", schema)  # type: ignore[arg-type]  # Spark takes any type
        return decode("body", schema, allow_empty_list_data=True)["data"]

    def _finish(self, batch: int, counts: Counts) -> None:
        self.counts.include(counts)
        if not self._told_unhandled:
            patterns = [handler.pattern for handler in self._routes.ordered()]
            self._told_unhandled = log_unhandled(counts, patterns)
        observers.tell(counts)
        if self._on_batch is not None:
            self._on_batch(batch, counts)


def _instance_of(kind: type[T], name: str, given: object) -> T:
    """Return an argument of this class.

    Raises:
        OptionError: it is of another one.
    """
    if not isinstance(given, kind):
        raise OptionError(f"{name} takes a {kind.__name__}, not a {type(given).__name__}")
    return given


def _was_stopped(error: BaseException) -> bool:
    """Tell whether the query or Spark was stopped under a handler: its messages have not failed then."""
    # By name: PySpark's package for Connect alone has no py4j.
    return type(error).__name__ == "Py4JNetworkError" or any(words in str(error) for words in _STOPPED)
