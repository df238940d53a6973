"""The options of the Redis binding, from the connection string and from `redis.<name>` options."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import parse_qs, unquote, urlsplit

from babelqueue_spark.bindings.contract import BindingConfig
from babelqueue_spark.bindings.options import SSL, OptionTable, Parsers, flag, seconds, takes, whole
from babelqueue_spark.errors import OptionError

DEFAULT_VISIBILITY = 90
DEFAULT_PREFIX = "queues:"

Topology = Literal["single", "cluster", "sentinel"]

_TOPOLOGIES: dict[str, Topology] = {"": "single", "cluster": "cluster", "sentinel": "sentinel"}
_PORTS: dict[Topology, int] = {"single": 6379, "cluster": 6379, "sentinel": 26379}
_SENTINEL_SECONDS = 3.0


@takes("a time such as '90s', or 'none'")
def _seconds_or_never(text: str) -> float | None:
    return None if text.strip().lower() in ("null", "none") else seconds(text)


_OWN: Parsers = {
    "laravel": flag,
    "laravel_compat": flag,
    "prefix": str,
    "retry_after": _seconds_or_never,
    "reclaim_idle": seconds,
}

_CLIENT: Parsers = {
    "username": str,
    "password": str,
    "client_name": str,
    "db": whole(0),
    "protocol": whole(2, 3),
    "socket_timeout": seconds,
    "socket_connect_timeout": seconds,
    "socket_keepalive": flag,
    "health_check_interval": seconds,
}

_SENTINEL: Parsers = {"sentinel_username": str, "sentinel_password": str}

_TLS: Parsers = {**SSL, "ssl_ca_path": str, "ssl_cert_reqs": str}

_TABLE = OptionTable(broker="redis", own={**_OWN, **_CLIENT, **_SENTINEL}, tls=_TLS, tls_scheme="rediss")
_DEFAULTS = {"socket_connect_timeout": 10.0, "socket_timeout": 30.0}
# A client of a cluster asks one node after the other.
_OF_A_CLUSTER = {"socket_connect_timeout": 5.0, "socket_timeout": 10.0}


@dataclass(frozen=True, kw_only=True)
class RedisOptions:
    """What the binding makes of its configuration: the options of the package, and what follows from them.

    Attributes:
        nodes: host and port of the server, of some nodes of the cluster, or of the Sentinels.
        service: the name by which Sentinels know the servers; empty elsewhere.
        client, sentinel_client: further arguments of the clients.
        visibility: whole seconds a claim may stay unacknowledged; None = for ever.
    """

    topology: Topology
    nodes: tuple[tuple[str, int], ...]
    service: str
    secure: bool
    client: Mapping[str, Any] = field(repr=False)
    sentinel_client: Mapping[str, Any] = field(repr=False)
    laravel: bool
    prefix: str
    visibility: int | None
    reclaim_idle: float | None

    @property
    def address(self) -> str:
        return ",".join(f"{host}:{port}" for host, port in self.nodes)

    @property
    def silence_limit(self) -> float:
        """Seconds until servers that say nothing are given up."""
        server = float(self.client["socket_connect_timeout"] + self.client["socket_timeout"])
        if self.topology != "sentinel":
            return len(self.nodes) * server
        return server + len(self.nodes) * 2 * _SENTINEL_SECONDS

    @classmethod
    def parse(cls, config: BindingConfig) -> RedisOptions:
        url = _split(config.url)
        values = {**url.login, **_TABLE.parse(config, url.query)}
        tls = _TABLE.tls_of(values, secure=url.secure)
        sentinel = {name: values.pop(f"sentinel_{name}", None) for name in ("username", "password")}
        if any(sentinel.values()) and url.topology != "sentinel":
            raise OptionError("redis.sentinel_password needs a URL that starts with redis+sentinel://")
        if url.topology == "cluster" and values.pop("db", 0):
            raise OptionError(
                "a Redis Cluster has no databases but 0: remove the number from the URL, or redis.db"
            )
        if "health_check_interval" in values and url.topology == "cluster":
            raise OptionError("redis.health_check_interval has no effect in a Redis Cluster: remove it")
        laravel = values.pop("laravel", False) | values.pop("laravel_compat", False)
        prefix = values.pop("prefix", "") or DEFAULT_PREFIX
        visibility = values.pop("retry_after", DEFAULT_VISIBILITY)
        reclaim_idle = values.pop("reclaim_idle", None)
        if config.visibility_timeout is not None:
            visibility = config.visibility_timeout
        if visibility is not None and not 0 <= visibility < math.inf:
            raise OptionError("redis: the visibility timeout must be a number of seconds, 0 or more")
        if laravel and reclaim_idle is not None:
            raise OptionError(
                "redis.reclaim_idle is for the default layout: Laravel's has no claim without deadline"
            )
        defaults = _OF_A_CLUSTER if url.topology == "cluster" else _DEFAULTS
        client = {**defaults, **values, **tls}
        timeouts = {
            name: min(client[name], _SENTINEL_SECONDS)
            for name in ("socket_connect_timeout", "socket_timeout")
        }
        return cls(
            topology=url.topology,
            nodes=url.nodes,
            service=url.service,
            secure=url.secure,
            client=client,
            sentinel_client={**tls, **sentinel, **timeouts},
            laravel=laravel,
            prefix=prefix,
            visibility=None if visibility is None else math.ceil(visibility),
            reclaim_idle=reclaim_idle,
        )


@dataclass(frozen=True, kw_only=True)
class _Url:
    """The parts of a connection string; `login` has the user, the password and the database it names."""

    topology: Topology
    secure: bool
    nodes: tuple[tuple[str, int], ...]
    service: str
    login: Mapping[str, Any] = field(repr=False)
    query: Mapping[str, str] = field(repr=False)


def _split(url: str) -> _Url:
    """Read a connection string; it may name several hosts, which `urlsplit` takes for one."""
    try:
        scheme, _, rest = url.partition("://")
        base, _, topology = scheme.lower().partition("+")
        authority = re.split("[/?#]", rest, maxsplit=1)[0]
        user, _, hosts = authority.rpartition("@")
        parts = urlsplit(rest.removeprefix(authority))
        path = [unquote(part) for part in parts.path.split("/")[1:] if part]
        if base not in ("redis", "rediss") or topology not in _TOPOLOGIES:
            raise ValueError(scheme)
        kind = _TOPOLOGIES[topology]
        service = path.pop(0) if kind == "sentinel" else ""
        nodes = tuple(_address(host, _PORTS[kind]) for host in hosts.split(","))
        if len(path) > 1 or (kind == "single" and len(nodes) > 1):
            raise ValueError(path)
        query = {name.lower(): values[-1] for name, values in parse_qs(parts.query).items()}
        login: dict[str, Any] = {"db": int(path[0])} if path else {}
    except (ValueError, IndexError):
        raise OptionError(
            "the Redis URL cannot be read: write redis://[user:password@]host:port/db, "
            "redis+cluster://[user:password@]host:port,host:port, or "
            "redis+sentinel://[user:password@]host:port,host:port/service/db (rediss… for TLS), "
            "with special characters of a password percent-encoded"
        ) from None
    username, _, password = user.partition(":")
    login |= {"username": unquote(username)} if username else {}
    login |= {"password": unquote(password)} if password else {}
    return _Url(
        topology=kind, secure=base == "rediss", nodes=nodes, service=service, login=login, query=query
    )


def _address(text: str, port: int) -> tuple[str, int]:
    """Host and port; `ValueError` for what names none."""
    parts = urlsplit(f"//{text}")
    if parts.path or parts.query or parts.fragment:
        raise ValueError(text)
    return parts.hostname or "localhost", parts.port or port
