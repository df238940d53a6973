"""Find the store of a location."""

from __future__ import annotations

from collections.abc import Mapping

from babelqueue_spark.errors import OptionError
from babelqueue_spark.packages import brought_by
from babelqueue_spark.storage.folder import LocalStore
from babelqueue_spark.storage.store import Store

OBJECT_STORES = ("s3", "s3a", "gs", "az", "abfs", "abfss")
"""Schemes of URLs of object stores."""
PATIENCE = 120.0
"""Seconds for which a request to an object store is repeated while that is away, fails or throttles."""


def is_object_store(location: str) -> bool:
    """Return whether a location is the URL of an object store."""
    scheme, colon, _ = location.partition("://")
    return bool(colon) and scheme.lower() in OBJECT_STORES


def open_store(
    location: str,
    option: str = "journalLocation",
    config: Mapping[str, str] | None = None,
    patience: float = PATIENCE,
) -> Store:
    """Return the store for a path, a `file:` URL or the URL of an object store.

    Args:
        location: the path or URL.
        option: how errors name it.
        config: of an object store, by the names that `ObjectStore` takes; a path needs none.
        patience: seconds for which a request to an object store is repeated while that is out of reach.

    Raises:
        OptionError: the scheme is unknown, a package is missing, or the configuration is invalid.
    """
    if is_object_store(location):
        with brought_by("objectstore", f"{option} on an object store", "obstore"):
            from babelqueue_spark.storage.bucket import ObjectStore
        return ObjectStore(location, option, config or {}, patience)
    scheme, colon, _ = location.partition(":")
    if colon and scheme == "file":
        return LocalStore("/" + location.removeprefix("file:").lstrip("/"), option)
    if colon and len(scheme) > 1 and "/" not in scheme:
        known = ", ".join(f"{each}://" for each in OBJECT_STORES)
        raise OptionError(
            f"{option} has the scheme '{scheme}:', which cannot be used: use a path, or a URL that begins "
            f"with {known}; mount other storage (HDFS, SMB) and use the path; dbfs:/Volumes/… is /Volumes/…"
        )
    return LocalStore(location, option)
