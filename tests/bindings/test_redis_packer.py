"""Arrays of values are packed into the same bytes as so many arguments."""

from __future__ import annotations

from typing import Any

import hiredis
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.connection import PythonRespSerializer
from redis.exceptions import DataError

from babelqueue_spark.bindings.redis import packer
from babelqueue_spark.bindings.redis.packer import Packer
from tests.examples import examples

VALUES = st.lists(st.binary(max_size=300), max_size=20)


def usual(*arguments: Any) -> bytes:
    """What redis-py makes of a command of texts and bytes."""
    encoded = [each if isinstance(each, bytes) else str(each).encode() for each in arguments]
    return b"".join(PythonRespSerializer(6000, bytes).pack(*encoded))


def packed(*arguments: Any) -> bytes:
    return b"".join(Packer().pack(*arguments))


@examples(100)
@given(VALUES, VALUES)
def test_values_of_an_array_are_arguments(before: list[bytes], values: list[bytes]) -> None:
    part = pa.array([*before, *values], pa.binary()).slice(len(before))
    assert packed("RPUSH", "größe", part) == usual(b"RPUSH", "größe", *values)


def test_without_hiredis_it_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packer, "_hiredis_packs", lambda: False)
    assert packed("RPUSH", "q", pa.array([b"a", b"\xff"])) == usual(b"RPUSH", b"q", b"a", b"\xff")
    assert packed("SET", "größe", 1, 2.5, b"XX") == usual(b"SET", "größe", b"1", b"2.5", b"XX")


def test_a_hiredis_that_cannot_pack_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(hiredis, "pack_command")
    assert packed("SET", "q", 1) == usual(b"SET", b"q", b"1")


@pytest.mark.parametrize("hiredis_packs", [True, False])
@pytest.mark.parametrize("last", [None, pa.array([b"a", None])])
def test_what_is_missing_is_refused(last: Any, hiredis_packs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packer, "_hiredis_packs", lambda: hiredis_packs)
    with pytest.raises(DataError):
        packed("RPUSH", "q", last)


def test_other_commands_are_packed_as_usual() -> None:
    assert packed("CONFIG GET", "größe", 1) == usual(b"CONFIG", b"GET", "größe", b"1")
