"""What all jobs have in common: help, usage errors, exit codes, secrets by reference, files of options."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from babelqueue_spark.jobs.__main__ import JOBS
from babelqueue_spark.jobs.command import bar, spinner
from tests.jobs.conftest import Run

ROOT = Path(__file__).parents[2]
READERS = ["drain", "redrive", "tail", "dead_letters"]
UNREACHABLE = "redis://127.0.0.1:1"


def arguments(job: str, url: str, folder: Path) -> list[str]:
    """A command line of a job, complete but for what may be left out."""
    if job == "bridge":
        return [job, "--from-url", url, "--from-queue", "q", "--to-url", url, "--state", str(folder)]
    lines = folder / "lines.jsonl"
    lines.write_text('{"job": "urn:a", "data": {}}')
    more = {"drain": ["--output", str(folder)], "publish": ["--input", str(lines)]}
    return [job, "--url", url, "--queue", "q", *more.get(job, [])]


@pytest.mark.parametrize("job", JOBS)
def test_help_has_an_example_and_the_exit_codes(run: Run, job: str) -> None:
    done = run(job, "--help")
    assert done.code == 0
    assert f"babelqueue-spark {job} " in done.out or job == "demo"
    assert f"spark-submit jobs/{job}.py" in done.out or job == "tail"
    assert "Exit codes: 0 done, 1 something failed" in done.out


@pytest.mark.parametrize("job", JOBS)
def test_each_is_a_file_for_spark_submit(
    job: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [f"jobs/{job}.py", "--help"])
    with pytest.raises(SystemExit, match="0"):
        runpy.run_path(str(ROOT / f"jobs/{job}.py"), run_name="__main__")
    assert capsys.readouterr().out.startswith(f"usage: babelqueue-spark {job}")


def test_the_command_names_its_jobs(run: Run) -> None:
    assert run("--help").code == 0
    assert all(job in run("--help").out for job in JOBS)
    assert (run("nonsense").code, run().code) == (2, 2)


@pytest.mark.parametrize(
    "wrong",
    [
        ["drain", "--url", "redis://h"],
        ["drain", "--schema", "nonsense"],
        ["redrive", "--url", "redis://h", "--queue", "q", "--limit", "0"],
        ["publish", "--url", "redis://h", "--queue", "q", "--table", "t", "--start-line", "2"],
        ["drain", "--url", "redis://h", "--queue", "q", "--namespace", "lake"],
        ["tail", "--url", "redis://h", "--queue", "q", "--every", "soon"],
        ["bridge", "--nonsense"],
    ],
    ids=" ".join,
)
def test_wrong_usage(run: Run, wrong: list[str]) -> None:
    assert run(*wrong).code == 2


@pytest.mark.spark
@pytest.mark.parametrize("job", [job for job in JOBS if job != "demo"])
def test_what_is_wrong_is_one_line_and_an_exit_code(
    spark: Any, run: Run, job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORDERS_URL", "redis://:s3cret@127.0.0.1:1")
    done = run(*arguments(job, "env:ORDERS_URL", tmp_path))
    assert done.code == 1
    assert done.err.startswith(f"{job}: ")
    assert len(done.err.splitlines()) == 1
    assert "127.0.0.1:1" in done.err
    assert "s3cret" not in done.out + done.err


@pytest.mark.parametrize(
    "secret",
    [
        ["--url", "redis://:s3cret@host"],
        ["--url", "postgresql://user:s3cret@host/db"],
        ["--url", "Endpoint=sb://n/;SharedAccessKeyName=a;SharedAccessKey=s3cret"],
        ["--url", "pulsar://host?token=s3cret"],
        ["--url", "amqp://user:pa/s3cret@host/"],
        ["--url", "sqs://eu-west-1?endpoint=http://user:s3cret@host"],
        ["--url", "redis://host", "--option", "redis.password=s3cret"],
        ["--url", "redis://host", "--option", "url=redis://:s3cret@host"],
    ],
    ids=" ".join,
)
def test_a_secret_is_given_by_reference(run: Run, secret: list[str]) -> None:
    done = run("tail", "--queue", "q", *secret)
    assert done.code == 2
    assert "env:NAME" in done.err
    assert "s3cret" not in done.err


def test_files_are_named_without_secrets(run: Run) -> None:
    done = run("drain", "--url", "redis://host", "--queue", "q", "--output", "s3://AKIA:s3cret@bucket/x")
    assert done.code == 2
    assert "s3cret" not in done.err


def test_a_page_that_cannot_be_written_is_one_line(spark: Any, run: Run, tmp_path: Path) -> None:
    queue = ("--url", f"sqlite:///{tmp_path}/queue.db", "--queue", "orders.dlq")
    done = run("dead_letters", *queue, "--html", str(tmp_path / "missing" / "page.html"))
    assert done.code == 1
    assert len(done.err.splitlines()) == 1
    assert "page.html" in done.err


def test_a_folder_of_others_is_no_place_for_a_demo(run: Run, tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    done = run("demo", "--folder", str(tmp_path))
    assert done.code == 1
    assert "name another --folder" in done.err
    assert (tmp_path / "mine").exists()


def test_options_in_a_file(run: Run, tmp_path: Path) -> None:
    options = tmp_path / "orders.options"
    options.write_text(f"# of the shop\n--url sqlite:///{tmp_path}/queue.db\n--queue 'a queue'  # ours\n")
    assert run("tail", f"@{options}") == (0, "", "")
    assert run("tail", f"@{tmp_path}/missing").code == 2


Shown = Callable[[Console], AbstractContextManager[Any]]


@pytest.mark.parametrize(
    "shown",
    [lambda console: bar(console, 10), lambda console: spinner(console, "reading")],
    ids=["bar", "spinner"],
)
@pytest.mark.parametrize("terminal", [True, False])
def test_progress_is_shown_on_a_terminal_only(shown: Shown, terminal: bool) -> None:
    written = StringIO()
    with shown(Console(file=written, force_terminal=terminal)):
        pass
    assert bool(written.getvalue()) == terminal
