"""Journals on object stores (S3, Google Cloud Storage, Azure Blob Storage), through `obstore`.

A file is created by a conditional put (`If-None-Match: *`, or generation 0), so that the store itself refuses
the second writer, whatever the size. Credentials come from the provider's environment variables, from the
machine's or pod's role, or from options.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeVar
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    GenericError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnknownConfigurationKeyError,
)
from obstore.store import from_url

from babelqueue_spark.errors import JournalError, JournalMissingError, OptionError
from babelqueue_spark.storage.store import Store, Survey

T = TypeVar("T")

_RETRIES: Any = {
    "max_retries": 10_000,  # the time bounds them
    "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=5), "base": 2},
}
_CLIENT_DEFAULTS = {
    "connect_timeout": "5s",
    "timeout": "60s",
    "allow_http": "true",  # an endpoint without TLS has to be named, by its http://
}
_CLIENT = {
    *("allow_http", "allow_invalid_certificates", "connect_timeout", "http1_only", "http2_only"),
    *("pool_idle_timeout", "pool_max_idle_per_host", "proxy_ca_certificate", "proxy_excludes", "proxy_url"),
    *("randomize_addresses", "read_timeout", "root_certificate", "timeout", "user_agent"),
}
"""Options of the HTTP client; all others are the provider's."""

_HARMLESS = {
    *("endpoint", "region", "default_region", "disable_bulk_delete", "virtual_hosted_style_request"),
    *("account_name", "allow_http", "connect_timeout", "timeout", "read_timeout"),
}
"""Options whose values errors may show."""

_METADATA = "169.254.169.254"
"""Where clouds tell a machine its role: asked when there are no other credentials."""

_LONGEST_CAUSE = 300
_PAGE = 1000
"""Files that stores list in one answer."""

_used_by: dict[str, int] = {}
"""The process that started the client's threads, which its forks inherit in name only."""


class ObjectStore(Store):
    """A folder of a bucket or container.

    Args:
        location: `s3://bucket/path`, `gs://bucket/path`, `abfss://container@account.dfs.core.windows.net/path`
            or `az://container/path`.
        option: how errors name it.
        config: of the provider and of the HTTP client, by `obstore`'s names.
        patience: seconds for which a request is repeated.

    Raises:
        OptionError: an option is unknown or has an invalid value, or the URL is invalid or has a login in it.
    """

    mounted = False
    _errors = (BaseError, OSError, ValueError)

    def __init__(self, location: str, option: str, config: Mapping[str, str], patience: float) -> None:
        self._secrets = [value for name, value in config.items() if name not in _HARMLESS and len(value) > 3]
        super().__init__(location, option)
        if self._login:
            raise OptionError(
                f"{option} {self.location} has a login in its URL, which is not used: give credentials by "
                "the provider's environment variables, or as options journal.<name>"
            )
        self._bucket = urlsplit(location).netloc.partition("@")[0]
        self._store = self._opened(location, config, patience)

    def _opened(self, location: str, config: Mapping[str, str], patience: float) -> Any:
        client = {name: value for name, value in config.items() if _unprefixed(name) in _CLIENT}
        provider: Any = {name: value for name, value in config.items() if name not in client}
        options: Any = {**_CLIENT_DEFAULTS, **{_unprefixed(name): value for name, value in client.items()}}
        retries: Any = {**_RETRIES, "retry_timeout": timedelta(seconds=patience)}
        try:
            return from_url(location, config=provider, client_options=options, retry_config=retries)
        except UnknownConfigurationKeyError as error:
            name = re.search(r"'([^']*)'", str(error))
            raise OptionError(
                f"option 'journal.{name[1] if name else '<name>'}' is unknown for {self.location}: "
                "use the names of obstore's configuration of that provider, or of its HTTP client"
            ) from None
        except (BaseError, ValueError, TypeError) as error:
            raise OptionError(
                f"{self._option} {self.location} cannot be opened: {self._cause(error)}"
            ) from None

    def _create(self, name: str, content: bytes, until: float) -> bool:
        try:
            if until == math.inf:
                self._repeated(lambda: obstore.put(self._ours, name, content, mode="create"), name)
            else:
                asyncio.run(asyncio.wait_for(self._put_new(name, content), until - time.monotonic()))
        except AlreadyExistsError:  # or it is being created by another writer in this moment
            return False
        except TimeoutError:
            raise self._late(name) from None
        return True

    async def _put_new(self, name: str, content: bytes) -> None:
        """Create a file, and repeat a request that failed; all end when the awaiting task does."""
        try:
            await obstore.put_async(self._ours, name, content, mode="create")
        except GenericError:
            with contextlib.suppress(FileNotFoundError):
                await obstore.get_async(self._ours, name)
            await obstore.put_async(self._ours, name, content, mode="create")

    def _replace(self, name: str, content: bytes) -> None:
        obstore.put(self._ours, name, content, use_multipart=False)

    def _read(self, name: str) -> bytes | None:
        try:
            return obstore.get(self._ours, name).bytes().to_bytes()
        except FileNotFoundError:
            return None

    def _sizes(self, folder: str) -> dict[str, int]:
        found = obstore.list_with_delimiter(self._ours, folder)
        files = {_last(each["path"]): each["size"] for each in found["objects"]}
        return {**files, **{_last(prefix): 0 for prefix in found["common_prefixes"]}}

    def _survey(self, after: str, watched: str | None) -> Survey:
        folders: defaultdict[str, dict[str, int]] = defaultdict(dict)
        versions: dict[str, str | None] = {}
        for each in self._behind(after):
            folder, _, name = each["path"].rpartition("/")
            folders[folder][name] = each["size"]
            versions[each["path"]] = each["e_tag"]

        def sizes(folder: str) -> Mapping[str, int]:
            return folders.get(folder, {}) if folder > after else self.sizes(folder)

        return Survey(versions.get(watched) if watched is not None else None, sizes)

    def _behind(self, after: str) -> Iterator[Any]:
        """Yield the batches behind one, and the commits; of files of others no more than a page."""
        last = ""
        for page in obstore.list(self._ours, offset=f"{after}/~", chunk_size=_PAGE):
            yield from page
            last = page[-1]["path"]
            if last > "batches/~":
                break
        if last <= "commits/~":
            for page in obstore.list(self._ours, "commits"):
                yield from page

    def _remove_all(self, files: Sequence[str], folders: Sequence[str], seen: Survey) -> None:
        names = [*files, *(f"{folder}/{name}" for folder in folders for name in seen.sizes(folder))]
        if names:
            self._delete(names)

    def _remove(self, folder: str) -> None:
        names = [each["path"] for each in obstore.list(self._ours, folder).collect()]
        if names:
            self._delete(names)

    def _remove_file(self, name: str) -> None:
        self._delete([name])

    def _delete(self, names: list[str]) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._repeated(lambda: obstore.delete(self._ours, names), names[0])

    def _make_folder(self, name: str) -> None:
        """Do nothing: an object store has no folders."""

    def _sweep(self, folder: str) -> None:
        """Do nothing: an object store shows no file before it is whole."""

    @property
    def _ours(self) -> Any:
        """The store, unless a request would wait for ever: the client's threads do not outlive a fork."""
        if _used_by.setdefault("process", os.getpid()) != os.getpid():
            raise JournalError(
                f"{self._option} {self.location} cannot be used after a fork, because the process before it "
                "has used an object store: start this one by 'spawn'"
            )
        return self._store

    def _repeated(self, request: Callable[[], T], name: str) -> T:
        """Send a request twice if its answer was lost; the library repeats only those that read or replace.

        A read of the file comes between the two: it waits for the store to come back, or raises why it cannot
        be used.
        """
        try:
            return request()
        except GenericError:
            self._read(name)
            return request()

    def _error(self, error: Exception) -> JournalError:
        where = f"{self._option} {self.location}"
        cause = self._cause(error)
        if isinstance(error, FileNotFoundError):
            return JournalMissingError(
                f"{where}: the bucket or container '{self._bucket}' is not there ({cause}): create it, or "
                "correct the URL, the endpoint or the region"
            )
        if isinstance(error, PermissionDeniedError | UnauthenticatedError):
            return JournalError(
                f"{where}: access to '{self._bucket}' is denied ({cause}): driver and executors need "
                "credentials that may list, read, write and delete there"
            )
        return JournalError(
            f"{where}: the store of '{self._bucket}' cannot be used ({cause}): check the endpoint, the "
            "region, the credentials and the network, on driver and executors"
        )

    def _cause(self, error: Exception) -> str:
        """Return what the store or the client says, in short: no request, signature or option."""
        text, _, details = str(error).partition("\n\nDebug source:")
        status = re.search(r"status code: (\d+ [\w ]*\w)", text)
        said = re.search(r"<Message>([^<]+)</Message>", text) or re.search(r'"message":\s*"([^"]+)"', text)
        reason = re.search(r'message: "([^"]+)"', details) or re.search(r'"([^"]*error[^"]*)"', details)
        if _METADATA in text:
            return "no credentials are in the environment or the options, and this machine has no role"
        parts = [match[1] for match in (status, said or (None if status else reason)) if match]
        return self._shown(": ".join(parts) or text)[:_LONGEST_CAUSE]

    def _shown(self, text: str) -> str:
        text = super()._shown(text)
        for secret in self._secrets:
            text = text.replace(secret, "…")
        return text


def _unprefixed(name: str) -> str:
    return re.sub(r"^(aws|azure|google|gcs)_", "", name)


def _last(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]
