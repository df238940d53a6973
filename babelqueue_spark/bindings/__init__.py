"""Brokers behind one contract: `contract` states it, `registry` finds the class that fulfils it."""

from babelqueue_spark.bindings.batches import DELIVERIES, OUTGOING
from babelqueue_spark.bindings.contract import (
    BaseBinding,
    Binding,
    BindingConfig,
    Capabilities,
    DeadLetterStyle,
    LogBinding,
)
from babelqueue_spark.bindings.registry import (
    BINDINGS,
    binding_class,
    broker_of,
    brokers,
    create_binding,
    is_known,
    known_schemes,
    register,
)

__all__ = [
    "BINDINGS",
    "DELIVERIES",
    "OUTGOING",
    "BaseBinding",
    "Binding",
    "BindingConfig",
    "Capabilities",
    "DeadLetterStyle",
    "LogBinding",
    "binding_class",
    "broker_of",
    "brokers",
    "create_binding",
    "is_known",
    "known_schemes",
    "register",
]
