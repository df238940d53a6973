"""A broker that is a directory: a message is a file, a claim is its new name.

Connection string: `folder:///path`, a directory that exists.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa

from babelqueue_spark.bindings import Binding, BindingConfig, Capabilities
from babelqueue_spark.bindings.batches import deliveries
from babelqueue_spark.bindings.options import OptionTable
from babelqueue_spark.errors import BrokerUnreachableError

__all__ = ["FolderBinding"]

_READY, _CLAIMED, _MAKING = ".message", ".claimed", ".making"


class FolderBinding(Binding):
    """A queue is a folder; `<time>-<id>.message` is ready, `<time>-<id>.<claim>.<lapses>.claimed` is not."""

    name = "folder"
    title = "Folder"
    capabilities = Capabilities(
        publish_batch=1_000,
        claim_batch=1_000,
        durable_receipts=True,
        publish_once=False,
        max_delay=0,
        browse="exact",
        ordered=True,
        visibility_timeout=90.0,
    )

    def __init__(self, config: BindingConfig) -> None:
        super().__init__(config)
        OptionTable(broker=self.name, own={}).parse(config)
        self._root = Path(config.url.removeprefix("folder://"))
        self.lease = config.visibility_timeout or 90.0

    def backlog(self, queue: str) -> int:
        with self._folder(queue) as folder:
            return len(_ready(folder))

    def claim(self, queue: str, messages: int, max_bytes: int) -> pa.RecordBatch:
        with self._folder(queue) as folder:
            claimed: list[Path] = []
            size = 0
            for path in _ready(folder):
                if len(claimed) == messages:
                    break
                lapses = time.time_ns() + int(self.lease * 1e9)
                held = path.with_name(f"{path.stem}.{uuid.uuid4().hex}.{lapses}{_CLAIMED}")
                if not _renamed(path, held):
                    continue
                size += held.stat().st_size
                if claimed and size > max_bytes:
                    _renamed(held, path)
                    break
                claimed.append(held)
            return _batch(claimed, receipts=True)

    def acknowledge(self, queue: str, deliveries: pa.RecordBatch) -> pa.BooleanArray:
        with self._folder(queue):
            return pa.array([_removed(path) for path in _held(deliveries)], pa.bool_())

    def release(self, queue: str, deliveries: pa.RecordBatch) -> None:
        with self._folder(queue):
            for path in _held(deliveries):
                _renamed(path, _as_ready(path))

    def _publish(self, queue: str, messages: pa.RecordBatch, *, idempotency_key: str | None) -> int:
        del idempotency_key
        with self._folder(queue) as folder:
            for body in messages.column("body").to_pylist():
                making = folder / f"{time.time_ns():020}-{uuid.uuid4().hex}{_MAKING}"
                making.write_bytes(body)
                making.rename(making.with_suffix(_READY))
            return messages.num_rows

    def browse(self, queue: str) -> Iterator[pa.RecordBatch]:
        with self._folder(queue) as folder:
            yield _batch(_ready(folder), receipts=False)

    def close(self) -> None:
        """There is no connection."""

    @contextmanager
    def _folder(self, queue: str) -> Iterator[Path]:
        """The folder of a queue; an error of the disk is one of the broker."""
        try:
            if not self._root.is_dir():
                raise FileNotFoundError(2, "no such directory")
            folder = self._root / quote(queue, safe="")
            folder.mkdir(exist_ok=True)
            yield folder
        except OSError as error:
            reason = f"Folder: the directory cannot be used ({error.strerror}): check the path of the URL"
            raise BrokerUnreachableError(reason) from None


def _ready(folder: Path) -> list[Path]:
    """Files that are ready, oldest first, after lapsed claims are given back."""
    for path in folder.glob(f"*{_CLAIMED}"):
        if int(path.name.split(".")[2]) <= time.time_ns():
            _renamed(path, _as_ready(path))
    return sorted(folder.glob(f"*{_READY}"))


def _as_ready(path: Path) -> Path:
    return path.with_name(f"{path.name.split('.')[0]}{_READY}")


def _renamed(path: Path, to: Path) -> bool:
    """Rename a file, unless somebody else was first."""
    try:
        path.rename(to)
    except FileNotFoundError:
        return False
    return True


def _removed(path: Path) -> bool:
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    return True


def _held(deliveries: pa.RecordBatch) -> Iterable[Path]:
    return (Path(receipt.decode()) for receipt in deliveries.column("receipt").to_pylist())


def _batch(paths: Sequence[Path], *, receipts: bool) -> pa.RecordBatch:
    if not paths:
        return deliveries(0)
    return deliveries(
        len(paths),
        body=[path.read_bytes() for path in paths],
        id=[path.name.split(".")[0] for path in paths],
        receipt=[str(path).encode() for path in paths] if receipts else None,
    )
