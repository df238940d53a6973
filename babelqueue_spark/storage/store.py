"""What a store is: files under one location, that are created exclusively, replaced, read, and listed.

Everything the journal promises rests on the first, so `Store.probe` refuses storage that cannot do it.
"""

from __future__ import annotations

import contextlib
import math
import re
import socket
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from babelqueue_spark.errors import JournalError, JournalMissingError


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
        """Return the content of a file, or None where there is none."""
        with self.explained():
            return self._read(name)

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, sorted; empty where there is no such folder."""
        return sorted(self.sizes(folder))

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the names in a folder → bytes of each file."""
        with self.explained():
            return self._sizes(folder)

    def survey(self, after: str, watched: str | None = None) -> Survey:
        """Look at the batches after a folder, the commits, and one file: one request to an object store.

        Where files of others lie between, two; and the version of the file may be None.
        """
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
        """Return the content of an Arrow file, or None where there is none."""
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
        """Return the text in one line, without a user's name and password."""
        return " ".join((text.replace(self._login, "") if self._login else text).split())


def login_in(location: str) -> str:
    """Return the user's name and password of a URL, with the `@` behind them; empty where it has none."""
    login = re.match(r"[^:/]+://([^@]*:[^@]*@)", location)
    return login[1] if login else ""
