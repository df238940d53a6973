"""Journals on an object store: who is first, what an outage costs, and what errors say and hide."""

from __future__ import annotations

import multiprocessing
import pickle
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle

from babelqueue_spark.connector.options import read_options
from babelqueue_spark.errors import JournalError, JournalMissingError, MissingPackageError, OptionError
from babelqueue_spark.journal import Journal
from babelqueue_spark.storage import Store, open_store
from babelqueue_spark.worker import Worker
from tests.s3 import S3Server

SECRET = "wJalrXUtnFEMI-s3cret"


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with S3Server() as server:
        yield server


@pytest.fixture
def store(server: S3Server, queue: str) -> Store:
    return open_store(f"s3://{server.bucket}/{queue}")


def test_one_of_many_writers_is_first_whatever_the_size(server: S3Server, queue: str) -> None:
    for size in (1, 20_000_000):
        contents = [bytes([number]) * size for number in range(4)]
        barrier = threading.Barrier(len(contents))

        def write(content: bytes, barrier: threading.Barrier = barrier, size: int = size) -> bool:
            store = open_store(f"s3://{server.bucket}/{queue}")
            barrier.wait()
            return store.create(f"{size}.arrow", content)

        with ThreadPoolExecutor(len(contents)) as pool:
            first = list(pool.map(write, contents))
        assert first.count(True) == 1
        found = open_store(f"s3://{server.bucket}/{queue}").read(f"{size}.arrow")
        assert found == contents[first.index(True)]


VERBS: dict[str, Callable[[Store], Any]] = {
    "create": lambda store: store.create("a", b"{1}"),
    "replace": lambda store: store.replace("a", b"{1}"),
    "read": lambda store: store.read("a"),
    "list": lambda store: store.names(""),
    "remove": lambda store: store.remove("folder"),
    "remove_file": lambda store: store.remove_file("folder/b"),
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("fault", ["unavailable", "unanswered", "down"])
def test_each_verb_outlives_an_outage(server: S3Server, store: Store, verb: str, fault: str) -> None:
    store.create("folder/b", b"{}")
    if verb in ("read", "list"):
        store.create("a", b"{1}")
    back = threading.Timer(1.5, server.start)
    if fault == "down":
        server.stop()
        back.start()
    elif fault == "unavailable":
        server.be_unavailable(4)
    else:
        server.lose_answers(1)
    done = VERBS[verb](store)
    if fault == "down":
        back.join()
    assert done == {"create": True, "read": b"{1}", "list": ["a", "folder"]}.get(verb)
    left = {"remove": [], "remove_file": []}.get(verb, ["b"])
    assert store.names("folder") == left
    assert store.read("a") == (None if verb.startswith("remove") else b"{1}")


def test_a_writer_whose_answer_was_lost_still_loses_to_another(server: S3Server, store: Store) -> None:
    assert store.create("a", b"{first}")
    server.lose_answers(1)
    assert not store.create("a", b"{second}")
    assert store.read("a") == b"{first}"


def test_a_bucket_that_is_not_there_is_named_with_the_cause(server: S3Server) -> None:
    with pytest.raises(JournalMissingError) as raised:
        _ = Journal(f"s3://absent-{server.bucket}/x").id
    assert f"the bucket or container 'absent-{server.bucket}' is not there (404 Not Found" in str(
        raised.value
    )
    assert "bucket does not exist" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_an_outage_without_end_names_the_bucket_and_the_cause(server: S3Server) -> None:
    config = {"secret_access_key": SECRET, "timeout": "1s"}
    impatient = open_store(f"s3://{server.bucket}/x", config=config, patience=1.0)
    server.stop()
    try:
        with pytest.raises(JournalError, match="Connection refused") as raised:
            impatient.create("a", b"{}")
    finally:
        server.start()
    assert f"the store of '{server.bucket}' cannot be used" in str(raised.value)
    assert "check the endpoint" in str(raised.value)
    assert SECRET not in str(raised.value)
    assert "\n" not in str(raised.value)


def test_options_reach_the_store_and_their_values_stay_hidden(
    server: S3Server, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    monkeypatch.setenv("JOURNAL_KEY", SECRET)
    given = {
        "url": "redis://host",
        "queue": "orders",
        "journalLocation": f"s3://{server.bucket}/{queue}",
        "journal.endpoint": server.url,
        "Journal.Region": "us-east-1",
        "journal.access_key_id": "literal-key-id",
        "journal.secret_access_key": "env:JOURNAL_KEY",
    }
    options = read_options(given)
    assert SECRET not in repr(options)
    assert "literal-key-id" not in repr(options)
    assert SECRET.encode() not in pickle.dumps(options)
    journal = pickle.loads(pickle.dumps(options)).journal()
    assert len(journal.id) == 32
    assert SECRET not in repr(vars(journal))


def test_a_worker_passes_options_to_its_journal_on_executors(
    server: S3Server, queue: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    monkeypatch.setenv("JOURNAL_KEY", SECRET)
    given = {
        "url": f"sqlite:///{tmp_path}/queue.db",
        "journal.endpoint": server.url,
        "journal.secret_access_key": "env:JOURNAL_KEY",
    }
    work = Worker(given, state=f"s3://{server.bucket}/{queue}")._work("run", 1, None)
    assert SECRET.encode() not in cloudpickle.dumps(work)
    pickle.loads(cloudpickle.dumps(work)).decisions().begin()
    assert open_store(f"s3://{server.bucket}/{queue}", config={"endpoint": server.url}).names(
        "run/0000000001"
    )


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("journal.nonsense", SECRET, "option 'journal.nonsense' is unknown for s3://b/x"),
        ("journal.timeout", "soon", "cannot be opened: .*failed to parse"),
        ("journal.request_payer", SECRET, "cannot be opened"),
        ("journal.secret_access_key", "env:NO_SUCH_VARIABLE", "'journal.secret_access_key' refers to"),
    ],
)
def test_a_wrong_option_is_named_and_its_value_is_not_shown(option: str, value: str, says: str) -> None:
    given = {"url": "redis://host", "queue": "orders", "journalLocation": "s3://b/x", option: value}
    with pytest.raises(OptionError, match=says) as raised:
        read_options(given).journal()
    assert SECRET not in str(raised.value)


def test_options_of_a_store_are_refused_for_a_directory() -> None:
    given = {"url": "redis://host", "queue": "orders", "journalLocation": "/tmp/x", "journal.region": "eu"}
    with pytest.raises(OptionError, match=r"'journal\.region' is for a journalLocation on an object store"):
        read_options(given)


def test_the_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.delitem(sys.modules, "babelqueue_spark.storage.bucket", raising=False)
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(MissingPackageError, match=r"babelqueue-spark\[objectstore\]"):
        open_store("s3://b/x")


def test_a_forked_process_is_refused_and_does_not_hang(store: Store) -> None:
    """The client's threads end with a fork: a request would never be answered."""
    store.create("a", b"{}")
    with multiprocessing.get_context("fork").Pool(1) as pool:
        said = pool.apply_async(_read_after_fork, (f"{store.location}",)).get(timeout=30)
    assert "start this one by 'spawn'" in said


def _read_after_fork(location: str) -> str:
    try:
        open_store(location).read("a")
    except JournalError as error:
        return str(error)
    return "read"
