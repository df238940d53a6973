"""The options of the Service Bus binding, from the connection string and from `servicebus.<name>` options."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlsplit

from babelqueue_spark.bindings.contract import BindingConfig
from babelqueue_spark.bindings.options import OptionTable, Parsers, duration, flag, one_of, takes, whole
from babelqueue_spark.errors import OptionError

_PATIENCE = 45.0
_HANDSHAKE = 10.0
_LONGEST_READ = 5.0
_FIRST_PAUSE = 1.6
"""Seconds for which the client waits before it repeats a request; each time twice as long."""

SCHEMES = ("sb", "servicebus", "azureservicebus")


@takes("a text of 1 to 128 characters")
def _session(text: str) -> str:
    if not 0 < len(text) <= 128:
        raise ValueError(text)
    return text


@takes("one of amqp, websocket")
def _transport(text: str) -> str:
    return one_of("amqp", "websocket")(text.strip().lower().removeprefix("amqpover"))


_OWN: Parsers = {
    "transport": _transport,
    "custom_endpoint_address": str,
    "connection_verify": str,
    "tenant_id": str,
    "client_id": str,
    "client_secret": str,
    "sessions": flag,
    "session_id": _session,
    "duplicate_window": duration,
    "prefetch": whole(1, 50_000),
    "max_wait_time": duration,
    "retry_total": whole(0),
    "try_timeout": duration,
}
_OF_THE_CLIENT = {"transport_type": "transport", "prefetch_count": "prefetch"}
_TABLE = OptionTable(broker="servicebus", own=_OWN, of_client=_OF_THE_CLIENT)


@dataclass(frozen=True, kw_only=True)
class ServiceBusOptions:
    """What the binding makes of its configuration: the options of the package, and what follows from them.

    Attributes:
        connection_string: with a shared access key or signature; None = Azure AD.
        namespace: the host, with a port where the string has one; as shown in errors.
    """

    connection_string: str | None = field(default=None, repr=False)
    namespace: str
    transport: Literal["amqp", "websocket"] = "amqp"
    custom_endpoint_address: str | None = None
    connection_verify: str | None = None
    tenant_id: str | None = None
    client_id: str | None = None
    client_secret: str | None = field(default=None, repr=False)
    sessions: bool = False
    session_id: str | None = None
    duplicate_window: float = 0.0
    prefetch: int = 500
    max_wait_time: float = 1.0
    retry_total: int = 3
    try_timeout: float = 30.0

    @property
    def patience(self) -> float:
        """Seconds for which a request is repeated while the service is silent."""
        return max(_PATIENCE, self.try_timeout)

    @property
    def handshake(self) -> float:
        """Seconds in which the service must answer each step of a handshake."""
        return min(_HANDSHAKE, self.try_timeout)

    @property
    def longest_read(self) -> float:
        """Seconds after which the client looks at its clock again."""
        return min(_LONGEST_READ, self.try_timeout)

    @property
    def silence_limit(self) -> float:
        """Seconds until a service that says nothing is given up: the last try may begin as patience ends."""
        pauses = _FIRST_PAUSE * ((1 << self.retry_total) - 1)
        tries = (self.retry_total + 1) * (self.try_timeout + self.longest_read)
        return self.max_wait_time + min(self.patience + self.handshake, tries + pauses)

    @classmethod
    def parse(cls, config: BindingConfig) -> ServiceBusOptions:
        given = _TABLE.parse(config)
        if ("client_secret" in given) and not {"client_id", "tenant_id"} <= given.keys():
            raise OptionError(
                "servicebus.client_secret needs servicebus.client_id and servicebus.tenant_id beside it"
            )
        connection_string, namespace = _of_url(config.url)
        return cls(connection_string=connection_string, namespace=namespace, **given)


def _of_url(url: str) -> tuple[str | None, str]:
    """Return the connection string, if it is one, and the host."""
    try:
        if url.partition("://")[0].lower() in SCHEMES:
            parts = urlsplit(url)
            if not parts.hostname or parts.username or parts.query or parts.path not in ("", "/"):
                raise ValueError(parts.scheme)
            return None, parts.netloc
        fields = dict(pair.split("=", 1) for pair in url.strip().rstrip(";").split(";"))
        names = {name.strip().lower(): value for name, value in fields.items()}
        keys = {"sharedaccesskeyname", "sharedaccesskey"} <= names.keys()
        host = urlsplit(names["endpoint"]).netloc
        if not host or keys == ("sharedaccesssignature" in names):
            raise ValueError(host)
    except (KeyError, ValueError):
        raise OptionError(
            "the Service Bus URL cannot be read: give a connection string "
            "(Endpoint=sb://NAMESPACE.servicebus.windows.net/;SharedAccessKeyName=…;SharedAccessKey=…), or "
            "sb://NAMESPACE.servicebus.windows.net for Azure AD"
        ) from None
    return url, host
