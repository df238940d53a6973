"""Find a queue behind another prefix, where the one that is read has no messages."""

from __future__ import annotations

import re

from babelqueue_spark.bindings.redis.client import RedisClient
from babelqueue_spark.errors import BrokerError

_LARAVEL = "queues:"


def advice(client: RedisClient, ready: str, queue: str, *, laravel: bool) -> str:
    """Say how to read lists whose names end as this queue's does; empty where none is found."""
    ending = (_LARAVEL if laravel else ":") + queue
    try:
        keys = client.lists("*" + re.sub(r"([*?\[\]^\\])", r"\\\1", ending))
    except BrokerError:  # SCAN is a right of its own
        return ""
    found = sorted({key.decode("utf-8", "backslashreplace") for key in keys} - {ready})
    return f"there is a list '{found[0]}': to read it, set {_options(found[0], queue)}" if found else ""


def _options(key: str, queue: str) -> str:
    prefix = key.removesuffix(queue)
    if prefix.endswith(_LARAVEL):
        return f"redis.laravel=true, redis.prefix={prefix}"
    return f"queue={key}"
