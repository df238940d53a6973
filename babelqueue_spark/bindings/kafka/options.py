"""The options of the Kafka binding, from the connection string and from `kafka.<name>` options."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from babelqueue_spark.bindings.contract import BindingConfig
from babelqueue_spark.bindings.kafka.tiers import DEFAULT_RETRY_TIERS_MS, Tiers
from babelqueue_spark.bindings.options import (
    OptionTable,
    Parsers,
    count,
    milliseconds,
    name,
    takes,
    value_of,
    whole_seconds,
)
from babelqueue_spark.errors import OptionError

_OF_THE_CLIENT = re.compile(
    r"security\.protocol|sasl\..+|ssl\..+|enable\.ssl\.certificate\.verification|client\.(id|rack|dns\.lookup)"
    r"|compression\.(type|codec|level)|linger\.ms|batch\.(size|num\.messages)|message\.max\.bytes"
    r"|queue\.buffering\.max\.(messages|kbytes|ms)|partitioner|transaction\.timeout\.ms|isolation\.level"
    r"|fetch\..+|max\.partition\.fetch\.bytes|receive\.message\.max\.bytes|queued\.(min|max)\.messages.*"
    r"|socket\..+|broker\.address\.family|reconnect\.backoff\..+|metadata\.max\.age\.ms"
)


@takes("'default', or ascending delays such as '60000,300000' or '1m,5m'")
def _tiers(text: str) -> Tiers:
    if text.strip().lower() == "default":
        return Tiers(DEFAULT_RETRY_TIERS_MS)
    delays = tuple(map(milliseconds(1, 10**12), text.split(",")))
    if any(later <= earlier for earlier, later in zip((0, *delays), delays, strict=False)):
        raise ValueError(text)
    return Tiers(delays)


_OWN: Parsers = {"group.id": name, "retry_tiers_ms": _tiers, "timeout_seconds": whole_seconds}
_TABLE = OptionTable(
    broker="kafka", own=_OWN, passed=_OF_THE_CLIENT, aside=", to librdkafka too as far as it is passed on"
)
_LIMIT = "message.max.bytes"
_FIELDS = {"group.id": "group", "retry_tiers_ms": "tiers", "timeout_seconds": "timeout"}


@dataclass(frozen=True, kw_only=True)
class KafkaOptions:
    """What the binding makes of its configuration: the options of the package, and what follows from them.

    Attributes:
        servers: `host:port`, several with commas.
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
        given = _TABLE.parse(config)
        own = {_FIELDS[option]: given.pop(option) for option in _OWN if option in given}
        if _LIMIT in given:
            own["max_bytes"] = value_of("kafka", _LIMIT, given[_LIMIT], count)
        return cls(servers=_servers(config.url), client=given, **own)


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
