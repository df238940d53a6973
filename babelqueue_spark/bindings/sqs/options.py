"""The options of the SQS binding, from the connection string and from `sqs.<name>` options."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, Self

from babelqueue_spark.bindings.aws import AwsOptions
from babelqueue_spark.bindings.contract import BindingConfig
from babelqueue_spark.bindings.options import Parsers, byte_size, duration, flag, seconds, whole
from babelqueue_spark.errors import OptionError

DEFAULT_VISIBILITY = 90.0
LONGEST_VISIBILITY = 43_200
LARGEST_MESSAGE = 1_048_576


@dataclass(frozen=True, kw_only=True)
class SqsOptions(AwsOptions):
    """What the binding makes of its configuration: the options of the package.

    Attributes:
        visibility: whole seconds a claim may stay unacknowledged.
    """

    broker = "sqs"
    title = "SQS"
    own: ClassVar[Parsers] = {
        "prefix": str,
        "visibility_timeout": duration,
        "wait_time": seconds,
        "fifo": flag,
        "group_id": str,
        "content_dedup": flag,
        "concurrency": whole(1),
        "max_message_bytes": byte_size,
    }

    prefix: str | None = field(default=None, repr=False)
    visibility: int
    fifo: bool = False
    group_id: str | None = None
    content_dedup: bool = False
    max_message_bytes: int = LARGEST_MESSAGE

    @classmethod
    def parse(cls, config: BindingConfig) -> Self:
        given = cls._given(config)
        given.pop("wait_time", None)  # the SDK's long polling: a claim never waits
        visibility = given.pop("visibility_timeout", DEFAULT_VISIBILITY)
        if config.visibility_timeout is not None:
            visibility = config.visibility_timeout
        if not 0 < visibility <= LONGEST_VISIBILITY:
            raise OptionError(f"sqs: the visibility timeout must be 1 to {LONGEST_VISIBILITY} seconds")
        return cls(visibility=math.ceil(visibility), **cls._session(given))
