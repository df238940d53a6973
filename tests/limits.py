"""The tests that took longer than their marks allow are named at the end; they do not fail the run."""

from __future__ import annotations

import pytest

SECONDS = 120.0
"""Of the call of a test. It is far more than any should take: machines differ."""
SLOW_SECONDS = 600.0
"""Of one that is marked `slow`."""


class Limits:
    """Notes the tests that take too long; in the process that reports, not in xdist's workers."""

    def __init__(self) -> None:
        self._late: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        limit = SLOW_SECONDS if "slow" in report.keywords else SECONDS
        if report.when == "call" and report.duration > limit:
            self._late.append(f"{report.nodeid}: {report.duration:.0f} s, where {limit:.0f} s are expected")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._late:
            terminalreporter.section("slower than their marks say", yellow=True)
            for line in self._late:
                terminalreporter.write_line(line, yellow=True)


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Limits())
