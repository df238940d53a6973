"""The job doctor: what it finds well and what it finds wrong, and that it leaves everything as it was."""

from __future__ import annotations

import json
import time
import venv
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from redis import Redis

from babelqueue_spark.bindings import BindingConfig, clocks
from babelqueue_spark.bindings.sql import SqlBinding
from babelqueue_spark.connector.options import read_options
from babelqueue_spark.jobs.checks import broker, machine, storage
from babelqueue_spark.jobs.checks.broker import OWN_QUEUE
from babelqueue_spark.jobs.checks.findings import Finding, explained, reason_of
from babelqueue_spark.jobs.checks.machine import extras, problems
from babelqueue_spark.journal import Journal
from babelqueue_spark.storage import open_store
from tests.brokers import url_of
from tests.jobs.conftest import Done, Run
from tests.programs import without
from tests.s3 import S3Server
from tests.servers import RedisServer
from tests.servers.kafka import KafkaServer
from tests.streams import backlog, envelope, outgoing, publish

BROKERS = ["sqlite", "redis", "rabbitmq"]
PROGRAM = "from babelqueue_spark.jobs.__main__ import main\nsys.exit(main())"


python_of_tasks = machine.python_of_tasks


@cache
def of_tasks() -> list[Finding]:
    return list(python_of_tasks())


@pytest.fixture(autouse=True)
def python_of_tasks_is_started_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes a second, and is the same for all tests but its own."""
    monkeypatch.setattr(machine, "python_of_tasks", of_tasks)


@pytest.fixture(params=BROKERS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of(request.param, request, tmp_path)


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with S3Server() as server:
        yield server


@pytest.fixture
def doctor(run: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The job on a queue of a URL, which it gets by reference."""

    def examine(url: str, queue: str, *more: str) -> Done:
        monkeypatch.setenv("ORDERS_URL", url)
        return run("doctor", "--url", "env:ORDERS_URL", "--queue", queue, *more)

    return examine


def lines(done: Done, check: str) -> list[str]:
    """The lines of a check, without its name."""
    found = (line.partition(f"  {check}: ") for line in done.out.splitlines())
    return [f"{status.strip()}: {text}" for status, name, text in found if name]


def test_all_is_well_and_stays_as_it_is(
    url: str, queue: str, doctor: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "_SLOW_SECONDS", 60.0)
    publish(url, queue, [envelope(1), envelope(2)])
    report = tmp_path / "findings.json"
    done = doctor(url, queue, "--journal", str(tmp_path / "new/journal"), "--json", str(report))
    assert (done.code, done.err) == (0, "")
    [of_queue] = lines(done, f"queue {queue}")
    assert "answers: 2 messages" in of_queue
    for check in ("Python", "Python of tasks", "Java", "PySpark", "packages", "extras"):
        assert [line[:4] for line in lines(done, check)] == ["ok: "]
    assert [line[:4] for line in lines(done, "journal") + lines(done, "journal speed")] == ["ok: ", "ok: "]
    written = json.loads(report.read_text())
    assert written["ok"] is True
    assert len(written["findings"]) == len(done.out.splitlines())
    assert backlog(url, queue) == 2
    assert not (tmp_path / "new").exists()


def test_a_queue_behind_laravels_prefix(redis_server: RedisServer, queue: str, doctor: Run) -> None:
    with Redis(port=redis_server.port) as client:
        client.rpush(f"laravel_database_queues:{queue}", envelope(1))
        client.rpush(f"{queue}*:app:{queue}x", b"no queue of this name")
        says = (
            f"warning: Redis answers: no messages, but there is a list 'laravel_database_queues:{queue}': to "
            "read it, set redis.laravel=true, redis.prefix=laravel_database_queues:"
        )
        assert lines(doctor(redis_server.url, queue), f"queue {queue}") == [says]
        options = ("--option", "redis.laravel=true")
        assert lines(doctor(redis_server.url, queue, *options), f"queue {queue}") == [says]
        client.rename(f"laravel_database_queues:{queue}", f"app:{queue}")
        [found] = lines(doctor(redis_server.url, queue), f"queue {queue}")
        assert found.endswith(f"set queue=app:{queue}")


def test_rows_that_php_wrote_in_another_zone(sqlite: str, queue: str, doctor: Run, run: Run) -> None:
    with SqlBinding(BindingConfig(url=sqlite, client_options={"time_zone": "Asia/Tokyo"})) as php:
        php.publish(queue, outgoing([envelope(1)]))
    says = "1 messages were written later than now in UTC: set sql.time_zone to the zone of their writer"
    done = doctor(sqlite, queue)
    assert done.code == 0
    assert says in done.out
    assert says in run("tail", "--url", sqlite, "--queue", queue).err
    publish(sqlite, queue, [envelope(2)])
    assert says not in doctor(sqlite, queue).out


@pytest.mark.parametrize("url", ["sqlite", "rabbitmq"], indirect=True)
def test_what_is_missing_is_not_created(url: str, queue: str, doctor: Run, tmp_path: Path) -> None:
    for _ in range(2):
        done = doctor(url, queue)
        assert done.code == 0
        [of_queue] = lines(done, f"queue {queue}")
        assert "is not there: the first use creates it if it may" in of_queue
    assert not (tmp_path / "queue.db").exists()


def test_a_probe_has_a_queue_of_its_own(url: str, queue: str, doctor: Run) -> None:
    publish(url, queue, [envelope(1)])
    done = doctor(url, queue, "--probe")
    assert done.code == 0, done.err
    [probe] = lines(done, "probe")
    assert probe.startswith(f"ok: a message was published to '{OWN_QUEUE}-")
    assert probe.endswith("claimed and acknowledged")
    assert backlog(url, queue) == 1


def test_a_probe_leaves_nothing_in_redis(redis_server: RedisServer, queue: str, doctor: Run) -> None:
    url = f"{redis_server.url[:-1]}9"
    with Redis.from_url(url) as client:
        client.flushdb()
        assert doctor(url, queue, "--probe").code == 0
        assert client.keys() == []


def test_a_probe_takes_nobodys_messages(sqlite: str, queue: str, doctor: Run) -> None:
    publish(sqlite, queue, [envelope(1)])
    done = doctor(sqlite, queue, "--probe", queue)
    assert done.code == 1
    assert f"queue '{queue}' has 1 messages: name an empty one" in done.err
    assert backlog(sqlite, queue) == 1


def test_kafka_keeps_what_is_published(kafka_server: KafkaServer, queue: str, doctor: Run) -> None:
    url = kafka_server.url
    publish(url, queue, [envelope(1)])
    assert "name a queue of tests, --probe QUEUE" in doctor(url, queue, "--probe").err
    assert lines(doctor(url, queue, "--probe", queue), "probe") == [
        f"ok: a message was published to '{queue}'"
    ]
    assert backlog(url, queue) == 2


@pytest.mark.parametrize("url", ["redis", "rabbitmq"], indirect=True)
def test_a_wrong_password_is_not_shown(url: str, queue: str, doctor: Run) -> None:
    scheme, _, address = url.rpartition("@" if "@" in url else "://")
    done = doctor(f"{scheme.partition('://')[0]}://nobody:wr0ng-s3cret@{address}", queue)
    assert done.code == 1
    assert len(done.err.splitlines()) == 1
    assert "[BABELQUEUE_BROKER_AUTHENTICATION]" in done.err
    assert "s3cret" not in done.out + done.err


def test_a_right_that_is_missing(redis_server: RedisServer, queue: str, doctor: Run) -> None:
    with redis_server.client() as client:
        client.acl_setuser(
            "reader", enabled=True, passwords=["+s3cret"], keys=["mine*"], categories=["+@all"]
        )
        try:
            url = redis_server.url.replace("://", "://reader:s3cret@")
            done = doctor(url, f"{queue},mine-{queue}")
        finally:
            client.acl_deluser("reader")
    assert done.code == 1
    [refused] = lines(done, f"queue {queue}")
    assert refused.startswith("failed: [BABELQUEUE_QUEUE_FORBIDDEN]")
    assert lines(done, f"queue mine-{queue}")[0].startswith("ok: Redis answers: 0 messages")
    assert "s3cret" not in done.out + done.err


def test_a_broker_that_is_away(queue: str, doctor: Run) -> None:
    done = doctor("amqp://127.0.0.1:1", queue)
    assert done.code == 1
    assert "RabbitMQ at 127.0.0.1:1" in lines(done, "broker")[0]


@pytest.mark.parametrize("url", ["redis", "postgresql"], indirect=True)
def test_a_clock_that_is_off(url: str, queue: str, doctor: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(url, queue, [envelope(1)])
    assert lines(doctor(url, queue), "clock")[0].startswith("ok: ")
    wall = time.time
    monkeypatch.setattr(time, "time", lambda: wall() - 120)
    monkeypatch.setattr(clocks, "_warned", set())
    done = doctor(url, queue)
    assert (done.code, done.err) == (0, "")
    [off] = lines(done, "clock")
    assert off.startswith("warning: this host's is 1")
    assert off.endswith("s behind the server's: set both by NTP")


def test_a_directory_that_cannot_be_written(run: Run) -> None:
    done = run("doctor", "--journal", "/sys/kernel/journal")
    assert done.code == 1
    assert "journalLocation /sys/kernel/journal cannot be used (PermissionError" in done.err


def test_a_disk_that_is_nearly_full(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "LEAST_FREE", 1 << 60)
    done = run("doctor", "--journal", str(tmp_path))
    assert done.code == 0
    assert lines(done, "journal space")[0].startswith("warning: ")


def test_a_journal_in_use_stays_as_it_is(run: Run, tmp_path: Path) -> None:
    journal = Journal(str(tmp_path / "journal"))
    assert journal.id
    journal.take_over()
    before = sorted(tmp_path.rglob("*"))
    assert run("doctor", "--journal", journal.location).code == 0
    assert sorted(tmp_path.rglob("*")) == before
    journal.check_owner()


@pytest.mark.slow
def test_a_bucket(s3: S3Server, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    location = f"s3://{s3.bucket}/doctor/journal"
    monkeypatch.setattr(storage, "_PATIENCE", 60.0)
    assert lines(run("doctor", "--journal", location), "journal") == [
        f"ok: {location}: of two writers, one creates a file"
    ]
    assert open_store(f"s3://{s3.bucket}").names("") == []
    missing = run("doctor", "--journal", "s3://no-such-bucket/journal")
    assert missing.code == 1
    assert "bucket or container 'no-such-bucket' is not there" in missing.err
    monkeypatch.setattr(storage, "_PATIENCE", 1.0)
    s3.stop()
    away = run("doctor", "--journal", location, "--option", "journal.connect_timeout=1s")
    s3.start()
    assert away.code == 1
    assert f"the store of '{s3.bucket}' cannot be used" in away.err


def test_an_executor_that_sees_another_directory(tmp_path: Path) -> None:
    for host in ("driver", "executor"):
        (tmp_path / host).mkdir()
    (tmp_path / "driver/token").write_bytes(b"{token}")
    seen = storage.sees(str(tmp_path / "driver"), {}, "token", b"{token}")
    assert [each.status for each in seen] == ["ok"]
    [other] = storage.sees(str(tmp_path / "executor"), {}, "token", b"{token}")
    assert other.status == "failed"
    assert "mount the driver's directory at the same path" in other.text
    assert not list((tmp_path / "executor").iterdir())


@pytest.mark.parametrize(
    "missing", [["rich"], ["pyspark", "pandas"], ["pyarrow"], ["redis", "rich"]], ids=" ".join
)
def test_without_packages(missing: list[str], tmp_path: Path, queue: str) -> None:
    asked = [
        "doctor",
        "--url",
        "redis://127.0.0.1:1",
        "--queue",
        queue,
        "--journal",
        str(tmp_path / "journal"),
    ]
    done = without(missing, PROGRAM, tmp_path, *asked)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr + done.stdout
    assert len(done.stderr.splitlines()) == 1
    if missing != ["rich"]:
        assert missing[0] in done.stderr
        assert "pip install" in done.stderr


def test_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    [missing] = machine.java()
    assert (missing.status, missing.text.partition(":")[0]) == (
        "failed",
        f"JAVA_HOME {tmp_path} has no bin/java",
    )
    (tmp_path / "bin").mkdir()
    java = tmp_path / "bin/java"
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.22\" 2024-01-16' >&2\n")
    java.chmod(0o755)
    [old] = machine.java()
    assert (old.status, old.text.partition(":")[0]) == ("failed", f"11.0.22 at {java} is too old")
    monkeypatch.setenv("SPARK_REMOTE", "sc://127.0.0.1:1")
    assert [each.status for each in machine.java()] == ["ok"]


def test_the_python_of_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    venv.create(tmp_path / "bare", with_pip=False)
    monkeypatch.setenv("PYSPARK_PYTHON", str(tmp_path / "bare/bin/python"))
    [bare] = python_of_tasks()
    assert (bare.status, "lacks babelqueue-spark, or what it needs" in bare.text) == ("failed", True)
    monkeypatch.setenv("PYSPARK_PYTHON", "./environment/bin/python")
    [elsewhere] = python_of_tasks()
    assert (elsewhere.status, "is not on this machine" in elsewhere.text) == ("failed", True)
    monkeypatch.delenv("PYSPARK_PYTHON")
    monkeypatch.setenv("PATH", str(tmp_path / "bare/bin"), prepend=":")
    [found] = python_of_tasks()
    assert found.status == "warning"
    assert found.text.startswith("python3 on the PATH lacks babelqueue-spark")


def test_pyspark_and_its_table_formats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark.__version__", "4.0.1")
    [old] = explained("PySpark", machine.pyspark())
    assert "the connector needs pyspark 4.1 or newer, but this Python has 4.0.1" in old.text
    for version, said in (
        ("4.1.0", "4.1.0; Delta Lake 4.4.0 and Apache Iceberg 1.12 go with it"),
        ("4.2.0", "4.2.0; Delta Lake 4.4.0 goes with it"),
        (
            "4.3.0",
            '4.3.0; tables of Delta Lake 4.4.0 and Apache Iceberg 1.12 need pip install "pyspark==4.1.*"',
        ),
    ):
        monkeypatch.setattr("pyspark.__version__", version)
        found = next(machine.pyspark())
        assert (found.status, found.text) == ("ok", said)


@pytest.mark.parametrize(
    "wrong",
    [["--url", "redis://h"], ["--queue", "q"], ["--probe"], ["--journal", "s3://AKIA:s3cret@bucket/x"]],
    ids=" ".join,
)
def test_wrong_usage(run: Run, wrong: list[str]) -> None:
    done = run("doctor", *wrong)
    assert done.code == 2
    assert "s3cret" not in done.err


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["--url", "env:NO_SUCH_URL", "--queue", "q"], "environment variable NO_SUCH_URL, which is not set"),
        (["--url", "redis://h", "--queue", "q", "--option", "redis.no=1"], "is unknown"),
        (["--url", "nonsense://h", "--queue", "q"], "names no broker"),
        (["--journal", "journal"], "takes an absolute path or a URL"),
        (["--journal", "hdfs://host/journal"], "mount other storage"),
        (["--master", "spark://127.0.0.1:1"], "spark://127.0.0.1:1 cannot be reached"),
    ],
    ids=str,
)
def test_what_is_wrong_is_said_once(run: Run, asked: list[str], said: str) -> None:
    done = run("doctor", *asked)
    assert done.code == 1
    assert done.err.startswith("doctor: 1 of ")
    assert said in done.err
    assert len(done.err.splitlines()) == 1


def test_findings_that_cannot_be_written(run: Run, tmp_path: Path) -> None:
    done = run("doctor", "--json", str(tmp_path / "missing/findings.json"))
    assert done.code == 1
    assert (
        done.err
        == f"doctor: {tmp_path}/missing/findings.json cannot be written (No such file or directory)\n"
    )


def test_bounds_of_packages() -> None:
    assert list(problems(extras()["spark"])) == []
    found = problems(
        {"pyarrow": ">=999", "pandas": ">=2.2,<2.2", "no-such-package": "", "msgspec": "==0.0.*"}
    )
    assert [text.split()[0] for text in found] == ["pyarrow", "pandas", "no-such-package", "msgspec"]
    assert extras()["redis"] == {"redis": ">=5.0"}
    assert set(extras()[""]) == {"pyarrow", "numpy", "msgspec", "jiter"}


def test_an_error_of_nobodys_shows_no_text() -> None:
    assert reason_of(ValueError("password=s3cret")) == "ended with ValueError: report it, with what you ran"


def test_a_probe_takes_no_message_of_somebody_else(sqlite: str, queue: str) -> None:
    publish(sqlite, queue, [b"somebody's"])
    with read_options({"url": sqlite, "queue": queue}).queue_binding() as binding:
        assert not broker._take(binding, queue, b"our own")
    assert backlog(sqlite, queue) == 1
