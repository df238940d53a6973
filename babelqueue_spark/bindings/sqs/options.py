"""The options of the SQS binding, from the connection string and from `sqs.<name>` options."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

from babelqueue_spark.bindings.contract import BindingConfig
from babelqueue_spark.bindings.options import (
    OptionTable,
    Parsers,
    byte_size,
    duration,
    flag,
    seconds,
    takes,
    whole,
)
from babelqueue_spark.errors import OptionError

DEFAULT_VISIBILITY = 90.0
LONGEST_VISIBILITY = 43_200
LARGEST_MESSAGE = 1_048_576


@takes("a URL such as http://host:9324")
def _endpoint(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or (parts.port or 1) < 1:
        raise ValueError(text)
    return text


_OWN: Parsers = {
    "region": str,
    "endpoint_url": _endpoint,
    "profile": str,
    "access_key_id": str,
    "secret_access_key": str,
    "session_token": str,
    "role_arn": str,
    "role_session_name": str,
    "external_id": str,
    "prefix": str,
    "visibility_timeout": duration,
    "wait_time": seconds,
    "fifo": flag,
    "group_id": str,
    "content_dedup": flag,
    "concurrency": whole(1),
    "max_message_bytes": byte_size,
    "max_attempts": whole(1),
    "connect_timeout": duration,
    "read_timeout": duration,
}
_CREDENTIALS = ("access_key_id", "secret_access_key", "session_token")
_OF_BOTO3 = {
    "region_name": "region",
    "profile_name": "profile",
    **{f"aws_{name}": name for name in _CREDENTIALS},
}
_TABLE = OptionTable(broker="sqs", own=_OWN, of_client=_OF_BOTO3)


@dataclass(frozen=True, kw_only=True)
class SqsOptions:
    """What the binding makes of its configuration.

    Attributes:
        region: the AWS region; None = as the usual chain says.
        endpoint_url: what answers in place of AWS.
        address: the endpoint's `host:port` or the region, as shown in errors.
        profile: a profile of the shared AWS configuration.
        credentials: access key, secret and token, by the names that boto3 gives them.
        role_arn: a role to assume with those credentials.
        role_session_name: how that session is called in CloudTrail.
        external_id: what the role's trust policy may ask for.
        prefix: what precedes the name in a queue's URL; None = ask SQS for the URL.
        visibility: whole seconds a claim may stay unacknowledged.
        fifo: all queues are FIFO queues.
        group_id: the message group of messages without a key.
        content_dedup: FIFO queues deduplicate by content.
        concurrency: requests in flight.
        max_message_bytes: most bytes of a message, and of the messages of a request.
        max_attempts: how often a request is sent before its failure counts.
        connect_timeout: seconds.
        read_timeout: seconds.
    """

    region: str | None = None
    endpoint_url: str | None = field(default=None, repr=False)
    address: str
    profile: str | None = None
    credentials: Mapping[str, str] = field(repr=False)
    role_arn: str | None = None
    role_session_name: str = "babelqueue-spark"
    external_id: str | None = field(default=None, repr=False)
    prefix: str | None = field(default=None, repr=False)
    visibility: int
    fifo: bool = False
    group_id: str | None = None
    content_dedup: bool = False
    concurrency: int = 4
    max_message_bytes: int = LARGEST_MESSAGE
    max_attempts: int = 3
    connect_timeout: float = 5.0
    read_timeout: float = 15.0

    @property
    def silence_limit(self) -> float:
        """Seconds until an endpoint that says nothing is given up, with the pauses before each repetition."""
        tries = self.max_attempts * max(self.connect_timeout, self.read_timeout)
        return tries + (1 << self.max_attempts - 1) - 1

    @classmethod
    def parse(cls, config: BindingConfig) -> SqsOptions:
        """Read a configuration; `OptionError` for what is unknown or cannot be used."""
        given = _TABLE.parse(config, _of_url(config.url))
        given.pop("wait_time", None)  # the SDK's long polling: a claim never waits
        visibility = given.pop("visibility_timeout", DEFAULT_VISIBILITY)
        if config.visibility_timeout is not None:
            visibility = config.visibility_timeout
        if not 0 < visibility <= LONGEST_VISIBILITY:
            raise OptionError(f"sqs: the visibility timeout must be 1 to {LONGEST_VISIBILITY} seconds")
        credentials = {f"aws_{name}": given.pop(name) for name in _CREDENTIALS if name in given}
        if ("aws_access_key_id" in credentials) != ("aws_secret_access_key" in credentials):
            raise OptionError("sqs.access_key_id and sqs.secret_access_key are needed together")
        return cls(
            address=_address(given),
            credentials=credentials,
            visibility=math.ceil(visibility),
            **given,
        )


def _of_url(url: str) -> dict[str, str]:
    """The options that stand in the connection string."""
    try:
        parts = urlsplit(url)
        if parts.scheme != "sqs" or set("@:") & set(parts.netloc) or parts.path not in ("", "/"):
            raise ValueError(parts.scheme)
        options = {name.lower(): values[-1] for name, values in parse_qs(parts.query).items()}
    except ValueError:
        raise OptionError(
            "the SQS URL cannot be read: write sqs://REGION, with ?endpoint=http://host:port for anything "
            "but AWS, and credentials in sqs.access_key_id and sqs.secret_access_key"
        ) from None
    if "endpoint" in options:
        options["endpoint_url"] = options.pop("endpoint")
    if parts.hostname:
        options["region"] = parts.hostname
    return options


def _address(values: Mapping[str, Any]) -> str:
    if "endpoint_url" in values:
        return str(urlsplit(values["endpoint_url"]).netloc).rpartition("@")[2]
    return str(values.get("region", "AWS"))
