"""What all jobs have in common: help, usage errors, exit codes, secrets by reference, files of options."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from babelqueue_spark import __version__
from babelqueue_spark.exchange import EventStore, Outbox, Schedule
from babelqueue_spark.jobs.__main__ import JOBS
from babelqueue_spark.jobs.command import bar, new_console, spinner
from tests.exchange.outboxes import store as store_rows
from tests.exchange.schedules import store
from tests.jobs.conftest import Run
from tests.programs import without

ROOT = Path(__file__).parents[2]
FILES = ROOT / "babelqueue_spark/jobs"
UNREACHABLE = "redis://127.0.0.1:1"


WITHOUT_SPARK = ("catalog", "recover", "relay", "release", "serve", "tail")


def arguments(job: str, url: str, folder: Path) -> list[str]:
    """A command line of a job, complete but for what may be left out."""
    if job == "bridge":
        return [job, "--from-url", url, "--from-queue", "q", "--to-url", url, "--state", str(folder)]
    if job == "release":
        schedule = Schedule(f"sqlite:///{folder}/schedule.db")
        store(schedule, [1])
        return [job, "--schedule", schedule.url, "--url", url, "--queue", "q"]
    if job == "events":
        EventStore(str(folder / "events")).put("acme:orders", [{"job": "urn:a", "data": {}}])
        # Spark's workers, which publish, do not see what a test puts into the environment.
        (folder / "url").write_text(os.environ[url.removeprefix("env:")])
        return [job, "replay", str(folder / "events"), "--url", f"file:{folder}/url", "--queue", "q"]
    if job == "relay":
        outbox = Outbox(f"sqlite:///{folder}/shop.db")
        store_rows(outbox, [1], ["q"])
        return [job, "--outbox", outbox.url, "--url", url, "--once"]
    if job == "catalog":
        return [job, "infer", "--url", url, "--queue", "q"]
    lines = folder / "lines.jsonl"
    lines.write_text('{"job": "urn:a", "data": {}}')
    more = {"drain": ["--output", str(folder)], "publish": ["--input", str(lines)]}
    return [job, "--url", url, "--queue", "q", *more.get(job, [])]


def file_of(job: str) -> str:
    return f"{job.replace('-', '_')}.py"


@pytest.mark.parametrize("job", JOBS)
def test_help_has_an_example_and_the_exit_codes(run: Run, job: str) -> None:
    done = run(job, "--help")
    assert done.code == 0
    assert f"babelqueue-spark {job} " in done.out or job == "demo"
    assert f"spark-submit jobs/{file_of(job)}" in done.out or job in WITHOUT_SPARK
    assert "Exit codes: 0 done, 1 something failed" in done.out


@pytest.mark.parametrize("folder", [ROOT / "jobs", FILES], ids=["clone", "installed"])
@pytest.mark.parametrize("job", JOBS)
def test_each_is_a_file_for_spark_submit(
    job: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(folder / file_of(job))
    monkeypatch.setattr(sys, "argv", [file, "--help"])
    with pytest.raises(SystemExit, match="0"):
        runpy.run_path(file, run_name="__main__")
    assert capsys.readouterr().out.startswith(f"usage: babelqueue-spark {job}")


def test_the_command_names_the_folder_of_its_files(run: Run) -> None:
    assert run("--files") == (0, f"{FILES}\n", "")


def test_a_job_is_a_module_too() -> None:
    command = [sys.executable, "-m", "babelqueue_spark.jobs.tail", "--url", UNREACHABLE, "--queue", "q"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("tail: ")


def test_the_command_names_its_jobs(run: Run) -> None:
    assert run("--help").code == 0
    assert all(job in run("--help").out for job in JOBS)
    assert (run("nonsense").code, run().code) == (2, 2)


def test_an_unknown_job_is_named_with_the_nearest_one(run: Run) -> None:
    assert run("drian").err == "babelqueue-spark: 'drian' is not a job: did you mean drain?\n"
    assert "use one of drain, publish," in run("nonsense").err


def test_the_version(run: Run) -> None:
    assert run("--version") == (0, f"babelqueue-spark {__version__}\n", "")


def test_a_job_may_have_an_underscore(run: Run) -> None:
    assert run("dead_letters", "--help") == run("dead-letters", "--help")


def completed(script: Path, *words: str) -> list[str]:
    """What bash proposes for the last of the words."""
    ask = 'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _shtab_babelqueue_spark'
    command = ["bash", "-c", f'{ask}; printf "%s\n" "${{COMPREPLY[@]}}"', "bash", str(script), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def test_bash_completes_jobs_and_their_options(run: Run, tmp_path: Path) -> None:
    script = tmp_path / "completion"
    script.write_text(run("completion", "bash").out)
    assert completed(script, "babelqueue-spark", "de") == ["dead-letters", "demo"]
    assert completed(script, "babelqueue-spark", "publish", "--start") == ["--start-line"]
    assert run("completion", "zsh").out.startswith("#compdef babelqueue-spark")


def test_numbers_are_one_colour() -> None:
    written = StringIO()
    new_console(file=written, force_terminal=True, color_system="standard").print("55,014 messages")
    assert written.getvalue() == "\x1b[1;36m55,014\x1b[0m messages\n"


@pytest.mark.parametrize(
    "wrong",
    [
        ["drain", "--url", "redis://h"],
        ["drain", "--schema", "nonsense"],
        ["redrive", "--url", "redis://h", "--queue", "q", "--limit", "0"],
        ["publish", "--url", "redis://h", "--queue", "q", "--table", "t", "--start-line", "2"],
        ["drain", "--url", "redis://h", "--queue", "q", "--namespace", "lake"],
        ["tail", "--url", "redis://h", "--queue", "q", "--every", "soon"],
        ["serve", "--url", "redis://h", "--queue", "q", "--port", "65536"],
        ["serve", "--url", "redis://h", "--queue", "q", "--metrics", "file:///etc/passwd"],
        ["serve", "--url", "redis://h", "--queue", "q", "--metrics", "http://user:s3cret@host/metrics"],
        ["release", "--schedule", "sqlite:////srv/s.db"],
        ["release", "cancel", "--schedule", "sqlite:////srv/s.db"],
        ["release", "list", "--schedule", "postgresql://user:s3cret@host/db"],
        ["events", "replay", "/srv/events", "--url", "redis://h"],
        ["events", "export", "/srv/events", "--since", "yesterday"],
        ["bridge", "--nonsense"],
    ],
    ids=" ".join,
)
def test_wrong_usage(run: Run, wrong: list[str]) -> None:
    assert run(*wrong).code == 2


@pytest.mark.spark
@pytest.mark.parametrize("job", [job for job in JOBS if job not in ("demo", "serve")])
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
    assert run("tail", f"@{options}") == (0, "", "a queue: no messages\n")
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


@pytest.mark.spark
@pytest.mark.parametrize("verbose", [pytest.param(True, marks=pytest.mark.nightly), False])
def test_spark_is_quiet_unless_asked(tmp_path: Path, verbose: bool) -> None:
    arguments = ["dead-letters", "--url", f"sqlite:///{tmp_path}/queue.db", "--queue", "q"]
    clean = {name: value for name, value in os.environ.items() if name != "JDK_JAVA_OPTIONS"}
    done = subprocess.run(
        [sys.executable, "-m", "babelqueue_spark.jobs", *arguments, *(["--verbose"] if verbose else [])],
        env={**clean, "PYTHONPATH": str(ROOT), "PYSPARK_SUBMIT_ARGS": "--master local[1] pyspark-shell"},
        capture_output=True,
        text=True,
        check=True,
    )
    of_java = "WARNING: Using incubator modules"
    logged = [line for line in done.stderr.splitlines() if not line.startswith(of_java)]
    assert bool(logged) == verbose


def test_logging_that_the_user_has_set_stays(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOG4J_CONFIGURATION_FILE", "mine.properties")
    run("tail", "--url", "redis://127.0.0.1:1", "--queue", "q")
    assert os.environ["LOG4J_CONFIGURATION_FILE"] == "mine.properties"


PROGRAM = "import sys\nfrom babelqueue_spark.jobs.__main__ import main\nsys.exit(main())"


@pytest.mark.parametrize("job", ["release", "events", "relay"])
def test_help_needs_no_extra_of_a_database_or_a_store(tmp_path: Path, job: str) -> None:
    done = without(["sqlalchemy", "deltalake", "obstore"], PROGRAM, tmp_path, job, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: babelqueue-spark {job} ")


@pytest.mark.parametrize("missing", ["rich", "pyspark"])
def test_help_names_the_package_that_options_need(tmp_path: Path, missing: str) -> None:
    done = without([missing], PROGRAM, tmp_path, "tail", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Show the last messages of a queue")
    assert f"needs the Python package '{missing}': pip install" in done.stdout


def test_a_missing_package_of_a_schedule_is_one_line(tmp_path: Path) -> None:
    given = ("--schedule", "sqlite:////srv/schedule.db", "--url", UNREACHABLE)
    done = without(["sqlalchemy"], PROGRAM, tmp_path, "release", *given)
    assert done.returncode == 1
    assert done.stderr.startswith("release: ")
    assert len(done.stderr.splitlines()) == 1


def test_a_missing_package_of_spark_connect_is_named(tmp_path: Path) -> None:
    queue = ["--url", f"sqlite:///{tmp_path}/queue.db", "--queue", "q"]
    done = without(["grpc"], PROGRAM, tmp_path, "dead-letters", *queue, SPARK_REMOTE="sc://127.0.0.1:1")
    assert done.stderr.startswith("dead-letters: [PACKAGE_NOT_INSTALLED] grpcio")
    assert done.stderr.endswith('pip install "babelqueue-spark[connect]"\n')
