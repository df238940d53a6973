"""Spans by the messaging conventions of OpenTelemetry, which is imported where tracing is on."""

from babelqueue_spark.tracing.sends import Send, with_traceparents
from babelqueue_spark.tracing.setting import Tracing

__all__ = ["Send", "Tracing", "with_traceparents"]
