"""The options of the Artemis binding, from the connection string and from `artemis.<name>` options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

from babelqueue_spark.bindings.contract import BindingConfig
from babelqueue_spark.bindings.options import SSL, OptionTable, Parsers, flag, milliseconds, timeout
from babelqueue_spark.errors import OptionError

_OWN: Parsers = {
    "timeout": timeout,
    "time_to_live_ms": milliseconds(1, (1 << 32) - 1),
    "duplicate_detection": flag,
}

_TABLE = OptionTable(broker="artemis", own=_OWN, tls=SSL, tls_scheme="artemis+ssl")
_PORTS = {"artemis": 5672, "artemis+ssl": 5671}


@dataclass(frozen=True, kw_only=True)
class ArtemisOptions:
    """What the binding makes of its configuration: the options of the package, and what follows from them.

    Attributes:
        user, password: None = an anonymous login.
        tls: the `ssl_` options.
    """

    host: str
    port: int
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    secure: bool = False
    timeout: float = 30.0
    time_to_live_ms: int | None = None
    duplicate_detection: bool = False
    tls: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def parse(cls, config: BindingConfig) -> ArtemisOptions:
        place = _of_url(config.url)
        given = _TABLE.parse(config)
        tls = _TABLE.tls_of(given, secure=place["secure"])
        return cls(**place, **given, tls=tls)

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"


def _of_url(url: str) -> dict[str, Any]:
    try:
        parts = urlsplit(url)
        if parts.scheme not in _PORTS or not parts.hostname or parts.query or parts.path not in ("", "/"):
            raise ValueError(parts.scheme)
        port = parts.port or _PORTS[parts.scheme]
    except ValueError:
        raise OptionError(
            "the Artemis URL cannot be read: write artemis://[user:password@]host:port (artemis+ssl:// for "
            "TLS), with special characters of a password percent-encoded"
        ) from None
    return {
        "host": parts.hostname,
        "port": port,
        "user": None if parts.username is None else unquote(parts.username),
        "password": None if parts.password is None else unquote(parts.password),
        "secure": parts.scheme == "artemis+ssl",
    }
