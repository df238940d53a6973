"""What the tests of the jobs share: a queue in a file, and jobs called as the command line calls them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from babelqueue_spark.jobs.__main__ import main
from tests.brokers import url_of


class Done(NamedTuple):
    code: int
    out: str
    err: str


Run = Callable[..., Done]


@pytest.fixture
def sqlite(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of("sqlite", request, tmp_path)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """`babelqueue-spark` with arguments, in this process: exit code and output."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--master local[2,4] pyspark-shell")
    monkeypatch.setenv("LOG4J_CONFIGURATION_FILE", "of a job")  # undone after the test, whoever sets it
    monkeypatch.delenv("LOG4J_CONFIGURATION_FILE")

    def run(*arguments: str) -> Done:
        capsys.readouterr()
        try:
            code = main(list(arguments))
        except SystemExit as exit:
            code = int(exit.code or 0)
        return Done(code, *capsys.readouterr())

    return run
