"""A local or mounted directory as a store."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from babelqueue_spark.errors import JournalError
from babelqueue_spark.storage.store import Store, Survey

_NO_FOLDER_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EBADF}
_NO_HARD_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS, errno.EXDEV}
_ARROW_MAGIC = b"ARROW1"
_SILENT_WRITER = 1.0
"""Seconds after which a torn file that does not grow was left by a writer that died."""
_LOOK_AGAIN = 0.01
_UNFINISHED = re.compile(r"\.(.+\.[0-9a-f]{32}|torn-[0-9a-f]{32}(\.\w+)?)")
"""Names of files that a writer left unfinished: no file of anybody else's may go."""


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
        try:
            _make_durably(self.root / name)
        except FileNotFoundError as error:
            if name:
                raise
            raise JournalError(
                f"{self._option} {self.location} cannot be created ({error.filename}: {error.strerror}): "
                "name a directory that driver and executors can both create, read and write"
            ) from None

    def _sweep(self, folder: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            for entry in os.scandir(self.root / folder):
                if _UNFINISHED.fullmatch(entry.name) and entry.is_file():
                    Path(entry.path).unlink(missing_ok=True)


def _is_whole(path: Path, content: bytes) -> bool:
    """Return whether a file is all there: a segment by its footer, the others by their closing brace."""
    if path.suffix == ".arrow":
        return content.startswith(_ARROW_MAGIC) and content.endswith(_ARROW_MAGIC) and len(content) > 16
    return content.endswith(b"}")


def _is_free(path: Path) -> bool:
    """Return whether a name can be taken: nothing is there, once what a dead writer left torn is set aside.

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
