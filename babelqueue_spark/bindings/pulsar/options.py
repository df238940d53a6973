"""The options of the Pulsar binding, from the connection string and from `pulsar.<name>` options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from babelqueue_spark.bindings.contract import BindingConfig
from babelqueue_spark.bindings.options import count, flag, name, values_of
from babelqueue_spark.errors import OptionError


def _endpoint(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        raise ValueError(text)
    _ = parts.port
    return text.rstrip("/")


_OWN: Mapping[str, Callable[[str], Any]] = {
    "subscription": name,
    "topic_prefix": str,
    "token": name,
    "admin_url": _endpoint,
    "batching": flag,
    "operation_timeout_seconds": count,
    "connection_timeout_ms": count,
}

_TLS: Mapping[str, Callable[[str], Any]] = {
    "tls_trust_certs_file_path": str,
    "tls_certificate_file_path": str,
    "tls_private_key_file_path": str,
    "tls_validate_hostname": flag,
}

_OPTIONS = {**_OWN, **_TLS}


@dataclass(frozen=True, kw_only=True)
class PulsarOptions:
    """What the binding makes of its configuration.

    Attributes:
        url: the service URL.
        address: its `host:port`, several with commas, as shown in errors.
        subscription: the Shared subscription that claims come from.
        topic_prefix: precedes the name of a queue to make it that of a topic.
        token: a JSON web token; None = no login, or by `tls_certificate_file_path`.
        admin_url: the HTTP endpoint that is asked for the backlog beyond what was looked at; None = none.
        batching: whether a producer joins messages to batches.
        operation_timeout_seconds: until the broker must have answered.
        connection_timeout_ms: until a connection must be made.
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

    @classmethod
    def parse(cls, config: BindingConfig) -> PulsarOptions:
        """Read a configuration; `OptionError` for what is unknown or cannot be used."""
        if config.visibility_timeout is not None:
            raise OptionError(
                "option 'visibilityTimeout' has no meaning for Pulsar, where a claim lasts as long as its "
                "connection: remove it"
            )
        address, secure = _address(config.url)
        given = values_of("pulsar", config.client_options, _OPTIONS)
        tls = {name: given.pop(name) for name in _TLS if name in given}
        if tls and not (secure or str(given.get("admin_url", "")).startswith("https://")):
            raise OptionError(f"pulsar.{next(iter(tls))} needs a URL that starts with pulsar+ssl://")
        if ("tls_certificate_file_path" in tls) != ("tls_private_key_file_path" in tls):
            raise OptionError(
                "pulsar.tls_certificate_file_path and pulsar.tls_private_key_file_path are needed together"
            )
        if "token" in given and "tls_certificate_file_path" in tls:
            raise OptionError("pulsar.token and pulsar.tls_certificate_file_path are two logins: use one")
        return cls(url=config.url, address=address, tls=tls, **given)


def _address(url: str) -> tuple[str, bool]:
    """What errors show of it, and whether it is TLS."""
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
