"""Which class serves which broker: ours, those of other packages, and those registered by a program.

A package offers a binding by an entry point of the group `babelqueue_spark.bindings`: its name is the
broker, and how its URLs start. Modules are imported when a broker is used.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points

from babelqueue_spark.bindings.contract import BaseBinding, BindingConfig
from babelqueue_spark.errors import OptionError
from babelqueue_spark.packages import brought_by

GROUP = "babelqueue_spark.bindings"


@dataclass(frozen=True)
class Registration:
    """Where a binding lives and how its URLs start.

    Attributes:
        target: the class of the binding, or `module:class`, which is imported when it is used.
        extra: the optional dependency set of ours that brings the client; empty = none.
        schemes: URL schemes that name this broker; a scheme may carry a `+driver`.
        clients: the importable modules of the client and what it needs.
    """

    target: str | type[BaseBinding]
    extra: str
    schemes: tuple[str, ...]
    clients: tuple[str, ...]


def _ours(broker: str, name: str, schemes: tuple[str, ...], *clients: str) -> Registration:
    """Return the registration of a class of this package, whose extra is called as the broker."""
    return Registration(f"babelqueue_spark.bindings.{broker}:{name}", broker, schemes, clients)


BINDINGS: dict[str, Registration] = {
    "sql": _ours("sql", "SqlBinding", ("sqlite", "postgresql", "mysql", "mariadb"), "sqlalchemy"),
    "redis": _ours("redis", "RedisBinding", ("redis", "rediss"), "redis"),
    "rabbitmq": _ours("rabbitmq", "RabbitBinding", ("amqp", "amqps"), "pika"),
    "sqs": _ours("sqs", "SqsBinding", ("sqs",), "boto3", "botocore"),
    "pulsar": _ours("pulsar", "PulsarBinding", ("pulsar",), "pulsar"),
    "kafka": _ours("kafka", "KafkaBinding", ("kafka",), "confluent_kafka"),
    "kinesis": _ours("kinesis", "KinesisBinding", ("kinesis",), "boto3", "botocore"),
    "firehose": _ours("firehose", "FirehoseBinding", ("firehose",), "boto3", "botocore"),
    "servicebus": _ours(
        "servicebus", "ServiceBusBinding", ("sb", "servicebus", "azureservicebus", "endpoint=sb"), "azure"
    ),
    "artemis": _ours("artemis", "ArtemisBinding", ("artemis",), "proton"),
}
"""Broker → its registration: ours, and those that `register` added."""


def register(name: str, target: str | type[BaseBinding], *, schemes: tuple[str, ...] = ()) -> None:
    """Make a broker known in this process.

    Spark's workers are processes of their own: what they are to find too is offered by an entry point.

    Args:
        name: the broker, in lower case: the value of option `broker`, and what precedes its own options.
        target: the binding's class, or `module:class`, which is imported when it is used.
        schemes: how URLs of this broker start; the name where none are given.

    Raises:
        ValueError: the name or a scheme is taken.
    """
    schemes = schemes or (name,)
    if name in BINDINGS or not set(known_schemes()).isdisjoint(schemes):
        raise ValueError(f"broker '{name}': the name or a scheme of {', '.join(schemes)} is another broker's")
    BINDINGS[name] = Registration(target, "", schemes, ())


def brokers() -> list[str]:
    """Names of all brokers: registered ones, and those of other packages."""
    return sorted({*BINDINGS, *(point.name for point in entry_points(group=GROUP))})


def known_schemes() -> list[str]:
    """Return how URLs of registered brokers start."""
    return [scheme for each in BINDINGS.values() for scheme in each.schemes]


def is_known(broker: str) -> bool:
    """Return whether a broker is registered, or offered by a package; imports nothing."""
    return broker in BINDINGS or bool(_offered(broker))


def broker_of(url: str) -> str | None:
    """Return the broker that a URL's scheme names, or None."""
    scheme = url.partition("://")[0].partition("+")[0].lower()
    found = next((name for name, each in BINDINGS.items() if scheme in each.schemes), None)
    return found or (scheme if _offered(scheme) else None)


def binding_class(broker: str) -> type[BaseBinding]:
    """Return the binding of a broker; `OptionError` if it is unknown, or cannot be imported."""
    if broker in BINDINGS:
        return _imported(broker, BINDINGS[broker])
    offered = _offered(broker)
    if not offered:
        raise OptionError(f"broker '{broker}' is unknown: use one of {', '.join(brokers())}")
    if len(offered) > 1:
        raise OptionError(
            f"broker '{broker}' is offered by several packages ({_packages(offered)}): keep one of them"
        )
    return _loaded(offered[0])


def create_binding(broker: str, config: BindingConfig) -> BaseBinding:
    """Return a binding for one reader or writer; nothing is connected yet."""
    return binding_class(broker)(config)


def _imported(broker: str, registration: Registration) -> type[BaseBinding]:
    if not isinstance(registration.target, str):
        return registration.target
    module, _, name = registration.target.partition(":")
    with brought_by(registration.extra, f"broker '{broker}'", *registration.clients):
        loaded: type[BaseBinding] = getattr(import_module(module), name)
    return loaded


def _offered(broker: str) -> list[EntryPoint]:
    return list(entry_points(group=GROUP, name=broker))


def _loaded(point: EntryPoint) -> type[BaseBinding]:
    """Return the class of an entry point; `OptionError` names the package if there is none."""
    try:
        found = point.load()
    except Exception as error:  # noqa: BLE001 (another package's import may fail in any way)
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise OptionError(f"{_described(point)} cannot be imported ({reason})") from None
    if not (isinstance(found, type) and issubclass(found, BaseBinding)):
        raise OptionError(f"{_described(point)} is not a subclass of Binding or LogBinding")
    return found


def _described(point: EntryPoint) -> str:
    return f"broker '{point.name}': the entry point '{point.value}' of the package {_packages([point])}"


def _packages(points: list[EntryPoint]) -> str:
    return ", ".join(sorted({point.dist.name if point.dist else "unknown" for point in points}))
