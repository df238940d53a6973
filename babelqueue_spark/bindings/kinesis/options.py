"""The options of the Kinesis binding, from the connection string and from `kinesis.<name>` options."""

from __future__ import annotations

from dataclasses import dataclass

from babelqueue_spark.bindings import aws
from babelqueue_spark.bindings.contract import BindingConfig
from babelqueue_spark.bindings.options import OptionTable, Parsers, whole

_OWN: Parsers = {**aws.OWN, "shard_count": whole(1, 10_000)}
_TABLE = OptionTable(broker="kinesis", own=_OWN, of_client=aws.OF_BOTO3)


@dataclass(frozen=True, kw_only=True)
class KinesisOptions(aws.AwsOptions):
    """What the binding makes of its configuration.

    Attributes:
        shard_count: shards of a stream that a write creates; None = on demand.
    """

    shard_count: int | None = None

    @classmethod
    def parse(cls, config: BindingConfig) -> KinesisOptions:
        """Read a configuration; `OptionError` for what is unknown or cannot be used."""
        given = _TABLE.parse(config, aws.of_url("kinesis", "Kinesis", config.url))
        return cls(**aws.of_session("kinesis", given))
