"""Which broker is served by which module; imported only when used, with a hint when its client is missing."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module

from babelqueue_spark.bindings.contract import BaseBinding, BindingConfig
from babelqueue_spark.errors import OptionError, missing_package


@dataclass(frozen=True)
class Entry:
    """Where a binding lives and how its URLs start.

    Attributes:
        target: `module:class` of the binding.
        extra: the optional dependency set that brings the client.
        schemes: URL schemes that name this broker; a scheme may carry a `+driver`.
        client: the importable module of the client.
    """

    target: str
    extra: str
    schemes: tuple[str, ...]
    client: str


BINDINGS: dict[str, Entry] = {
    "sql": Entry(
        "babelqueue_spark.bindings.sql:SqlBinding",
        "sql",
        ("sqlite", "postgresql", "mysql", "mariadb"),
        "sqlalchemy",
    ),
    "redis": Entry("babelqueue_spark.bindings.redis:RedisBinding", "redis", ("redis", "rediss"), "redis"),
    "rabbitmq": Entry(
        "babelqueue_spark.bindings.rabbitmq:RabbitBinding", "rabbitmq", ("amqp", "amqps"), "pika"
    ),
    "sqs": Entry("babelqueue_spark.bindings.sqs:SqsBinding", "sqs", ("sqs",), "boto3"),
    "pulsar": Entry("babelqueue_spark.bindings.pulsar:PulsarBinding", "pulsar", ("pulsar",), "pulsar"),
    "kafka": Entry("babelqueue_spark.bindings.kafka:KafkaBinding", "kafka", ("kafka",), "confluent_kafka"),
    "servicebus": Entry(
        "babelqueue_spark.bindings.servicebus:ServiceBusBinding",
        "servicebus",
        ("sb", "servicebus", "azureservicebus", "endpoint=sb"),
        "azure",
    ),
    "artemis": Entry("babelqueue_spark.bindings.artemis:ArtemisBinding", "artemis", ("artemis",), "proton"),
}


def broker_of(url: str) -> str | None:
    """The broker that a URL's scheme names, or None."""
    scheme = url.partition("://")[0].partition("+")[0].lower()
    return next((name for name, entry in BINDINGS.items() if scheme in entry.schemes), None)


def binding_class(broker: str) -> type[BaseBinding]:
    """The binding of a broker; `OptionError` when it is unknown or its client is not installed."""
    if broker not in BINDINGS:
        raise OptionError(f"broker '{broker}' is unknown: use one of {', '.join(sorted(BINDINGS))}")
    entry = BINDINGS[broker]
    module, _, name = entry.target.partition(":")
    try:
        loaded: type[BaseBinding] = getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != entry.client:
            raise
        raise missing_package(f"broker '{broker}'", entry.client, entry.extra) from None
    return loaded


def create_binding(broker: str, config: BindingConfig) -> BaseBinding:
    """A binding for one reader or writer; nothing is connected yet."""
    return binding_class(broker)(config)
