"""The options of the Firehose binding, from the connection string and from `firehose.<name>` options."""

from __future__ import annotations

from babelqueue_spark.bindings import aws
from babelqueue_spark.bindings.contract import BindingConfig
from babelqueue_spark.bindings.options import OptionTable

_TABLE = OptionTable(broker="firehose", own=aws.OWN, of_client=aws.OF_BOTO3)


def parse(config: BindingConfig) -> aws.AwsOptions:
    """Read a configuration; `OptionError` for what is unknown or cannot be used."""
    given = _TABLE.parse(config, aws.of_url("firehose", "Firehose", config.url))
    return aws.AwsOptions(**aws.of_session("firehose", given))
