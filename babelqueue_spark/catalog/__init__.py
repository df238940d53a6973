"""A table for each URN, with columns typed by its schema.

`Catalog` reads the `registry.json` of the SDKs. It needs Spark; the `schemas` that it stands on do not.
"""

from babelqueue_spark.catalog.catalog import Catalog

__all__ = ["Catalog"]
