"""Column functions: the codec on any string or binary column (Kafka's `value`, files, a table).

    from babelqueue_spark import functions as bq
    rows = kafka.select(bq.decode("value").alias("envelope")).select("envelope.*")

As in `pyspark.sql.functions`, a string names a column; a constant is `lit(…)`. They are
Arrow functions and work over Spark Connect too; `register` gives them names in SQL. The column that a
function makes has its name, unless you give it another.
"""

import babelqueue_spark.needs_spark  # noqa: F401

import uuid
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, SparkSession
from pyspark.sql.functions import lit
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import BinaryType, BooleanType, DataType, StringType, StructField, StructType

from babelqueue_spark import envelope
from babelqueue_spark.connector.rows.bodies import bodies
from babelqueue_spark.connector.rows.columns import WriteRows
from babelqueue_spark.connector.rows.dead_letters import dead_letter_blocks
from babelqueue_spark.connector.rows.ids import IdSource
from babelqueue_spark.connector.rows.payloads import check_data
from babelqueue_spark.connector.rows.reading import ENVELOPE, arrow_fields, envelope_columns
from babelqueue_spark.envelope.trace import trace_context as _trace_context
from babelqueue_spark.envelope.typed import typed
from babelqueue_spark.envelope.urns import matches
from babelqueue_spark.schemas import masking, protection
from babelqueue_spark.schemas.registry import Registry, registry_of
from babelqueue_spark.schemas.sensitive import SensitiveFields

ColumnOrName = Column | str
ColumnFunction = Callable[..., Column]

_INT32_MAX = pa.scalar(2**31 - 1, pa.int64())

TRACE = StructType(
    [StructField(name, StringType()) for name in ("source", "trace_id", "parent_span_id", "flags")]
)
"""What `trace_context` gives."""


def decode(
    body: ColumnOrName, data_schema: DataType | str | None = None, *, allow_empty_list_data: bool = False
) -> Column:
    """Decode a body into a struct of `ENVELOPE`, never null.

    It never raises. `error` has the reason why a body is invalid (null = valid); the other fields hold what
    could be read. A null body is poison, and so is PHP's `"data":[]`, unless it is allowed.

    Args:
        body: string or binary.
        data_schema: a type (or DDL such as `order_id BIGINT, amount DECIMAL(10,2)`) for `data`, instead of
            its JSON text. A value that does not fit is null.
        allow_empty_list_data: read PHP's `"data":[]` as an empty object.
    """
    wanted = ENVELOPE
    if data_schema is not None:
        kind = DataType.fromDDL(data_schema) if isinstance(data_schema, str) else data_schema
        check_data(kind)
        data = StructField("data", kind)
        wanted = StructType([data if field.name == "data" else field for field in ENVELOPE])
    return udf("decode", _decoder(wanted, allow_empty_list_data), wanted)(body).alias("decode")


def validate(body: ColumnOrName, *, allow_empty_list_data: bool = False) -> Column:
    """Return the reason why a body is invalid, a code of `envelope.Reason`; null = valid.

    PHP's `"data":[]` is `poison` unless `allow_empty_list_data`.
    """
    validated = partial(envelope.validate, allow_list_data=allow_empty_list_data)
    return udf("validate", validated, StringType())(body).alias("validate")


def encode(message: ColumnOrName) -> Column:
    """Encode an envelope as a body, binary.

    `message` is a struct with the fields of a write: `job` (or `urn`) and `data` (JSON text, struct or map),
    and optionally `trace_id`, `queue`, `attempts`, `meta`, `dead_letter`. Missing ids are new
    each time the function runs: save the result before you use it twice. A struct that `decode` returned can
    be encoded again; its `error` is ignored. A null struct gives null.

    A row that no reader would accept fails the query with an error that names the row and the field.
    """
    return udf("encode", _encoded, BinaryType(), random=True)(message).alias("encode")


def dead_letter(
    body: ColumnOrName,
    reason: ColumnOrName,
    error: ColumnOrName | None = None,
    *,
    exception: ColumnOrName | None = None,
    original_queue: ColumnOrName | None = None,
    attempts: ColumnOrName | None = None,
    lang: ColumnOrName | None = None,
) -> Column:
    """Annotate a body with a dead letter block, binary; unchanged where `reason` is null.

    Every other byte of the body stays. A body that is not an envelope is kept whole: a JSON object gets the
    block, any other body is wrapped as `raw` (base64 with `raw_encoding` where it is not UTF-8).

    Args:
        body: string or binary.
        reason: `poison`, `failed`, or one of yours.
        error: message of the failure.
        exception: its class.
        original_queue: where the message came from; by default `meta.queue`.
        attempts: how often it was tried; by default the body's own count.
        lang: by default `python`.
    """
    given = [error, exception, original_queue, attempts, lang]
    return udf("dead_letter", _dead_lettered, BinaryType())(body, reason, *map(_or_null, given)).alias(
        "dead_letter"
    )


def strip_dead_letter(body: ColumnOrName) -> Column:
    """Prepare a dead letter to be sent again, binary: no block, `attempts` 0, `raw` unwrapped."""
    return udf("strip_dead_letter", envelope.strip_dead_letter, BinaryType())(body).alias("strip_dead_letter")


def continue_trace(
    inbound: ColumnOrName, job: ColumnOrName, data: ColumnOrName, queue: ColumnOrName | None = None
) -> Column:
    """Create the body of a message that follows another one, binary: its trace_id and a new `meta.id`.

    Args:
        inbound: the body that it follows, string or binary; where that has no trace_id, a new one is created.
        job: URN of the new message.
        data: its payload: JSON text, struct or map.
        queue: its `meta.queue`; by default that of the inbound message. Without either the query fails.
    """
    return udf("continue_trace", _continued, BinaryType(), random=True)(
        inbound, job, data, _or_null(queue)
    ).alias("continue_trace")


def trace_context(trace_id: ColumnOrName, traceparent: ColumnOrName) -> Column:
    """Return the trace that a message continues, as a struct of `TRACE`; null where there is none.

    Args:
        trace_id: the envelope's.
        traceparent: the header, such as `headers['traceparent']`; where it is null or malformed, the
            trace_id counts.
    """
    return udf("trace_context", _trace_context, TRACE)(trace_id, traceparent).alias("trace_context")


def urn_matches(job: ColumnOrName, pattern: Column | str) -> Column:
    """Return whether a URN matches a pattern in which `*` stands for any text, the empty one too.

    `pattern` is the pattern itself when it is a string, or a column of patterns. Null when either is.
    """
    patterns = lit(pattern) if isinstance(pattern, str) else pattern
    return udf("urn_matches", _matching, BooleanType())(job, patterns).alias("urn_matches")


def violation(job: ColumnOrName, data: ColumnOrName, catalog: Registry | str) -> Column:
    """Return the first violation in a payload, as the SDKs word it: `amount: below_minimum`.

    Null where the payload has none, where the catalog has no schema for the URN, and where `data` is null.

    Args:
        job: the URN.
        data: the payload as JSON text.
        catalog: a `Catalog`, or where its `registry.json` is; it is read here, not on executors.
    """
    registry = registry_of(catalog)
    return udf("violation", registry.violations, StringType())(job, data).alias("violation")


def protect(job: ColumnOrName, data: ColumnOrName, catalog: Registry | str, key: str) -> Column:
    """Return a payload with its sensitive fields as ciphertext, in the format of the SDKs (AES-GCM).

    Sensitive is what a schema marks with `x-gdpr-sensitive`. What this key has protected before stays as it
    is. Null where `data` is no JSON object. Ciphertexts are new each time the function runs.

    Args:
        job: the URN.
        data: the payload as JSON text; validate it first.
        catalog: a `Catalog`, or where its `registry.json` is; it is read here, not on executors.
        key: `env:NAME` or `file:/path` of the base64 of 16, 24 or 32 bytes, on driver and executors.
    """
    protected = partial(protection.protect, fields=_sensitive_fields(catalog, key), key=key)
    return udf("protect", protected, StringType(), random=True)(job, data).alias("protect")


def unprotect(job: ColumnOrName, data: ColumnOrName, catalog: Registry | str, key: str) -> Column:
    """Return a payload with its sensitive fields as they were before `protect`, here or in an SDK.

    Null where one of them cannot be opened with this key. The arguments are those of `protect`.
    """
    opened = partial(protection.unprotect, fields=_sensitive_fields(catalog, key), key=key)
    return udf("unprotect", opened, StringType())(job, data).alias("unprotect")


def mask(job: ColumnOrName, data: ColumnOrName, catalog: Registry | str) -> Column:
    """Return a payload with `***` in place of its sensitive fields; null where `data` is no JSON object."""
    by = partial(masking.mask, fields=registry_of(catalog).sensitive_fields())
    return udf("mask", by, StringType())(job, data).alias("mask")


def _sensitive_fields(catalog: Registry | str, key: str) -> dict[str, SensitiveFields]:
    protection.check_name(key)
    return registry_of(catalog).sensitive_fields()


def typed_data(data: ColumnOrName, kind: DataType) -> Column:
    """Return a payload as a column of a type, null where it does not fit; `decode` does it for bodies."""
    check_data(kind)
    [wanted] = arrow_fields(StructType([StructField("data", kind)]))
    return udf("typed_data", lambda data: typed(data, wanted.type), kind)(data).alias("data")


def register(spark: SparkSession, prefix: str = "bq_") -> None:
    """Register the functions for this session's SQL, as `bq_decode(body)` and so on.

    `bq_dead_letter` takes `(body, reason [, error [, exception [, original_queue [, attempts [, lang]]]]])`,
    `bq_encode` one struct; options of the Python functions have their defaults.
    """
    functions = [
        udf("decode", _decoder(ENVELOPE, False), ENVELOPE),
        udf("validate", envelope.validate, StringType()),
        udf("encode", _encoded, BinaryType(), random=True),
        udf("dead_letter", _dead_lettered, BinaryType()),
        udf("strip_dead_letter", envelope.strip_dead_letter, BinaryType()),
        udf("continue_trace", _continued, BinaryType(), random=True),
        udf("trace_context", _trace_context, TRACE),
        udf("urn_matches", _matching, BooleanType()),
    ]
    for function in functions:
        spark.udf.register(prefix + function.__name__, function)


def udf(
    name: str, function: Callable[..., pa.Array], returns: DataType, *, random: bool = False
) -> ColumnFunction:
    """Return a function of columns, made of one of Arrow arrays of usual types."""

    def columnwise(*columns: pa.Array) -> pa.Array:
        return function(*map(_usual, columns))

    columnwise.__name__ = name
    make: Any = arrow_udf  # its annotations know atomic types only
    made = make(columnwise, returns)
    function_of_columns: ColumnFunction = made.asNondeterministic() if random else made
    return function_of_columns


def _usual(column: pa.Array) -> pa.Array:
    """Return a column of the types that the codec takes: nulls are text, and large texts usual ones."""
    if pa.types.is_null(column.type) or pa.types.is_large_string(column.type):
        return column.cast(pa.string())
    return column.cast(pa.binary()) if pa.types.is_large_binary(column.type) else column


def _or_null(column: ColumnOrName | None) -> ColumnOrName:
    return lit(None).cast("string") if column is None else column


# -- the same on Arrow arrays ------------------------------------------------------------------------


def _decoder(wanted: StructType, allow_empty_list_data: bool) -> Callable[[pa.Array], pa.Array]:
    def decoded(body: pa.Array) -> pa.Array:
        messages = pa.RecordBatch.from_arrays([body], ["body"])
        columns = envelope_columns(messages, wanted, allow_empty_list_data)
        fields = arrow_fields(wanted)
        return pa.StructArray.from_arrays([columns[field.name] for field in fields], fields=fields)

    return decoded


def _encoded(message: pa.StructArray) -> pa.Array:
    rows = WriteRows(
        pa.RecordBatch.from_arrays(message.flatten(), names=[field.name for field in message.type])
    )
    return bodies(rows, rows.texts("queue"), _fresh(), kept=message.is_null())


def _fresh() -> IdSource:
    return IdSource(uuid.uuid4().hex)


def _dead_lettered(
    body: pa.Array,
    reason: pa.Array,
    error: pa.Array | None = None,
    exception: pa.Array | None = None,
    original_queue: pa.Array | None = None,
    attempts: pa.Array | None = None,
    lang: pa.Array | None = None,
) -> pa.Array:
    dead = reason.is_valid()
    columns = envelope.decode(body)
    count = len(body)
    most = pc.min_element_wise(_given(attempts, count).cast(pa.int64()), _INT32_MAX, skip_nulls=False)
    blocks = dead_letter_blocks(
        reason,
        original_queues=pc.coalesce(
            _given(original_queue, count), pc.struct_field(columns.column("meta"), "queue")
        ),
        attempts=pc.coalesce(most.cast(pa.int32()), columns.column("attempts"), pa.scalar(0, pa.int32())),
        errors=error,
        exceptions=exception,
        langs=lang,
    )
    binary = body.cast(pa.binary())
    return pc.replace_with_mask(binary, dead, envelope.dead_letter(binary.filter(dead), blocks.filter(dead)))


def _given(column: pa.Array | None, count: int) -> pa.Array:
    return pa.nulls(count, pa.string()) if column is None else column


def _continued(inbound: pa.Array, job: pa.Array, data: pa.Array, queue: pa.Array | None = None) -> pa.Array:
    followed = envelope.decode(inbound)
    queues = pc.coalesce(_given(queue, len(job)), pc.struct_field(followed.column("meta"), "queue"))
    rows = pa.RecordBatch.from_pydict({"job": job, "data": data, "trace_id": followed.column("trace_id")})
    return bodies(WriteRows(rows), queues, _fresh())


def _matching(job: pa.Array, pattern: pa.Array) -> pa.Array:
    known = cache(matches)
    pairs = zip(pattern.to_pylist(), job.to_pylist(), strict=True)
    return pa.array([None if None in pair else known(*pair) for pair in pairs], pa.bool_())
