"""What may be shown of messages where a catalog says which fields are sensitive.

Nobody knows what a message holds that the catalog does not know, nor what errors quote: those are hidden.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from babelqueue_spark.bindings.headers import LETTER
from babelqueue_spark.envelope import Reason, decode
from babelqueue_spark.schemas.registry import Registry
from babelqueue_spark.schemas.sensitive import SensitiveFields, replaced

MASK = "***"
"""What is shown instead."""

_JSON_MASK = b'"***"'
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_encode = msgspec.json.Encoder().encode
_SHOWN = frozenset(["job", "urn", "trace_id", "meta", "attempts"])
_SHOWN_OF_LETTERS = frozenset(
    ["reason", "exception", "failed_at", "original_queue", "attempts", "lang", "raw_encoding"]
)


class Mask:
    """Hides in messages what a catalog marks as sensitive.

    Args:
        catalog: says what that is.
        native: messages have no envelope of ours: of a body its payload alone is shown.
    """

    def __init__(self, catalog: Registry, *, native: bool = False) -> None:
        self._catalog = catalog
        self._native = native
        self._fields = catalog.sensitive_fields()
        self._known = pa.array(catalog.urns, pa.string())
        self._marked = pa.array(self._fields, pa.string())

    def data(self, job: pa.Array, data: pa.Array, error: pa.Array) -> pa.Array:
        """Return payloads with `***` in place of their sensitive fields, strings.

        A whole payload is `***` where nobody knows what is in which place: the catalog has no schema for its
        URN, or one with marks that it violates, or its envelope is invalid.

        An `error` says why the envelope of a row is refused; null or `invalid_payload` = it is not.
        """
        fits = pc.or_(
            self._catalog.violations(job, data).is_null(), pc.invert(pc.is_in(job, value_set=self._marked))
        )
        is_known = pc.and_(pc.and_(pc.is_in(job, value_set=self._known), _is_envelope(error)), fits)
        known = pc.if_else(is_known, data, pa.scalar(None, pa.string()))
        return pc.fill_null(mask(job, known, self._fields), MASK)

    def bodies(self, bodies: pa.Array, envelopes: Mapping[str, pa.Array] | None = None) -> pa.Array:
        """Return bodies as `data` shows their payloads; `***` alone for one that is invalid.

        Args:
            bodies: to show.
            envelopes: `job`, `data` and `error` of each; None = they are read from the bodies, which say
                nothing where they are no envelopes.
        """
        if self._native and envelopes is None:
            return pa.array([MASK.encode()] * len(bodies), pa.binary())
        found = decode(bodies) if envelopes is None else envelopes
        job, data, error = (found[name] for name in ("job", "data", "error"))
        shown = self.data(job, data, error).to_pylist()
        sound = _is_envelope(error).to_pylist()
        if self._native:
            whole = [text if is_sound else MASK for text, is_sound in zip(shown, sound, strict=True)]
            return pa.array(whole, pa.string()).cast(pa.binary())
        masked = [
            _shown(body, payload) if is_sound else MASK.encode()
            for body, payload, is_sound in zip(bodies.to_pylist(), shown, sound, strict=True)
        ]
        return pa.array(masked, pa.binary())

    def row(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return a row of a read, with `***` in place of what is hidden."""
        read = {name: pa.array([row[name]], pa.string()) for name in ("job", "data", "error")}
        [data] = self.data(**read).to_pylist()
        bodies = pa.array([row["body"]], pa.binary())
        [body] = self.bodies(bodies, read if self._native else None).to_pylist()
        block = row["dead_letter"] and {**row["dead_letter"], "error": MASK}
        headers = row["headers"] and [
            (name, MASK if name == LETTER else value) for name, value in row["headers"]
        ]
        return {**row, "data": data, "body": body, "dead_letter": block, "headers": headers}


def mask(job: pa.Array, data: pa.Array, fields: Mapping[str, SensitiveFields]) -> pa.Array:
    """Return `data` with `***` in place of its sensitive values, null where it is no JSON object."""
    return replaced(job, data, fields, lambda _: _JSON_MASK)


def _is_envelope(error: pa.Array) -> pa.Array:
    return pc.fill_null(pc.equal(error, Reason.INVALID_PAYLOAD), True)


def _shown(body: bytes, data: str) -> bytes:
    try:
        members = _OBJECT.decode(body)
        found = _only(members, _SHOWN)
        if "dead_letter" in members and members["dead_letter"] != b"null":
            found["dead_letter"] = msgspec.Raw(
                _encode(_only(_OBJECT.decode(members["dead_letter"]), _SHOWN_OF_LETTERS))
            )
    except ValueError:
        return MASK.encode()
    return _encode(found | {"data": msgspec.Raw(_JSON_MASK if data == MASK else data.encode())})


def _only(members: Mapping[str, msgspec.Raw], shown: frozenset[str]) -> dict[str, msgspec.Raw]:
    """Return the members that may be shown, and the others hidden."""
    return {name: value if name in shown else msgspec.Raw(_JSON_MASK) for name, value in members.items()}
