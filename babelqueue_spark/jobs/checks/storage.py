"""The storage of a journal: exclusive creation, speed and room."""

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from babelqueue_spark.jobs.checks.findings import Finding, failed, ok, warning

if TYPE_CHECKING:
    from babelqueue_spark.storage import Store

LEAST_FREE = 2 * (256 << 20)
"""Bytes that a journal needs with the default `maxBytesPerTrigger`: the running batch and the one before."""
_SLOW_SECONDS = 0.5
_FILE_BYTES = 64 << 10
_FILES = 5
_PATIENCE = 10.0


def findings(location: str, given: Mapping[str, str]) -> Iterator[Finding]:
    """Check a journal's location by files that are deleted afterwards; `given` has its `journal.<name>`."""
    with opened(location, given) as (store, folder):
        yield from _room(store)
        store.probe()
        yield ok("journal", f"{store.location}: of two writers, one creates a file")
        yield from _speed(store, folder)


@contextmanager
def opened(location: str, given: Mapping[str, str]) -> Iterator[tuple[Store, str]]:
    """Open the store at a location with a folder in it; remove afterwards what was not there before."""
    from babelqueue_spark.storage import LocalStore

    store = _store(location, given)
    folder = f"doctor-{uuid.uuid4().hex}"
    made = _missing(store.root) if isinstance(store, LocalStore) else []
    try:
        store.make_folder()
        store.make_folder(folder)
        yield store, folder
    finally:
        with contextlib.suppress(Exception):  # what is wrong was said
            store.remove(folder)
        for path in made:
            with contextlib.suppress(OSError):
                path.rmdir()


def _store(location: str, given: Mapping[str, str]) -> Store:
    from babelqueue_spark.connector.options import checked_location, journal_config, resolved_config
    from babelqueue_spark.storage import open_store

    config = resolved_config(journal_config(given))
    return open_store(checked_location(location), config=config, patience=_PATIENCE)


def _missing(path: Path) -> list[Path]:
    """Return a folder and those above it that are not there, the deepest first."""
    return [each for each in (path, *path.parents) if not each.exists()]


def _speed(store: Store, folder: str) -> Iterator[Finding]:
    times = []
    for number in range(_FILES):
        content = os.urandom(_FILE_BYTES)
        started = time.monotonic()
        store.create(f"{folder}/{number}", content)
        times.append(time.monotonic() - started)
    median = statistics.median(times)
    text = f"a file of {_FILE_BYTES >> 10} KiB is durable after {median * 1000:.1f} ms (median of {_FILES})"
    if median > _SLOW_SECONDS:
        yield warning("journal speed", f"{text}, and each reader task waits for two: use faster storage")
    else:
        yield ok("journal speed", text)


def _room(store: Store) -> Iterator[Finding]:
    from babelqueue_spark.storage import LocalStore

    if not isinstance(store, LocalStore):
        return
    free = shutil.disk_usage(store.root).free
    text = f"{free / (1 << 30):,.1f} GiB free"
    if free < LEAST_FREE:
        yield warning(
            "journal space",
            f"{text}, and a journal may take twice maxBytesPerTrigger ({LEAST_FREE >> 20} MiB by default): "
            "make room, or lower it",
        )
    else:
        yield ok("journal space", text)


def sees(location: str, given: Mapping[str, str], name: str, token: bytes) -> Iterator[Finding]:
    """Check on an executor that a file of the driver's is there, and that one can be created beside it."""
    store = _store(location, given)
    if store.read(name) != token:
        yield failed(
            "journal",
            f"{store.location} is not the driver's here: mount the driver's directory at the same path, or "
            "use an object store",
        )
        return
    store.create(f"{name}-{uuid.uuid4().hex}", token)
    yield ok("journal", f"{store.location} is the driver's, and can be written")
