"""The options of the Redis binding, from the connection string and from `redis.<name>` options."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit, urlunsplit

from babelqueue_spark.bindings.contract import BindingConfig
from babelqueue_spark.bindings.options import OptionTable, Parsers, flag, seconds, takes, whole
from babelqueue_spark.errors import OptionError

DEFAULT_VISIBILITY = 90
DEFAULT_PREFIX = "queues:"


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

_TLS: Parsers = {
    "ssl_ca_certs": str,
    "ssl_ca_path": str,
    "ssl_certfile": str,
    "ssl_keyfile": str,
    "ssl_password": str,
    "ssl_cert_reqs": str,
    "ssl_check_hostname": flag,
}

_TABLE = OptionTable(broker="redis", own={**_OWN, **_CLIENT}, tls=_TLS, tls_scheme="rediss")
_DEFAULTS = {"socket_connect_timeout": 10.0, "socket_timeout": 30.0}


@dataclass(frozen=True, kw_only=True)
class RedisOptions:
    """What the binding makes of its configuration.

    Attributes:
        url: the connection string without a query.
        client: further arguments of the client.
        address: `host:port` as shown in errors.
        laravel: Laravel's key layout in place of the SDKs' default one.
        prefix: what Laravel's layout puts before a queue's name.
        visibility: whole seconds a claim may stay unacknowledged; None = for ever.
        reclaim_idle: seconds after which an entry in flight without a deadline is given back; None = never.
    """

    url: str = field(repr=False)
    client: Mapping[str, Any] = field(repr=False)
    address: str
    laravel: bool
    prefix: str
    visibility: int | None
    reclaim_idle: float | None

    @property
    def silence_limit(self) -> float:
        """Seconds until a server that says nothing is given up."""
        return float(self.client["socket_connect_timeout"] + self.client["socket_timeout"])

    @classmethod
    def parse(cls, config: BindingConfig) -> RedisOptions:
        """Read a configuration; `OptionError` for what is unknown or cannot be used."""
        url, query, address = _split(config.url)
        values = _TABLE.parse(config, query)
        tls = _TABLE.tls_of(values, secure=url.startswith("rediss:"))
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
        return cls(
            url=url,
            client={**_DEFAULTS, **values, **tls},
            address=address,
            laravel=laravel,
            prefix=prefix,
            visibility=None if visibility is None else math.ceil(visibility),
            reclaim_idle=reclaim_idle,
        )


def _split(url: str) -> tuple[str, dict[str, str], str]:
    """The connection string without its query, the query, and `host:port`."""
    try:
        parts = urlsplit(url)
        query = {name.lower(): values[-1] for name, values in parse_qs(parts.query).items()}
        bare = urlunsplit(parts._replace(query="", fragment=""))
        if parts.scheme not in ("redis", "rediss"):
            raise ValueError(parts.scheme)
        address = f"{parts.hostname or 'localhost'}:{parts.port or 6379}"
    except ValueError:
        raise OptionError(
            "the Redis URL cannot be read: write redis://[user:password@]host:port/db "
            "(rediss:// for TLS), with special characters of a password percent-encoded"
        ) from None
    return bare, query, address
