"""The options of the Kafka binding, from the connection string and from `kafka.<name>` options."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from babelqueue_spark.bindings.contract import BindingConfig
from babelqueue_spark.bindings.kafka.tiers import DEFAULT_RETRY_TIERS_MS, Tiers
from babelqueue_spark.bindings.options import count, name, value_of
from babelqueue_spark.errors import OptionError

_OF_THE_CLIENT = re.compile(
    r"security\.protocol|sasl\..+|ssl\..+|enable\.ssl\.certificate\.verification|client\.(id|rack|dns\.lookup)"
    r"|compression\.(type|codec|level)|linger\.ms|batch\.(size|num\.messages)|message\.max\.bytes"
    r"|queue\.buffering\.max\.(messages|kbytes|ms)|partitioner|transaction\.timeout\.ms|isolation\.level"
    r"|fetch\..+|max\.partition\.fetch\.bytes|receive\.message\.max\.bytes|queued\.(min|max)\.messages.*"
    r"|socket\..+|broker\.address\.family|reconnect\.backoff\..+|metadata\.max\.age\.ms"
)


def _tiers(text: str) -> Tiers:
    if text.strip().lower() == "default":
        return Tiers(DEFAULT_RETRY_TIERS_MS)
    delays = tuple(int(part) for part in text.split(","))
    if any(later <= earlier for earlier, later in zip((0, *delays), delays, strict=False)):
        raise ValueError(text)
    return Tiers(delays)


_OWN: Mapping[str, Callable[[str], Any]] = {
    "group.id": name,
    "retry_tiers_ms": _tiers,
    "timeout_seconds": count,
}
_LIMIT = "message.max.bytes"
_FIELDS = {"group.id": "group", "retry_tiers_ms": "tiers", "timeout_seconds": "timeout"}


@dataclass(frozen=True, kw_only=True)
class KafkaOptions:
    """What the binding makes of its configuration.

    Attributes:
        servers: `host:port`, several with commas.
        group: whose committed offsets tell monitors how far a stream is.
        tiers: where delayed messages wait.
        timeout: seconds until the broker must have answered.
        client: properties of librdkafka.
        max_bytes: most bytes of a record with all that belongs to it.
    """

    servers: str
    group: str = "babelqueue-spark"
    tiers: Tiers = field(default_factory=Tiers)
    timeout: int = 30
    client: Mapping[str, str] = field(default_factory=dict, repr=False)
    max_bytes: int = 1_000_000

    @classmethod
    def parse(cls, config: BindingConfig) -> KafkaOptions:
        """Read a configuration; `OptionError` for what is unknown or cannot be used."""
        if config.visibility_timeout is not None:
            raise OptionError(
                "option 'visibilityTimeout' has no meaning for Kafka, where nothing is claimed: remove it"
            )
        own: dict[str, Any] = {}
        client: dict[str, str] = {}
        for option, text in config.client_options.items():
            if option in _OWN:
                own[_FIELDS[option]] = value_of("kafka", option, text, _OWN[option])
            elif _OF_THE_CLIENT.fullmatch(option):
                client[option] = text
            else:
                raise OptionError(
                    f"kafka.{option} is unknown, to librdkafka too as far as it is passed on: use one of "
                    f"{', '.join(sorted(_OWN))}"
                )
        if _LIMIT in client:
            own["max_bytes"] = value_of("kafka", _LIMIT, client[_LIMIT], count)
        return cls(servers=_servers(config.url), client=client, **own)


def _servers(url: str) -> str:
    servers = url.removeprefix("kafka://").rstrip("/")
    try:
        for server in servers.split(","):
            parts = urlsplit(f"//{server}")
            if not parts.hostname or parts.port is None or re.search(r"[\s/@?#]", server):
                raise ValueError(server)
    except ValueError:
        raise OptionError(
            "the Kafka URL cannot be read: write kafka://host:9092, several hosts with commas between, and a "
            "login in kafka.sasl.username and kafka.sasl.password"
        ) from None
    return servers
