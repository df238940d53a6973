"""A table for each URN, with columns typed by its schema.

`Catalog` reads the `registry.json` of the SDKs. It needs Spark; the `schemas` that it stands on do not.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from babelqueue_spark.catalog.catalog import Catalog

__all__ = ["Catalog"]


def __getattr__(name: str) -> Any:
    if name == "Catalog":
        from babelqueue_spark.catalog.catalog import Catalog

        return Catalog
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
