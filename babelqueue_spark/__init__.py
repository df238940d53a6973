"""Message queues as first-class Spark streams."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from babelqueue_spark.datasource import BabelQueueDataSource

__version__ = "0.1.0"
__all__ = ["BabelQueueDataSource", "__version__"]


def __getattr__(name: str) -> Any:
    if name == "BabelQueueDataSource":
        from babelqueue_spark.datasource import BabelQueueDataSource

        return BabelQueueDataSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
