"""A test that takes longer than its marks allow fails the run, though it passes."""

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
            self._late.append(f"{report.nodeid}: {report.duration:.0f} s, where {limit:.0f} s are allowed")

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._late and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._late:
            terminalreporter.section("too slow for their marks", red=True)
            for line in self._late:
                terminalreporter.write_line(line, red=True)


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Limits())
