"""What messages pass before they are written: bind, validate, enrich."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from babelqueue_spark.errors import BabelQueueError, OptionError
from babelqueue_spark.exchange.routing import job_of, matching, text_of

Stage = Callable[[DataFrame], DataFrame]

REASON = "reason"
SOURCE = "_exchange_source"
"""A column with the name of the row that a copy was made of; null where there is none."""
_ROW, _JOB, _TRACE, _REASON = "_exchange_row", "_exchange_job", "_exchange_trace", "_exchange_reason"
_KEPT = (_ROW, _JOB, _TRACE, _REASON, SOURCE)


@dataclass(frozen=True)
class Stages:
    """Functions from DataFrame to DataFrame by URN pattern; each gets the rows whose URN matches.

    Where several patterns match, all run, in the order in which they are given, until a message has a reason.
    A function keeps all rows, and the columns that it does not know: it adds, replaces and drops columns by
    name.

    Args:
        bind: sets what the environment knows, and clears what a client may not set: `clears`.
        validate: adds a column `reason`, null where the message is valid. Messages with a reason become dead
            letters.
        enrich: completes valid messages.
    """

    bind: Mapping[str, Stage] = field(default_factory=dict)
    validate: Mapping[str, Stage] = field(default_factory=dict)
    enrich: Mapping[str, Stage] = field(default_factory=dict)

    @staticmethod
    def marked(frame: DataFrame) -> DataFrame:
        """Return the rows with columns of ours, by which `check` knows them again."""
        empty = F.lit(None).cast("string")
        marks = {
            _JOB: job_of(frame),
            _ROW: F.monotonically_increasing_id(),
            _REASON: text_of(frame, "error"),
            _TRACE: empty,
        }
        return frame.withColumns(marks if SOURCE in frame.columns else {**marks, SOURCE: empty})

    def run(self, marked: DataFrame, seed: str) -> DataFrame:
        """Take what `marked` returned through all stages; copies get the ids of their source behind bind.

        Raises:
            OptionError: a stage returned no DataFrame, or dropped columns that it must keep.
        """
        for pattern, stage in self.bind.items():
            marked = _through(marked, pattern, stage, "bind")
        marked = _with_ids(marked, seed)
        marked = marked.withColumn(_TRACE, text_of(marked, "trace_id"))
        for pattern, stage in self.validate.items():
            marked = _through(marked, pattern, _validating(stage, pattern), "validate")
        for pattern, stage in self.enrich.items():
            marked = _through(marked, pattern, stage, "enrich")
        return marked

    @staticmethod
    def check(frame: DataFrame, rows: int) -> None:
        """Raise `BabelQueueError` where stages changed `job`, `trace_id` or the number of rows.

        Args:
            frame: what `run` returned.
            rows: how many rows it was given.
        """
        found = frame.agg(
            F.count("*").alias("rows"),
            F.count_distinct(_ROW).alias("sources"),
            F.count_if(~job_of(frame).eqNullSafe(F.col(_JOB))).alias("jobs"),
            F.count_if(~text_of(frame, "trace_id").eqNullSafe(F.col(_TRACE))).alias("traces"),
        ).collect()[0]
        if found.rows != rows or found.sources != rows:
            raise BabelQueueError(
                f"stages were given {rows} messages and returned {found.rows}: a stage keeps each message, "
                "as one row"
            )
        if found.jobs or found.traces:
            what = "job" if found.jobs else "trace_id"
            raise BabelQueueError(
                f"stages changed '{what}' of {found.jobs or found.traces} messages: only bind may set a "
                "trace_id, and none the job"
            )

    @staticmethod
    def stripped(frame: DataFrame) -> DataFrame:
        """Return what `run` returned, with `REASON` as the only column of ours."""
        return frame.withColumn(REASON, F.col(_REASON)).drop(*_KEPT)


def clears(*columns: str) -> Stage:
    """Make a stage that clears columns, whatever a client had put there."""
    return lambda frame: frame.drop(*columns)


def _validating(stage: Stage, pattern: str) -> Stage:
    def run(frame: DataFrame) -> DataFrame:
        found = _returned(stage, frame, pattern, "validate")
        if REASON not in found.columns:
            raise OptionError(f"the validate stage of '{pattern}' returns no column '{REASON}': add it")
        return found.withColumn(_REASON, F.col(REASON).cast("string")).drop(REASON)

    return run


def _through(frame: DataFrame, pattern: str, stage: Stage, name: str) -> DataFrame:
    """Return the rows, with those that match and have no reason yet behind the stage."""
    wanted = matching(F.col(_JOB), pattern) & F.col(_REASON).isNull()
    own = frame.where(wanted)
    found = _returned(stage, own, pattern, name)
    missing = [column for column in _KEPT if column not in found.columns]
    if missing:
        raise OptionError(
            f"the {name} stage of '{pattern}' dropped columns that it does not know: use withColumn and "
            "drop, or select with '*'"
        )
    # Each union has the partitions of both sides: without a bound they would double with each stage.
    most = int(str(frame.sparkSession.conf.get("spark.sql.shuffle.partitions", "200")))
    return found.unionByName(frame.where(~wanted), allowMissingColumns=True).coalesce(most)


def _returned(stage: Stage, frame: DataFrame, pattern: str, name: str) -> DataFrame:
    found = stage(frame)
    if not isinstance(found, DataFrame):
        raise OptionError(f"the {name} stage of '{pattern}' returns no DataFrame, but {type(found).__name__}")
    return found


def with_source(frame: DataFrame) -> DataFrame:
    """Name each row by its place and its content."""
    content = F.to_json(F.struct(*(F.col(name) for name in frame.columns if name != "body")))
    place = F.monotonically_increasing_id().cast("string")
    return frame.withColumn(SOURCE, F.sha2(F.concat_ws(" ", place, content), 256))


def _with_ids(frame: DataFrame, seed: str) -> DataFrame:
    """Fill in `meta.id` and `trace_id` where copies lack them; the same for the same seed."""
    kind = frame.schema["meta"].dataType if "meta" in frame.columns else StructType()
    names = kind.fieldNames() if isinstance(kind, StructType) else []
    meta = F.col("meta")
    given = meta.getField("id") if "id" in names else F.lit(None).cast("string")
    others = [meta.getField(name).alias(name) for name in names if name != "id"]
    trace_id = F.coalesce(text_of(frame, "trace_id"), _uuid("trace_id", seed))
    message_id = F.coalesce(given, _uuid("meta.id", seed)).alias("id")
    return frame.withColumns({"trace_id": trace_id, "meta": F.struct(message_id, *others)})


def _uuid(purpose: str, seed: str) -> Column:
    """Return a UUID (version 8) of a source; null where there is none."""
    digest = F.sha2(F.concat(F.lit(f"{purpose} {seed} "), F.col(SOURCE)), 256)
    parts = (
        digest.substr(1, 8),
        digest.substr(9, 4),
        F.concat(F.lit("8"), digest.substr(14, 3)),
        F.concat(F.lit("a"), digest.substr(18, 3)),
        digest.substr(21, 12),
    )
    return F.when(F.col(SOURCE).isNotNull(), F.concat_ws("-", *parts))
