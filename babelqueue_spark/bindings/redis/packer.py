"""Pack commands of Redis whose last argument may be an Arrow array: each value is an argument then."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from redis.connection import HiredisRespSerializer, PythonRespSerializer
from redis.exceptions import DataError

from babelqueue_spark.envelope.scan import octets_of

_BUFFER_BYTES = 6000
_LINE_END = pa.scalar(b"\r\n")


class Packer:
    """The `command_packer` of redis-py: packs the values of an array at once, without an object for each."""

    def __init__(self) -> None:
        self._usual: Any = (
            HiredisRespSerializer() if _hiredis_packs() else PythonRespSerializer(_BUFFER_BYTES, _octets)
        )

    def pack(self, *arguments: Any) -> list[bytes | memoryview]:
        """Return the bytes of a command, in pieces. Its last argument may be a binary array.

        Raises:
            DataError: an argument, or a value of the array, is nothing that Redis can keep.
        """
        *words, values = arguments
        if not isinstance(values, pa.Array):
            packed: list[bytes | memoryview] = self._usual.pack(*arguments)
            return packed
        _, _, packed_words = b"".join(self._usual.pack(*words)).partition(b"\r\n")
        return [b"*%d\r\n" % (len(words) + len(values)) + packed_words, _packed(values)]


def _hiredis_packs() -> bool:
    try:
        from hiredis import pack_command  # noqa: F401
    except ImportError:  # it is not there, or an old one
        return False
    return True


def _packed(values: pa.BinaryArray) -> memoryview:
    if values.null_count:
        raise DataError("a value is missing")
    lengths = pc.binary_length(values).cast(pa.string()).cast(pa.binary())
    pieces = (pa.scalar(b"$"), lengths, _LINE_END, values, _LINE_END)
    packed = pc.binary_join_element_wise(*pieces, pa.scalar(b""))
    octets, bounds = octets_of(packed)
    return octets[: bounds[-1]].data


def _octets(argument: Any) -> bytes:
    if isinstance(argument, bytes):
        return argument
    if not isinstance(argument, str | int | float):
        raise DataError(f"an argument is a {type(argument).__name__}")
    return str(argument).encode()
