"""The catalog: the registry of the SDKs with Spark's types."""

from __future__ import annotations

import babelqueue_spark.needs_spark  # noqa: F401

# isort: split

from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import DataType

from babelqueue_spark.catalog.registry import Registry


class Catalog(Registry):
    """A schema for each URN: its verdict on payloads, and their type in Spark.

    Args:
        location: a `registry.json` of the SDKs or its folder: a path, or the URL of an object store; or
            schemas by URN.
        config: of the object store, by the names that the options `journal.<name>` have.

    Raises:
        OptionError: a file is missing, or is no registry or schema.
    """

    def data_type(self, urn: str) -> DataType:
        """The type of a URN's payload, for `bq.decode` or `from_json`; `KeyError` where it has no schema."""
        return from_arrow_type(self.arrow_type(urn))
