"""How a process gets its tracer. The setting travels to the executors, which are other processes."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from babelqueue_spark.errors import OptionError
from babelqueue_spark.packages import brought_by

if TYPE_CHECKING:
    from babelqueue_spark.tracing.spans import Spans

ENVIRONMENT = "environment"
"""Stands for the variables `OTEL_*` of each process."""

Source = str | Callable[[], Any]


@dataclass(frozen=True)
class Tracing:
    """Where each process of Python gets its `TracerProvider`, once.

    Attributes:
        source: `environment`, `module:function`, or the function itself.
        key: names the source in each process.
    """

    source: Source
    key: str

    @classmethod
    def of(cls, source: Source) -> Tracing:
        """Check a source; imports OpenTelemetry.

        Raises:
            MissingPackageError: OpenTelemetry's SDK is not installed.
            OptionError: the source is neither a function nor the name of one.
        """
        if isinstance(source, str):
            source = source.strip()
            if source != ENVIRONMENT and not re.fullmatch(r"[\w.]+:\w+", source):
                raise OptionError(
                    f"tracing is '{source}', but takes '{ENVIRONMENT}', or the function that returns a "
                    "TracerProvider as 'module:function'"
                )
        elif not callable(source):
            raise OptionError(
                "tracing takes a function that returns a TracerProvider, but this is of type "
                f"{type(source).__name__}"
            )
        with _otel():
            import opentelemetry.sdk.trace  # noqa: F401
        return cls(source, source if isinstance(source, str) else uuid.uuid4().hex)

    def spans(self, broker: str) -> Spans:
        """Make what starts spans in this process, about messages of a broker.

        Raises:
            MissingPackageError: OpenTelemetry's SDK is not installed here.
            OptionError: the source gives no `TracerProvider`.
        """
        with _otel():
            from babelqueue_spark.tracing.provider import provider_of
            from babelqueue_spark.tracing.spans import Spans
        return Spans(*provider_of(self.key, self.source), broker)


def _otel() -> Any:
    return brought_by("otel", "tracing", "opentelemetry")
