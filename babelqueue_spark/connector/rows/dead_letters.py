"""Dead letters: the block that says why, and the queue where they go."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import get_args

import pyarrow as pa
import pyarrow.compute as pc

from babelqueue_spark.bindings import BaseBinding
from babelqueue_spark.bindings.contract import DeadLetterStyle
from babelqueue_spark.connector.options import Options
from babelqueue_spark.envelope import DEAD_LETTER_TYPE


def dead_letter_queue(queue: str, options: Options, binding: BaseBinding) -> str:
    """Name the queue where dead letters of `queue` go: the option's, or the broker's name for it."""
    return options.dead_letter_queue or binding.dead_letter_name(queue, options.dead_letter_style)


def is_dead_letter_queue(
    queue: str, original: str, options: Options, binding: BaseBinding | type[BaseBinding]
) -> bool:
    """Tell whether dead letters of `original` lie in `queue`: by the option, or by a style's name."""
    names = (binding.dead_letter_name(original, style) for style in get_args(DeadLetterStyle))
    return queue == options.dead_letter_queue or queue in names


def dead_letter_blocks(
    reasons: pa.StringArray,
    *,
    original_queues: pa.Array,
    attempts: pa.Array,
    errors: pa.Array | None = None,
    exceptions: pa.Array | None = None,
    failed_at: pa.Array | None = None,
    langs: pa.Array | None = None,
) -> pa.StructArray:
    """Build the blocks of dead letters, an array of `DEAD_LETTER_TYPE`.

    Args:
        reasons: why each message failed.
        original_queues: where each was read.
        attempts: how often each was tried.
        errors, exceptions: text and class of the failure; null where there is none.
        failed_at: when; null = now.
        langs: the language that the handler is written in; null = `python`.
    """
    count = len(reasons)
    missing = pa.nulls(count)
    columns = {
        "reason": reasons,
        "error": missing if errors is None else errors,
        "exception": missing if exceptions is None else exceptions,
        "failed_at": _filled(failed_at, datetime.now(UTC), "failed_at", count),
        "original_queue": original_queues,
        "attempts": attempts,
        "lang": _filled(langs, "python", "lang", count),
    }
    fields = list(DEAD_LETTER_TYPE)
    arrays = [columns[field.name].cast(field.type) for field in fields]
    return pa.StructArray.from_arrays(arrays, fields=fields)


def _filled(values: pa.Array | None, default: object, name: str, count: int) -> pa.Array:
    """Return the values, with `default` where there is none."""
    scalar = pa.scalar(default, DEAD_LETTER_TYPE.field(name).type)
    if values is None:
        return pa.repeat(scalar, count)
    return pc.fill_null(values.cast(scalar.type), scalar)
