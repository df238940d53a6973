"""Sensitive values as ciphertext: AES-GCM, in the format of the SDKs' field encryption.

A value is the base64 of a nonce of 12 bytes, the ciphertext of its JSON text, and a tag of 16 bytes.
"""

from __future__ import annotations

import binascii
import os
from base64 import b64decode, b64encode
from collections.abc import Mapping

import msgspec
import pyarrow as pa

from babelqueue_spark.errors import OptionError
from babelqueue_spark.packages import brought_by
from babelqueue_spark.schemas.sensitive import SensitiveFields, replaced
from babelqueue_spark.secrets import is_reference, resolve

_NONCE, _TAG = 12, 16
_SIZES = (16, 24, 32)
_TEXT = msgspec.json.Decoder(str)


class Cipher:
    """AES-GCM with one key of 16, 24 or 32 bytes."""

    def __init__(self, key: bytes) -> None:
        with brought_by("protect", "protection of fields", "cryptography"):
            from cryptography.exceptions import InvalidTag
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        self._aead = AESGCM(key)
        self._invalid = InvalidTag

    @classmethod
    def of(cls, key: str) -> Cipher:
        """Make the cipher of a key that is named by `env:NAME` or `file:/path`, on this machine.

        Raises:
            OptionError: it is no such name, or what it names is not the base64 of a key.
        """
        check_name(key)
        try:
            found = b64decode(resolve(key, "key").strip(), validate=True)
        except binascii.Error:
            found = b""
        if len(found) not in _SIZES:
            raise OptionError(f"the key in {key} is not the base64 of 16, 24 or 32 bytes")
        return cls(found)

    def protected(self, value: bytes) -> bytes:
        """Return the JSON text of a value, sealed; what this key has sealed before stays as it is."""
        if self._opened(value) is not None:
            return value
        nonce = os.urandom(_NONCE)
        return b'"' + b64encode(nonce + self._aead.encrypt(nonce, value, None)) + b'"'

    def unprotected(self, value: bytes) -> bytes:
        """Return the JSON text of a value, opened; what is no string was not sealed, and stays as it is.

        Raises:
            ValueError: a string that this key cannot open.
        """
        if not value.startswith(b'"'):
            return value
        found = self._opened(value)
        if found is None:
            raise ValueError("a protected value cannot be opened with this key")
        return found

    def _opened(self, value: bytes) -> bytes | None:
        try:
            sealed = b64decode(_TEXT.decode(value), validate=True)
        except ValueError:  # no string, not ASCII, or no base64
            return None
        if len(sealed) <= _NONCE + _TAG:
            return None
        try:
            return self._aead.decrypt(sealed[:_NONCE], sealed[_NONCE:], None)
        except self._invalid:
            return None


def check_name(key: str) -> None:
    """Raise `OptionError` for what names no key; a key itself is none."""
    if not is_reference(key):
        raise OptionError("the key is given by name only: env:NAME, or file:/path")


def protect(job: pa.Array, data: pa.Array, fields: Mapping[str, SensitiveFields], key: str) -> pa.Array:
    """Return `data` with its sensitive values sealed, as `replaced` does it; see `Cipher.of` for the key."""
    return replaced(job, data, fields, Cipher.of(key).protected)


def unprotect(job: pa.Array, data: pa.Array, fields: Mapping[str, SensitiveFields], key: str) -> pa.Array:
    """Return `data` with its sealed values opened, as strings; null where one cannot be opened."""
    return replaced(job, data, fields, Cipher.of(key).unprotected)
