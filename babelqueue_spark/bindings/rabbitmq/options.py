"""The options of the RabbitMQ binding, from the connection string and from `rabbitmq.<name>` options."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import pika

from babelqueue_spark.bindings.contract import BindingConfig
from babelqueue_spark.bindings.options import SSL, OptionTable, Parsers, one_of, timeout, tls_context, whole
from babelqueue_spark.errors import OptionError

_OWN: Parsers = {
    "exchange": str,
    "routing_key": str,
    "delayed_exchange": str,
    "delay_queue_type": one_of("classic", "quorum"),
    "client_name": str,
}

_CLIENT: Parsers = {
    "heartbeat": whole(0, 65_535),
    "blocked_connection_timeout": timeout,
    "socket_timeout": timeout,
    "stack_timeout": timeout,
}

_TABLE = OptionTable(
    broker="rabbitmq",
    own={**_OWN, **_CLIENT},
    tls=SSL,
    tls_scheme="amqps",
    of_client={"connection_name": "client_name"},
)
_DEFAULTS = {
    "heartbeat": 20,
    "blocked_connection_timeout": 60.0,
    "socket_timeout": 10.0,
    "stack_timeout": 15.0,
}
_MORE = 5.0
"""Seconds that pika adds to a heartbeat's; it looks for one after that time, so may miss it twice."""


@dataclass(frozen=True, kw_only=True)
class RabbitOptions:
    """What the binding makes of its configuration: the options of the package, and what follows from them.

    Attributes:
        address: `host:port`, with the vhost where it is not `/`, as shown in errors.
        native: whether headers show the properties that name a message, and set them.
        client: further parameters of the connection.
        tls: the `ssl_` options.
    """

    url: str = field(repr=False)
    address: str
    exchange: str
    routing_key: str | None
    delayed_exchange: str | None
    delay_queue_type: str
    client_name: str
    native: bool = False
    client: Mapping[str, Any]
    tls: Mapping[str, Any] = field(repr=False)

    @classmethod
    def parse(cls, config: BindingConfig) -> RabbitOptions:
        address, secure = _address(config.url)
        values = _TABLE.parse(config)
        tls = _TABLE.tls_of(values, secure=secure)
        exchange, routing_key = values.get("exchange", ""), values.get("routing_key")
        if routing_key is not None and not exchange:
            raise OptionError("rabbitmq.routing_key needs rabbitmq.exchange: without it, queues are named")
        return cls(
            url=config.url,
            address=address,
            exchange=exchange,
            routing_key=routing_key,
            delayed_exchange=values.get("delayed_exchange"),
            delay_queue_type=values.get("delay_queue_type", "classic"),
            client_name=values.get("client_name", "babelqueue-spark"),
            native=config.native,
            client={name: values[name] for name in _CLIENT if name in values},
            tls=tls,
        )

    @property
    def silence_limit(self) -> float:
        """Seconds until a server that says nothing is given up; without heartbeats, it is not."""
        parameters = self._parameters()
        heartbeat, stack_timeout = parameters.heartbeat, parameters.stack_timeout
        if not isinstance(heartbeat, int) or not heartbeat:
            return math.inf
        return max(float(stack_timeout or math.inf), 2 * (heartbeat + _MORE))

    def parameters(self) -> pika.connection.Parameters:
        """Return what the client needs to connect; reads the files of certificates."""
        parameters = self._parameters()
        if self.tls:
            parameters.ssl_options = pika.SSLOptions(tls_context("rabbitmq", self.tls), parameters.host)
        return parameters

    def _parameters(self) -> pika.connection.Parameters:
        parameters: pika.connection.Parameters = pika.URLParameters(self.url)
        given = urlsplit(self.url).query
        for name, value in {**_DEFAULTS, **self.client}.items():
            if name in self.client or f"{name}=" not in given:
                setattr(parameters, name, value)
        parameters.client_properties = {"connection_name": self.client_name}
        return parameters


def _address(url: str) -> tuple[str, bool]:
    """Return what errors show of it, and whether it is TLS."""
    try:
        parsed = pika.URLParameters(url)
        scheme = urlsplit(url).scheme
        if scheme not in ("amqp", "amqps"):
            raise ValueError(scheme)
    except Exception:  # noqa: BLE001 (pika lets whatever its parsing meets through)
        raise OptionError(
            "the RabbitMQ URL cannot be read: write amqp://[user:password@]host:port/vhost (amqps:// for "
            "TLS, %2F for the vhost /), with special characters of a password percent-encoded"
        ) from None
    vhost = "" if parsed.virtual_host == "/" else f"/{parsed.virtual_host}"
    return f"{parsed.host}:{parsed.port}{vhost}", scheme == "amqps"
