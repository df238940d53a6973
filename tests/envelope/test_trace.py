"""Whose trace a message continues."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from babelqueue_spark.envelope.trace import trace_context
from tests.envelope.conformance import cases

CASES = cases("traceparent")
PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def context(trace_id: str | None, traceparent: str | None) -> Any:
    return trace_context(pa.array([trace_id], pa.string()), pa.array([traceparent], pa.string()))[0].as_py()


@pytest.mark.parametrize("case", [case for _, case in CASES], ids=[name for name, _ in CASES])
def test_conformance(case: dict[str, Any]) -> None:
    found = context(case["trace_id"], case["traceparent"])
    expected = {"parent_span_id": None, "flags": None, **case["expect"]}
    trace_id = found.pop("trace_id")
    assert {**found, "trace_id_hex": trace_id} == expected


@pytest.mark.parametrize(
    "header",
    [PARENT.replace("4bf92f3577b34da6a3ce929d0e0e4736", "0" * 32), PARENT.replace("00f067aa0ba902b7", "0" * 16), "ff" + PARENT[2:]],
)  # fmt: skip
def test_headers_that_name_no_trace_are_passed_over(header: str) -> None:
    assert context("a-b", header)["source"] == "trace_id"


def test_without_either_there_is_no_context() -> None:
    assert context(None, None) is None
    assert context(None, PARENT)["source"] == "traceparent"
