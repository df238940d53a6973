"""Patterns of URNs, in which `*` stands for any text."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from babelqueue_spark.envelope.urns import matches
from tests.examples import examples


@examples(500)
@given(st.text("ab*", max_size=8), st.text("ab\n", max_size=8))
def test_a_star_stands_for_any_text(pattern: str, urn: str) -> None:
    expected = re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), urn, re.DOTALL)
    assert matches(pattern, urn) == (expected is not None)


@pytest.mark.parametrize("end", ["", "b"])
def test_a_long_urn_is_matched_once_from_left_to_right(end: str) -> None:
    """A matcher that tries each way to split it takes years."""
    assert matches("urn:" + "*a" * 20 + "*b", "urn:" + "a" * 200_000 + end) == bool(end)
