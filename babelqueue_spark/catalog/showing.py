"""Messages as they may be shown, in a notebook or a report."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import BinaryType, StringType

from babelqueue_spark.errors import OptionError
from babelqueue_spark.functions import udf
from babelqueue_spark.schemas.masking import HIDDEN, Mask
from babelqueue_spark.schemas.registry import Registry

_NEEDED = ("job", "error", "data")


def masked(messages: DataFrame, catalog: Registry) -> DataFrame:
    """Messages with `***` for what is sensitive in `data`, `body` and `dead_letter.error`.

    Args:
        messages: with the columns of a read, or with some of them.
        catalog: says what is sensitive. What it does not know is hidden.

    Raises:
        OptionError: `job` or `error` is missing, or `data` is not JSON text.
    """
    types = {field.name: field.dataType for field in messages.schema}
    if wrong := [name for name in _NEEDED if types.get(name) != StringType()]:
        raise OptionError(
            f"messages can be masked while {', '.join(_NEEDED)} are texts, but {wrong[0]} is not: mask what "
            "a read gives, and select from that"
        )
    mask = Mask(catalog)
    found = messages.withColumn("data", udf("mask", mask.data, StringType())("job", "data", "error"))
    if "body" in types:
        found = found.withColumn("body", udf("mask", mask.bodies, BinaryType())("body"))
    if "dead_letter" in types:
        hidden = F.col("dead_letter").withField("error", F.lit(HIDDEN))
        found = found.withColumn("dead_letter", F.when(F.col("dead_letter").isNotNull(), hidden))
    return found
