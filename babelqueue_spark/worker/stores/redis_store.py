"""Handled messages in Redis: one key a message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from babelqueue_spark.bindings import BindingConfig
from babelqueue_spark.bindings.redis.client import RedisClient
from babelqueue_spark.bindings.redis.layouts import IDEMPOTENCY_PREFIX
from babelqueue_spark.bindings.redis.options import RedisOptions
from babelqueue_spark.secrets import resolve
from babelqueue_spark.worker.stores.idempotency import IdempotencyStore, Record

_CLAIM, _HANDLED = b"claim:", b"handled:"
_OWNER_DIGITS = 32
_CLAIM_IT = """
local value = redis.call('GET', KEYS[1])
if value and value ~= ARGV[1] then return value end
redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[2])
return ARGV[1]
"""
_RELEASE = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"


class RedisStore(IdempotencyStore):
    """Keys `<prefix><meta.id>`, which Redis drops when their time is over.

    Args:
        url: as of the binding: `redis://`, `redis+cluster://` and so on, or `env:NAME`, `file:/path`.
        prefix: of the keys; never InitPHP's `bq:idemp:`, whose claims look as handled messages do.
        keep: seconds for which a handled message is remembered.
        lease: seconds after which the claim of a worker that died ends.
        **client: the options of the Redis binding, without `redis.`.
    """

    def __init__(
        self,
        url: str,
        *,
        prefix: str = IDEMPOTENCY_PREFIX,
        keep: int = 86_400,
        lease: int = 300,
        **client: str,
    ) -> None:
        self._url = url
        self._prefix = prefix
        self._keep = keep
        self.lease = lease
        self._client_options = client
        self._open: RedisClient | None = None

    def claim(self, ids: Sequence[str], owner: str) -> list[Record]:
        """Claim in one round trip."""
        ours = _CLAIM + owner.encode()
        values = self._connected().ask(
            *(("EVAL", _CLAIM_IT, 1, self._key(message_id), ours, self.lease) for message_id in ids)
        )
        return [_record(value, owner.encode()) for value in values]

    def remember(self, message_id: str, owner: str, result: bytes = b"") -> None:
        value = _HANDLED + owner.encode() + result
        self._connected().ask(("SET", self._key(message_id), value, "EX", self._keep))

    def release(self, ids: Sequence[str], owner: str) -> None:
        claim = _CLAIM + owner.encode()
        self._connected().ask(*(("EVAL", _RELEASE, 1, self._key(message_id), claim) for message_id in ids))

    def forget(self, ids: Sequence[str]) -> None:
        self._connected().ask(*(("DEL", self._key(message_id)) for message_id in ids))

    def close(self) -> None:
        if self._open is not None:
            self._open.close()
        self._open = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": None}

    def _key(self, message_id: str) -> bytes:
        return f"{self._prefix}{message_id}".encode("utf-8", "surrogatepass")

    def _connected(self) -> RedisClient:
        if self._open is None:
            config = BindingConfig(url=resolve(self._url, "url"), client_options=self._client_options)
            self._open = RedisClient(RedisOptions.parse(config))
        return self._open


def _record(value: bytes, owner: bytes) -> Record:
    """Return what a value says; another program's is that of a handled message."""
    if value.startswith(_CLAIM):
        return Record("granted" if value == _CLAIM + owner else "held")
    by, result = value[len(_HANDLED) :][:_OWNER_DIGITS], value[len(_HANDLED) + _OWNER_DIGITS :]
    if value.startswith(_HANDLED) and by == owner:
        return Record("handled", ours=True, result=result)
    return Record("handled")
