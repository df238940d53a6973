"""Talk to a Redis: scripts, failovers, and errors that say what to do."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import pyarrow as pa
from redis import exceptions

from babelqueue_spark.bindings.advice import Advice, denied, forbidden, full, unreachable
from babelqueue_spark.bindings.clocks import ServerClock
from babelqueue_spark.bindings.redis.options import RedisOptions
from babelqueue_spark.bindings.redis.topologies import (
    Deployment,
    SentinelLoginError,
    SentinelsSilentError,
    ServiceUnknownError,
    opened,
)
from babelqueue_spark.errors import BrokerError

FAILOVER_SECONDS = 60.0
"""How long a new primary is waited for. Sentinels give an old one up after 30 s, clusters after 15 s."""

_POLL_SECONDS = 0.2
_SCANS = 100
_KEYS_A_SCAN = 1_000

_SCRIPTS = {
    "browse": ("common", "browse"),
    "default_backlog": ("clock", "common", "claims", "default_backlog"),
    "default_claim": ("clock", "common", "processing", "claims", "default_claim"),
    "default_publish": ("clock", "common", "default_publish"),
    "default_reclaim": ("clock", "common", "processing", "default_reclaim"),
    "default_recover": ("clock", "common", "processing", "claims", "default_recover"),
    "default_settle": ("common", "processing", "default_settle"),
    "default_settle_claims": ("common", "claims", "default_settle_claims"),
    "keep_once": ("common", "keep_once"),
    "laravel_backlog": ("clock", "laravel_backlog"),
    "laravel_claim": ("clock", "common", "laravel_claim"),
    "laravel_publish": ("clock", "common", "laravel_publish"),
    "laravel_settle": ("common", "laravel_settle"),
}

_OF_A_CLUSTER = Advice("it is part of a Redis Cluster: use a URL that starts with redis+cluster://")

# A class where redis-py has one, and the code by which an error inside a script is known.
_ADVICE: tuple[tuple[type[Exception] | None, str, Advice], ...] = (
    (
        exceptions.AuthenticationError,
        "NOAUTH|WRONGPASS",
        denied("it refused the login: check user and password"),
    ),
    (exceptions.NoPermissionError, "NOPERM", forbidden("this user may not do that: extend its ACL")),
    (exceptions.ReadOnlyError, "READONLY", Advice("it is a read-only replica: use the URL of the primary")),
    (exceptions.OutOfMemoryError, "OOM", full("it is out of memory: raise maxmemory, or drain its queues")),
    (exceptions.BusyLoadingError, "LOADING", unreachable("it is still loading its data: retry later")),
    (None, "WRONGTYPE", Advice("a key of the queue holds another kind of value: choose another queue")),
    (
        exceptions.ClusterDownError,
        "",
        unreachable("some slots of the cluster have no primary: check its nodes"),
    ),
    (exceptions.ClusterCrossSlotError, "CROSSSLOT", _OF_A_CLUSTER),
    (exceptions.AskError, "MOVED", _OF_A_CLUSTER),
    (None, "NOREPLICAS", unreachable("too few replicas follow it (min-replicas-to-write): start them")),
    (
        None,
        "Cluster mode is not enabled",
        Advice("it is not part of a Redis Cluster: use a URL that starts with redis:// or rediss://"),
    ),
    (None, "same key slot", Advice("the name of the queue has no hash tag: write it in braces")),
    (
        exceptions.RedisClusterException,
        "",
        unreachable(
            "no node of the cluster answers, or some slots have no primary: check hosts, port and TLS"
        ),
    ),
    (SentinelsSilentError, "", unreachable("no Sentinel answers: check hosts, port and TLS")),
    (
        SentinelLoginError,
        "",
        denied("the Sentinels refused the login: check redis.sentinel_username and redis.sentinel_password"),
    ),
    (
        ServiceUnknownError,
        "",
        Advice("the Sentinels watch no servers of this name: put theirs into the URL, behind the hosts"),
    ),
    (
        exceptions.ClusterError,
        "",
        unreachable("the slot of this queue is on its way to another node: retry later"),
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
    (
        None,
        "Timeout connecting",
        unreachable("it did not answer while connecting: check host, port, and whether that port has TLS"),
    ),
    (exceptions.TimeoutError, "", unreachable("it did not answer in time: raise redis.socket_timeout")),
    (exceptions.ConnectionError, "", unreachable("it cannot be reached: check host, port and TLS")),
)


# redis-py shows the command of a pipeline before its error, and so may show a message.
_BEHIND_THE_COMMAND = " of pipeline caused error: "

_ERRORS = (exceptions.RedisError, exceptions.RedisClusterException)
"""What redis-py raises."""

_FAILOVER: tuple[type[Exception], ...] = (
    exceptions.ConnectionError,
    exceptions.TimeoutError,
    exceptions.ReadOnlyError,
    exceptions.ClusterDownError,
)
_NO_FAILOVER = (exceptions.AuthenticationError, exceptions.InvalidResponse, exceptions.MaxConnectionsError)
_NOT_CARRIED_OUT = (exceptions.BusyLoadingError, exceptions.ReadOnlyError, exceptions.ClusterDownError)


class RedisClient:
    """A connection made at the first command, in the process that needs it.

    Where replicas may become primaries, a command that fails ends after the failover: its repetition finds
    the new primary. This class repeats what is harmless, Spark its tasks.
    """

    def __init__(self, options: RedisOptions) -> None:
        self._options = options
        self._clock = ServerClock(f"Redis at {options.address}")
        self._deployment: Deployment | None = None

    def run(self, script: str, keys: Sequence[str], args: Sequence[Any], *, repeatable: bool = False) -> Any:
        """Return the answer of a script; a `repeatable` one may be run again where no answer came."""
        source = _source(script)
        digest = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()

        def ask(redis: Deployment) -> Any:
            words = ("EVALSHA", digest, len(keys), *keys, *args)
            try:
                return redis.client.execute_command(*words)
            except exceptions.NoScriptError:
                redis.client.execute_command("SCRIPT LOAD", source, **redis.node(keys[0]))
                return redis.client.execute_command(*words)

        return self._answer(ask, keys[0], repeatable)

    def ask(self, *commands: Sequence[Any]) -> list[Any]:
        """Return the answers of several commands that may be repeated, in one round trip (to each node)."""

        def ask(redis: Deployment) -> list[Any]:
            pipeline = redis.client.pipeline(transaction=False)
            for command in commands:
                pipeline.execute_command(*command)
            return list(pipeline.execute())

        return list(self._answer(ask, None, repeatable=True))

    def lists(self, pattern: str) -> list[bytes]:
        """Names of lists that match, among the first keys of the server; none in a cluster."""
        if self._options.topology == "cluster":
            return []

        def ask(redis: Deployment) -> list[bytes]:
            cursor, found = 0, []
            for _ in range(_SCANS):
                cursor, keys = redis.client.scan(cursor, match=pattern, count=_KEYS_A_SCAN, _type="list")
                found += keys
                if not cursor:
                    break
            return found

        return list(self._answer(ask, None, repeatable=True))

    def append(self, queue: str, values: pa.BinaryArray) -> int:
        self._answer(
            lambda redis: redis.client.execute_command("RPUSH", queue, *redis.arguments(values)),
            queue,
            repeatable=False,
        )
        return len(values)

    def append_once(self, queue: str, values: pa.BinaryArray, idempotency_key: str, seconds: int) -> int:
        """Append values to a list unless the key is known; how many. No value passes through Lua.

        A user who lacks a right has nothing appended: the server refuses a transaction as a whole for what it
        is told before EXEC. So a transaction goes ahead of it, and what the script may do is told in it.
        """

        def append(redis: Deployment) -> int:
            redis.client.pipeline(transaction=True).execute_command("TIME").execute()
            transaction = redis.client.pipeline(transaction=True)
            transaction.execute_command("LTRIM", queue, 0, -1)
            transaction.execute_command("SET", idempotency_key, 1, "XX", "KEEPTTL")
            transaction.execute_command("RPUSH", queue, *redis.arguments(values))
            transaction.eval(_source("keep_once"), 2, queue, idempotency_key, len(values), seconds)
            return int(transaction.execute()[-1])

        return int(self._answer(append, queue, repeatable=False))

    def now(self) -> float:
        """Seconds since 1970, by the server's clock as it was when this connection was made."""
        self._answer(lambda _: None, None, repeatable=True)
        return self._clock.now()

    def close(self) -> None:
        if self._deployment is not None:
            self._deployment.close()
        self._deployment = None

    def _answer(self, ask: Callable[[Deployment], Any], key: str | None, repeatable: bool) -> Any:
        until = time.monotonic() + FAILOVER_SECONDS
        while True:
            sent = False
            try:
                redis = self._connected(key)
                sent = True
                return ask(redis)
            except _ERRORS as error:
                if not self._fails_over(error) or not self._primary_answers(key, until):
                    raise self._explained(error) from None
                if sent and not repeatable and not isinstance(error, _NOT_CARRIED_OUT):
                    raise self._explained(error) from None

    def _connected(self, key: str | None) -> Deployment:
        if self._deployment is None:
            redis = opened(self._options)
            try:
                node = redis.node(key)
                _time_of(redis, node)  # connects: what that takes is not the server's time
                self._clock.read(lambda: _time_of(redis, node))
            except _ERRORS as error:
                why = redis.why(error)
                redis.close()
                raise why from None
            except BaseException:
                redis.close()
                raise
            self._deployment = redis
        return self._deployment

    def _fails_over(self, error: Exception) -> bool:
        """Return whether it may be that a replica becomes the primary."""
        if self._options.topology == "single" or isinstance(error, _NO_FAILOVER):
            return False
        return isinstance(error, _FAILOVER) or "slots are not covered" in str(error).lower()

    def _primary_answers(self, key: str | None, until: float) -> bool:
        """Wait until a primary answers; False where that is too late, or where there is none to come."""
        while time.monotonic() < until:
            self.close()
            time.sleep(_POLL_SECONDS)
            try:
                self._connected(key)
            except _ERRORS as error:
                if not self._fails_over(error):
                    return False
            else:
                return True
        return False

    def _explained(self, error: Exception) -> BrokerError:
        advice = _advice(error)
        return advice.error(f"Redis at {self._options.address}: {advice.text}")


def _time_of(redis: Deployment, node: dict[str, Any]) -> float:
    seconds, microseconds = redis.client.time(**node)
    return float(seconds + microseconds / 1_000_000)


@cache
def _source(script: str) -> str:
    folder = files(__package__) / "scripts"
    return "\n".join((folder / f"{part}.lua").read_text(encoding="utf-8") for part in _SCRIPTS[script])


def _advice(error: Exception) -> Advice:
    if isinstance(error.__cause__, exceptions.AuthenticationError):  # of the node that tells of a cluster
        error = error.__cause__
    text = str(error).rpartition(_BEHIND_THE_COMMAND)[2]
    for kind, code, advice in _ADVICE:
        if (kind and isinstance(error, kind)) or (code and re.search(code, text)):
            return advice
    return Advice(next(iter(text.splitlines()), type(error).__name__))
