"""One connection to a Redis server: scripts, and errors that say what to do."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from typing import Any

from redis import Connection, Redis, SSLConnection, exceptions
from redis.backoff import NoBackoff
from redis.commands.core import Script
from redis.retry import Retry

from babelqueue_spark.bindings.advice import Advice, denied, failed, full, unreachable
from babelqueue_spark.bindings.clocks import ServerClock
from babelqueue_spark.bindings.redis.options import RedisOptions

_SCRIPTS = {
    "browse": ("common", "browse"),
    "default_backlog": ("clock", "common", "claims", "default_backlog"),
    "default_claim": ("clock", "common", "processing", "claims", "default_claim"),
    "default_publish": ("clock", "common", "default_publish"),
    "default_reclaim": ("clock", "common", "processing", "default_reclaim"),
    "default_recover": ("clock", "common", "processing", "claims", "default_recover"),
    "default_settle": ("common", "processing", "default_settle"),
    "default_settle_claims": ("common", "claims", "default_settle_claims"),
    "laravel_backlog": ("clock", "laravel_backlog"),
    "laravel_claim": ("clock", "common", "laravel_claim"),
    "laravel_publish": ("clock", "common", "laravel_publish"),
    "laravel_settle": ("common", "laravel_settle"),
}

# A class where redis-py has one, and the code by which an error inside a script is known.
_ADVICE: tuple[tuple[type[exceptions.RedisError] | None, str, Advice], ...] = (
    (
        exceptions.AuthenticationError,
        "NOAUTH|WRONGPASS",
        denied("it refused the login: check user and password"),
    ),
    (exceptions.NoPermissionError, "NOPERM", denied("this user may not do that: extend its ACL")),
    (exceptions.ReadOnlyError, "READONLY", failed("it is a read-only replica: use the URL of the primary")),
    (exceptions.OutOfMemoryError, "OOM", full("it is out of memory: raise maxmemory, or drain its queues")),
    (exceptions.BusyLoadingError, "LOADING", unreachable("it is still loading its data: retry later")),
    (None, "WRONGTYPE", failed("a key of the queue holds another kind of value: choose another queue")),
    (
        None,
        "CROSSSLOT|MOVED",
        failed("it is part of a Redis Cluster, which is not supported: use a single primary"),
    ),
    (
        exceptions.InvalidResponse,
        "",
        unreachable("what answers there does not speak Redis: check host, port and TLS"),
    ),
    (
        None,
        "closed by server|reset by peer|Broken pipe|UNEXPECTED_EOF",
        unreachable("the connection was lost: look for a restart, or for what ends connections in between"),
    ),
    (exceptions.TimeoutError, "", unreachable("it did not answer in time: raise redis.socket_timeout")),
    (exceptions.ConnectionError, "", unreachable("it cannot be reached: check host, port and TLS")),
)


class _OpenedAgain(Connection):
    """A connection that is opened again, once, where it ends before anything was asked of it."""

    def connect(self) -> None:
        try:
            super().connect()  # type: ignore[no-untyped-call]
        except exceptions.ConnectionError as error:
            if type(error) is not exceptions.ConnectionError:  # a subclass: the server said why
                raise
            super().connect()  # type: ignore[no-untyped-call]


class _OpenedAgainTls(_OpenedAgain, SSLConnection):
    """The same, with TLS."""


class RedisClient:
    """A connection made at the first command, in the process that needs it."""

    def __init__(self, options: RedisOptions) -> None:
        self._options = options
        self._clock = ServerClock(f"Redis at {options.address}")
        self._client: Redis | None = None
        self._scripts: dict[str, Script] = {}

    def run(self, script: str, keys: Sequence[str], args: Sequence[Any]) -> Any:
        """The answer of a script."""
        with self._explained():
            if script not in self._scripts:
                self._scripts[script] = self._connected().register_script(_source(script))
            return self._scripts[script](keys=keys, args=args)

    def ask(self, *commands: Sequence[Any]) -> list[Any]:
        """The answers of several commands, in one round trip."""
        with self._explained():
            pipeline: Any = self._connected().pipeline(transaction=False)
            for command in commands:
                pipeline.execute_command(*command)
            return list(pipeline.execute())

    def now(self) -> float:
        """Seconds since 1970, by the server's clock as it was when this connection was made."""
        with self._explained():
            self._connected()
        return self._clock.now()

    def close(self) -> None:
        """Close the connection; idempotent."""
        if self._client is not None:
            self._client.close()
        self._client = None
        self._scripts.clear()

    def _connected(self) -> Redis:
        if self._client is None:
            # A command that was sent is not sent again: the first may have been carried out.
            secure = self._options.url.startswith("rediss:")
            client = Redis.from_url(
                self._options.url,
                connection_class=_OpenedAgainTls if secure else _OpenedAgain,
                retry=Retry(NoBackoff(), 0),
                **self._options.client,
            )
            try:
                _time_of(client)  # connects: what that takes is not the server's time
                self._clock.read(lambda: _time_of(client))
            except BaseException:
                client.close()
                raise
            self._client = client
        return self._client

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except exceptions.RedisError as error:
            advice = _advice(error)
            raise advice.error(f"Redis at {self._options.address}: {advice.text}") from None


def _time_of(client: Redis) -> float:
    seconds, microseconds = client.time()
    return float(seconds + microseconds / 1_000_000)


@cache
def _source(script: str) -> str:
    folder = files(__package__) / "scripts"
    return "\n".join((folder / f"{part}.lua").read_text(encoding="utf-8") for part in _SCRIPTS[script])


def _advice(error: exceptions.RedisError) -> Advice:
    text = str(error)
    for kind, code, advice in _ADVICE:
        if (kind and isinstance(error, kind)) or (code and re.search(code, text)):
            return advice
    return failed(next(iter(text.splitlines()), type(error).__name__))
