"""The clients of redis-py: of one server, of a Redis Cluster, of servers that Sentinels watch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from redis import Connection, Redis, RedisCluster, Sentinel, SSLConnection, exceptions
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError

from babelqueue_spark.bindings.redis.options import RedisOptions
from babelqueue_spark.bindings.redis.packer import Packer

# redis-py has no types for these.
_CLUSTER: Any = RedisCluster
_NODE: Any = ClusterNode
_SENTINEL: Any = Sentinel


class SentinelsSilentError(exceptions.RedisError):
    """No Sentinel answers."""


class SentinelLoginError(exceptions.RedisError):
    """The Sentinels refuse the login."""


class ServiceUnknownError(exceptions.RedisError):
    """The Sentinels watch no servers of this name."""


class Deployment:
    """Open clients of one deployment of Redis. No client sends a command twice."""

    client: Any

    def node(self, key: str | bytes | None) -> dict[str, Any]:
        """Return arguments that send a command without keys to the node of `key`, or to any."""
        del key
        return {}

    def close(self) -> None:
        """Close all connections."""
        self.client.close()

    def arguments(self, values: pa.BinaryArray) -> Sequence[Any]:
        """Return the last arguments of a command that sends these values: the array itself, for `Packer`."""
        return [values]

    def why(self, error: Exception) -> Exception:
        """Return a more telling error, where the deployment can find one out."""
        return error


class SingleServer(Deployment):
    """One server."""

    def __init__(self, options: RedisOptions) -> None:
        [(host, port)] = options.nodes
        self.client: Redis = Redis.from_url(
            "redis://",
            host=host,
            port=port,
            connection_class=_OpenedAgainTls if options.secure else _OpenedAgain,
            retry=_once(),
            command_packer=Packer(),
            **options.client,
        )


class Cluster(Deployment):
    """A Redis Cluster, which some of its nodes tell of."""

    def __init__(self, options: RedisOptions) -> None:
        self.client = _CLUSTER(
            startup_nodes=[_NODE(host, port) for host, port in options.nodes],
            retry=_once(),
            ssl=options.secure,
            **options.client,
        )
        # Of redis-py 5, where `retry` means the connections.
        self.client.cluster_error_retry_attempts = 0

    def arguments(self, values: pa.BinaryArray) -> Sequence[Any]:
        arguments: list[bytes] = values.to_pylist()
        return arguments

    def node(self, key: str | bytes | None) -> dict[str, Any]:
        found = self.client.get_default_node() if key is None else self.client.get_node_from_key(key)
        return {"target_nodes": found}


class WatchedServers(Deployment):
    """A primary and its replicas; Sentinels tell which is the primary."""

    def __init__(self, options: RedisOptions) -> None:
        self._service = options.service
        sentinel_client = {**options.sentinel_client, "ssl": options.secure, "retry": _once()}
        self._sentinel = _SENTINEL(options.nodes, sentinel_kwargs=sentinel_client)
        self.client: Redis = self._sentinel.master_for(
            self._service, ssl=options.secure, retry=_once(), command_packer=Packer(), **options.client
        )

    def close(self) -> None:
        super().close()
        for sentinel in self._sentinel.sentinels:
            sentinel.close()

    def why(self, error: Exception) -> Exception:
        if not isinstance(error, MasterNotFoundError):
            return error
        found: Exception = SentinelsSilentError()
        for sentinel in self._sentinel.sentinels:
            try:
                if self._service in sentinel.sentinel_masters():
                    return error
                found = ServiceUnknownError()
            except (exceptions.AuthenticationError, exceptions.NoPermissionError):
                found = SentinelLoginError()
            except exceptions.RedisError:
                continue
        return found


def opened(options: RedisOptions) -> Deployment:
    """Return the clients that a configuration asks for; those of a cluster connect at once."""
    if options.topology == "cluster":
        return Cluster(options)
    return WatchedServers(options) if options.topology == "sentinel" else SingleServer(options)


def _once() -> Retry:
    """Make a client send a command once: where no answer came, it may have been carried out."""
    return Retry(NoBackoff(), 0)


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
