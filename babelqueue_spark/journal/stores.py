"""Where a journal keeps its files: a local (or mounted) directory, or an object store.

A store gives the journal four things: create a file exclusively, replace one, read, and list.
Everything the journal promises rests on the first, so `probe` refuses storage that cannot do it.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import re
import shutil
import socket
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from babelqueue_spark.errors import JournalError, JournalMissingError, OptionError
from babelqueue_spark.packages import brought_by

_NO_FOLDER_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EBADF}
_NO_HARD_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS, errno.EXDEV}
_ARROW_MAGIC = b"ARROW1"
OBJECT_STORES = ("s3", "s3a", "gs", "az", "abfs", "abfss")
"""Schemes of URLs of object stores."""
_SILENT_WRITER = 1.0
"""Seconds after which a torn file that does not grow was left by a writer that died."""
_LOOK_AGAIN = 0.01
PATIENCE = 120.0
"""Seconds for which a request to an object store is repeated while that is away, fails or throttles."""


@dataclass(frozen=True)
class ArrowFile:
    """What an Arrow file holds: its batches, without metadata, and the metadata of its schema."""

    batches: list[pa.RecordBatch]
    metadata: dict[bytes, bytes]


@dataclass(frozen=True)
class Survey:
    """What a store holds at one moment, as far as it was asked.

    Attributes:
        version: changes when the watched file is replaced; None where it is missing.
        sizes: folder → name → bytes of each file in it; empty where there is no such folder.
    """

    version: str | None
    sizes: Callable[[str], Mapping[str, int]]


class Store(ABC):
    """Files under one location; names are relative, with `/` between folders.

    Every operation raises `JournalError`, in one line, for what the storage refuses.
    """

    mounted = True
    """Whether each host may see other files at the location."""

    _errors: tuple[type[Exception], ...] = (OSError, ValueError)

    def __init__(self, location: str, option: str = "journalLocation") -> None:
        self._login = login_in(location)
        self.location = self._shown(location)
        """For messages: without a user's name and password."""
        self._option = option

    def make_folder(self, name: str = "") -> None:
        """Make a folder of the location, or the location itself with all above it."""
        with self.explained():
            self._make_folder(name)

    def create(self, name: str, content: bytes, until: float = math.inf) -> bool:
        """Write a new file whole and durable; False, and nothing written, when the name is taken.

        What is not written `until` a time by the monotonic clock ends in a `JournalError`. Nothing is sent to
        the storage after that, but it may still carry out what it was sent before.

        A name that holds this very content is not taken: a request that is repeated after its answer was lost
        finds its own file. So content must differ between writers where it matters who was first.
        Only `make_folder` makes folders: where that of the file is not there, `JournalMissingError`, and
        nothing is written.
        """
        with self.explained():
            return self._create(name, content, until) or self._read(name) == content

    def replace(self, name: str, content: bytes) -> None:
        """Write a file whole, over the old one if there is one."""
        with self.explained():
            self._replace(name, content)

    def read(self, name: str) -> bytes | None:
        """The content of a file, or None where there is none."""
        with self.explained():
            return self._read(name)

    def names(self, folder: str) -> list[str]:
        """The names in a folder, sorted; empty where there is no such folder."""
        return sorted(self.sizes(folder))

    def sizes(self, folder: str) -> dict[str, int]:
        """The names in a folder → bytes of each file."""
        with self.explained():
            return self._sizes(folder)

    def survey(self, after: str, watched: str | None = None) -> Survey:
        """Look at all that comes after a folder, and at one file: one request to an object store."""
        with self.explained():
            return self._survey(after, watched)

    def remove(self, folder: str) -> None:
        """Delete a folder and all in it; silent where there is none."""
        with self.explained():
            self._remove(folder)

    def remove_all(self, files: Sequence[str], folders: Sequence[str], seen: Survey) -> None:
        """Delete files, and folders with what a survey saw in them: one request to most object stores."""
        with self.explained():
            self._remove_all(files, folders, seen)

    def remove_file(self, name: str) -> None:
        """Delete one file; silent where there is none."""
        with self.explained():
            self._remove_file(name)

    def sweep(self, folder: str = "") -> None:
        """Delete what writers that died left unfinished in a folder."""
        with self.explained():
            self._sweep(folder)

    def create_arrow(
        self, name: str, batches: Iterable[pa.RecordBatch], schema: pa.Schema, until: float = math.inf
    ) -> bool:
        """Write Arrow batches as a new file, as `create` does; the file has the metadata of `schema`."""
        content = pa.BufferOutputStream()
        with pa.ipc.new_file(content, schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
            for batch in batches:
                writer.write_batch(batch.replace_schema_metadata(schema.metadata))
        return self.create(name, content.getvalue().to_pybytes(), until)

    def read_arrow(self, name: str) -> ArrowFile | None:
        """The content of an Arrow file, or None where there is none."""
        content = self.read(name)
        if content is None:
            return None
        with pa.ipc.open_file(pa.BufferReader(content)) as reader:
            found = (reader.get_batch(number) for number in range(reader.num_record_batches))
            batches = [batch.replace_schema_metadata(None) for batch in found]
            return ArrowFile(batches, reader.schema.metadata or {})

    @abstractmethod
    def _make_folder(self, name: str) -> None: ...

    @abstractmethod
    def _sweep(self, folder: str) -> None: ...

    @abstractmethod
    def _create(self, name: str, content: bytes, until: float) -> bool: ...

    @abstractmethod
    def _replace(self, name: str, content: bytes) -> None: ...

    @abstractmethod
    def _read(self, name: str) -> bytes | None: ...

    @abstractmethod
    def _sizes(self, folder: str) -> dict[str, int]: ...

    @abstractmethod
    def _survey(self, after: str, watched: str | None) -> Survey: ...

    @abstractmethod
    def _remove_all(self, files: Sequence[str], folders: Sequence[str], seen: Survey) -> None: ...

    @abstractmethod
    def _remove(self, folder: str) -> None: ...

    @abstractmethod
    def _remove_file(self, name: str) -> None: ...

    def probe(self) -> None:
        """Make the location, and prove that it creates exclusively; `JournalError` says what is missing."""
        name = f"probe-{uuid.uuid4().hex}"
        self.make_folder()
        try:
            exclusive = self.create(name, b"{}") and not self.create(name, b"{1}")
        finally:
            with contextlib.suppress(JournalError):
                self.remove_file(name)
        if not exclusive:
            raise JournalError(
                f"{self._option} {self.location} is on storage that cannot create a file exclusively "
                "(two writers both succeeded): use a local or shared POSIX directory, or an object "
                "store with conditional puts"
            )

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Turn what the storage raises into a `JournalError` of one line."""
        try:
            yield
        except self._errors as error:
            raise self._error(error) from None

    def _error(self, error: Exception) -> JournalError:
        if isinstance(error, FileNotFoundError):
            return JournalMissingError(
                f"{self._option} {self.location} is not there as host {socket.gethostname()} sees it: it was "
                "deleted or cleaned, or it is not mounted here; driver and executors must share it"
            )
        cause = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        cause = f"{type(error).__name__}: {self._shown(cause)}"
        return JournalError(
            f"{self._option} {self.location} cannot be used ({cause}): it must be a directory "
            "that driver and executors can both create, read and write"
        )

    def _late(self, name: str) -> JournalError:
        return JournalError(
            f"{self._option} {self.location}: the storage did not write {name} in time; the task is to be "
            "repeated: check the storage and the network, or raise visibilityTimeout"
        )

    def _shown(self, text: str) -> str:
        """The text in one line, without a user's name and password."""
        return " ".join((text.replace(self._login, "") if self._login else text).split())


class LocalStore(Store):
    """A directory: a file appears whole by hard link, or by exclusive open where links are refused."""

    def __init__(self, location: str, option: str = "journalLocation") -> None:
        super().__init__(location, option)
        self.root = Path(location)
        self._hard_links = True

    def _create(self, name: str, content: bytes, until: float) -> bool:
        path = self.root / name
        if self._hard_links:
            try:
                return self._create_by_link(path, content, until)
            except OSError as error:
                if error.errno not in _NO_HARD_LINKS:
                    raise
                self._hard_links = False
        return self._create_by_open(path, content, until)

    def _create_by_link(self, path: Path, content: bytes, until: float) -> bool:
        temporary = self._write_beside(path, content)
        try:
            if time.monotonic() > until:
                raise self._late(str(path.relative_to(self.root)))
            os.link(temporary, path)
        except FileExistsError:
            return False
        finally:
            temporary.unlink(missing_ok=True)
        _sync_folder(path.parent)
        return True

    def _create_by_open(self, path: Path, content: bytes, until: float) -> bool:
        while _is_free(path):
            if time.monotonic() > until:
                raise self._late(str(path.relative_to(self.root)))
            try:
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            except FileExistsError:
                continue  # another writer was faster, and is waited for
            with _removed_on_error(path), os.fdopen(descriptor, "wb") as file:
                _write_durably(file, content)
                mine = os.fstat(file.fileno()).st_ino
            _sync_folder(path.parent)
            return path.exists() and path.stat().st_ino == mine
        return False

    def _replace(self, name: str, content: bytes) -> None:
        path = self.root / name
        temporary = self._write_beside(path, content)
        with _removed_on_error(temporary):
            temporary.replace(path)
        _sync_folder(path.parent)

    def _write_beside(self, path: Path, content: bytes) -> Path:
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        with _removed_on_error(temporary), temporary.open("wb") as file:
            _write_durably(file, content)
        return temporary

    def _read(self, name: str) -> bytes | None:
        path = self.root / name
        try:
            content = path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return content if _is_whole(path, content) else None

    def _sizes(self, folder: str) -> dict[str, int]:
        sizes: dict[str, int] = {}
        with contextlib.suppress(FileNotFoundError):
            for entry in os.scandir(self.root / folder):
                if entry.name[0] != ".":
                    with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                        sizes[entry.name] = entry.stat().st_size
        return sizes

    def _survey(self, after: str, watched: str | None) -> Survey:  # noqa: ARG002
        content = self._read(watched) if watched is not None else None
        return Survey(None if content is None else content.hex(), self.sizes)

    def _remove_all(self, files: Sequence[str], folders: Sequence[str], seen: Survey) -> None:  # noqa: ARG002
        for file in files:
            self._remove_file(file)
        for folder in folders:
            self._remove(folder)

    def _remove(self, folder: str) -> None:
        shutil.rmtree(self.root / folder, ignore_errors=True)

    def _remove_file(self, name: str) -> None:
        (self.root / name).unlink(missing_ok=True)

    def _make_folder(self, name: str) -> None:
        if name and not self.root.is_dir():
            raise FileNotFoundError(self.root)
        _make_durably(self.root / name)

    def _sweep(self, folder: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            for entry in os.scandir(self.root / folder):
                if entry.name[0] == "." and entry.is_file():
                    Path(entry.path).unlink(missing_ok=True)


def is_object_store(location: str) -> bool:
    """Whether a location is the URL of an object store."""
    scheme, colon, _ = location.partition("://")
    return bool(colon) and scheme.lower() in OBJECT_STORES


def login_in(location: str) -> str:
    """The user's name and password of a URL, with the `@` behind them; empty where it has none."""
    login = re.match(r"[^:/]+://([^@]*:[^@]*@)", location)
    return login[1] if login else ""


def open_store(
    location: str,
    option: str = "journalLocation",
    config: Mapping[str, str] | None = None,
    patience: float = PATIENCE,
) -> Store:
    """The store for a path, a `file:` URL or the URL of an object store.

    Args:
        location: the path or URL.
        option: how errors name it.
        config: of an object store, by the names that `ObjectStore` takes; a path needs none.
        patience: seconds for which a request to an object store is repeated while that is out of reach.

    Raises:
        OptionError: the scheme is unknown, a package is missing, or the configuration is invalid.
    """
    if is_object_store(location):
        return _object_store(location, option, config or {}, patience)
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


def _object_store(location: str, option: str, config: Mapping[str, str], patience: float) -> Store:
    with brought_by("objectstore", f"{option} on an object store", "obstore"):
        from babelqueue_spark.journal.objects import ObjectStore
    return ObjectStore(location, option, config, patience)


def _is_whole(path: Path, content: bytes) -> bool:
    """Whether a file is all there: a segment by its footer, the others by their closing brace."""
    if path.suffix == ".arrow":
        return content.startswith(_ARROW_MAGIC) and content.endswith(_ARROW_MAGIC) and len(content) > 16
    return content.endswith(b"}")


def _is_free(path: Path) -> bool:
    """Whether a name can be taken: nothing is there, once what a dead writer left torn is set aside.

    A file that is not whole is most likely being written: it is waited for while it grows.
    """
    seen, since = None, time.monotonic()
    while True:
        try:
            content, inode = path.read_bytes(), path.stat().st_ino
        except FileNotFoundError:
            return True
        if _is_whole(path, content):
            return False
        if seen != (inode, len(content)):
            seen, since = (inode, len(content)), time.monotonic()
        elif time.monotonic() - since > _SILENT_WRITER:
            _set_aside(path)
            seen = None
        time.sleep(_LOOK_AGAIN)


def _set_aside(path: Path) -> None:
    """Rename a torn file away; put it back when its writer finished it after all."""
    aside = path.with_name(f".torn-{uuid.uuid4().hex}{path.suffix}")
    with contextlib.suppress(FileNotFoundError):
        path.rename(aside)
        if _is_whole(aside, aside.read_bytes()):
            aside.rename(path)


@contextlib.contextmanager
def _removed_on_error(path: Path) -> Iterator[None]:
    """Delete a file that could not be written, so that it does not fill the disk."""
    try:
        yield
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _write_durably(file: BinaryIO, content: bytes) -> None:
    file.write(content)
    file.flush()
    os.fsync(file.fileno())


def _make_durably(folder: Path) -> None:
    """Make a folder, and those above it, so that they outlive a power cut."""
    if folder.is_dir():
        return
    _make_durably(folder.parent)
    with contextlib.suppress(FileExistsError):  # made by another process meanwhile
        folder.mkdir()
    _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    """Make the names in a folder durable; passed over where a file system cannot do that."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise
    finally:
        os.close(descriptor)
