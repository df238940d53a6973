"""The options of the Pulsar binding, from the connection string and from `pulsar.<name>` options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from babelqueue_spark.bindings.contract import BindingConfig
from babelqueue_spark.bindings.options import (
    OptionTable,
    Parsers,
    flag,
    milliseconds,
    name,
    takes,
    whole_seconds,
)
from babelqueue_spark.errors import OptionError


@takes("a URL such as http://host:8080, without a login")
def _endpoint(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        raise ValueError(text)
    _ = parts.port
    return text.rstrip("/")


_OWN: Parsers = {
    "subscription": name,
    "topic_prefix": str,
    "token": name,
    "admin_url": _endpoint,
    "batching": flag,
    "operation_timeout_seconds": whole_seconds,
    "connection_timeout_ms": milliseconds(1, 999_999),
}

_TLS: Parsers = {
    "tls_trust_certs_file_path": str,
    "tls_certificate_file_path": str,
    "tls_private_key_file_path": str,
    "tls_validate_hostname": flag,
}

_TABLE = OptionTable(
    broker="pulsar",
    own=_OWN,
    tls=_TLS,
    tls_scheme="pulsar+ssl",
    of_client={"subscription_name": "subscription", "batching_enabled": "batching"},
)


@dataclass(frozen=True, kw_only=True)
class PulsarOptions:
    """What the binding makes of its configuration: the options of the package, and what follows from them.

    Attributes:
        address: `host:port`, several with commas, as shown in errors.
        tls: the `tls_` options.
    """

    url: str = field(repr=False)
    address: str
    subscription: str = "babelqueue"
    topic_prefix: str = ""
    token: str | None = field(default=None, repr=False)
    admin_url: str | None = None
    batching: bool = False
    operation_timeout_seconds: int = 15
    connection_timeout_ms: int = 10_000
    tls: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def send_timeout_ms(self) -> int:
        return 2_000 * self.operation_timeout_seconds

    @property
    def silence_limit(self) -> float:
        """Seconds until a broker that says nothing is given up: a send, or a claim and what it closes."""
        return 3 * self.operation_timeout_seconds + self.connection_timeout_ms / 1000

    @classmethod
    def parse(cls, config: BindingConfig) -> PulsarOptions:
        address, secure = _address(config.url)
        given = _TABLE.parse(config)
        secure = secure or given.get("admin_url", "").startswith("https://")
        tls = _TABLE.tls_of(given, secure=secure)
        if ("tls_certificate_file_path" in tls) != ("tls_private_key_file_path" in tls):
            raise OptionError(
                "pulsar.tls_certificate_file_path and pulsar.tls_private_key_file_path are needed together"
            )
        if "token" in given and "tls_certificate_file_path" in tls:
            raise OptionError("pulsar.token and pulsar.tls_certificate_file_path are two logins: use one")
        return cls(url=config.url, address=address, tls=tls, **given)


def _address(url: str) -> tuple[str, bool]:
    """Return what errors show of it, and whether it is TLS."""
    try:
        parts = urlsplit(url)
        if parts.scheme not in ("pulsar", "pulsar+ssl") or "@" in parts.netloc or parts.query:
            raise ValueError(parts.scheme)
        for host in parts.netloc.split(","):
            if not urlsplit(f"//{host}").hostname:
                raise ValueError(host)
            _ = urlsplit(f"//{host}").port
    except ValueError:
        raise OptionError(
            "the Pulsar URL cannot be read: write pulsar://host:6650 (pulsar+ssl:// for TLS, several hosts "
            "with commas between), and a token in pulsar.token"
        ) from None
    return parts.netloc, parts.scheme == "pulsar+ssl"
