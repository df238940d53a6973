"""Files on storage that driver and executors share: a directory, or an object store.

Journal, outboxes, schemas and event stores keep their files here. It stands on errors and packages alone.
"""

from babelqueue_spark.storage.folder import LocalStore
from babelqueue_spark.storage.locations import is_object_store, open_store
from babelqueue_spark.storage.store import ArrowFile, Store, Survey, login_in

__all__ = ["ArrowFile", "LocalStore", "Store", "Survey", "is_object_store", "login_in", "open_store"]
