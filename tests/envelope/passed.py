"""Says at the end of a test run how many of the codec's conformance cases passed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.envelope.conformance import CODEC

_MODULE = "tests/envelope/test_conformance.py::"
_outcomes: dict[str, bool] = {}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Each test of that module is one case."""
    if report.nodeid.startswith(_MODULE):
        _outcomes[report.nodeid] = report.passed and _outcomes.get(report.nodeid, True)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if _outcomes:
        passed, total = sum(_outcomes.values()), sum(CODEC.values())
        terminalreporter.write_line(f"conformance: codec {passed}/{total} cases passed")
