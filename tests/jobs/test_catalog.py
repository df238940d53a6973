"""The job catalog: schemas from a queue, a queue against schemas, schemas against each other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from babelqueue_spark.catalog import Catalog
from tests.catalog.registries import MAILS, ORDER, ORDERS, registry
from tests.jobs.conftest import Run
from tests.streams import backlog, envelope, publish


def order(queue: str, **data: object) -> bytes:
    return envelope(0, queue, data=data)


def test_a_registry_is_proposed_and_what_is_there_matches_it(
    sqlite: str, queue: str, tmp_path: Path, run: Run
) -> None:
    orders = [order(queue, order_id=n, at="2026-01-31T12:00:00Z") for n in range(20)]
    publish(
        sqlite, queue, [*orders, order(queue, order_id=1, note="x"), envelope(1, queue, job=MAILS), b"bad"]
    )
    at = ("--url", sqlite, "--queue", queue)
    done = run(
        "catalog", "infer", *at, "--output", str(tmp_path / "r"), "--json", str(tmp_path / "found.json")
    )
    assert (done.code, done.err) == (0, "")
    for words in (ORDERS, "order_id", "date-time", "poison"):
        assert words in done.out
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["messages"] == {MAILS: 1, ORDERS: 21}
    assert found["refused"] == {"poison": 1}
    schema = Catalog(tmp_path / "r").schema(ORDERS)
    assert schema == found["schemas"][ORDERS]
    assert schema["required"] == ["order_id"]
    assert schema["properties"]["at"] == {"type": "string", "format": "date-time", "$comment": "in 20 of 21"}
    checked = run(
        "catalog", "check", *at, "--registry", str(tmp_path / "r"), "--json", str(tmp_path / "c.json")
    )
    assert checked.code == 1
    assert json.loads((tmp_path / "c.json").read_text())["findings"] == [
        {"finding": "invalid envelope", "urn": "", "what": "poison", "messages": 1}
    ]
    assert backlog(sqlite, queue) == 23


def test_a_registry_of_plain_json(sqlite: str, queue: str, tmp_path: Path, run: Run) -> None:
    publish(sqlite, queue, [b'{"event":"paid","order":1}', b"[1]", b'{"event":"paid"}', b"no json"])
    at = ("--url", sqlite, "--queue", queue, "--option", "envelope=none", "--option", "jobFrom=field:event")
    done = run("catalog", "infer", *at, "--output", str(tmp_path / "r"))
    assert done.code == 0
    for words in ("no job: set option jobFrom", "invalid_data"):
        assert words in done.out
    schema = Catalog(tmp_path / "r").schema("paid")
    assert schema is not None
    assert schema["required"] == ["event"]
    assert run("catalog", "check", *at, "--registry", str(tmp_path / "r")).code == 1


def test_a_message_that_is_nested_deep(sqlite: str, queue: str, tmp_path: Path, run: Run) -> None:
    objects, arrays = '{"a":' * 490 + "1" + "}" * 490, "[" * 490 + "]" * 490
    bodies = [order(queue, of=json.loads(deep)) for deep in (objects, arrays)]
    publish(sqlite, queue, bodies)
    at = ("--url", sqlite, "--queue", queue)
    assert run("catalog", "infer", *at, "--output", str(tmp_path / "r"))[::2] == (0, "")
    assert run("catalog", "check", *at, "--registry", str(tmp_path / "r"))[::2] == (0, "")


def test_it_looks_at_no_more_than_the_limit(sqlite: str, queue: str, tmp_path: Path, run: Run) -> None:
    publish(sqlite, queue, [envelope(n, queue) for n in range(50)])
    found = tmp_path / "found.json"
    arguments = ("--url", sqlite, "--queue", queue, "--limit", "7", "--json", str(found))
    assert run("catalog", "infer", *arguments).code == 0
    assert json.loads(found.read_text())["messages"] == {ORDERS: 7}


def test_a_registry_is_not_overwritten(sqlite: str, queue: str, tmp_path: Path, run: Run) -> None:
    path = registry(tmp_path, {ORDERS: ORDER})
    publish(sqlite, queue, [envelope(1, queue)])
    before = path.read_text()
    done = run("catalog", "infer", "--url", sqlite, "--queue", queue, "--output", str(tmp_path))
    assert (done.code, path.read_text()) == (1, before)
    assert "is there already" in done.err


def test_a_check_names_what_does_not_match(sqlite: str, queue: str, tmp_path: Path, run: Run) -> None:
    schema = {
        **ORDER,
        "properties": {**ORDER["properties"], "items": {"type": "array", "items": {"type": "string"}}},
    }
    path = registry(tmp_path, {ORDERS: schema})
    good = order(queue, order_id=1, amount=1.5, items=["a"])
    publish(sqlite, queue, [good, good])
    arguments = ("catalog", "check", "--url", sqlite, "--queue", queue, "--registry", str(path))
    done = run(*arguments)
    assert (done.code, done.err) == (0, "")
    assert "2 messages match" in done.out
    bodies = [order(queue, order_id=1, items=["a", 1]), order(queue, order_id=1, items=[1])]
    bodies += [order(queue, order_id=1, colour="red"), envelope(1, queue, job=MAILS), order(queue)]
    publish(sqlite, queue, bodies)
    done = run(*arguments, "--json", str(tmp_path / "found.json"))
    assert done.code == 1
    assert "do not match" in done.err
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["messages"] == 7
    assert [tuple(each.values()) for each in found["findings"]] == [
        ("unknown URN", MAILS, "", 1),
        ("unknown property", ORDERS, "colour", 1),
        ("violation", ORDERS, "items[]: not_a_string", 2),
        ("violation", ORDERS, "order_id: missing_required", 1),
    ]
    assert "items[]: not_a_string" in done.out


def test_schemas_and_registries_are_compared(tmp_path: Path, run: Run) -> None:
    stricter = {**ORDER, "required": ["order_id", "amount"]}
    old = registry(tmp_path / "old", {ORDERS: ORDER, MAILS: {"type": "object"}})
    new = registry(tmp_path / "new", {ORDERS: stricter})
    same = run("catalog", "compat", str(old), str(old))
    assert (same.code, same.out.strip()) == (0, "backward-compatible: no breaking changes.")
    done = run("catalog", "compat", str(old), str(new.parent), "--json", str(tmp_path / "found.json"))
    assert done.code == 1
    assert json.loads((tmp_path / "found.json").read_text())["breaking"] == {
        ORDERS: ['property "amount" is now required'],
        MAILS: ["schema removed"],
    }
    name = "schemas/urn-babel-orders-created.json"
    files = [str(each.parent / name) for each in (old, new)]
    done = run("catalog", "compat", *files)
    assert done.code == 1
    assert 'property "amount" is now required' in done.out
    assert run("catalog", "compat", *reversed(files)).code == 0


@pytest.mark.parametrize("other", ["schema", "missing"])
def test_what_cannot_be_compared_is_one_line(other: str, tmp_path: Path, run: Run) -> None:
    old = registry(tmp_path, {ORDERS: ORDER})
    new = {"schema": "schemas/urn-babel-orders-created.json", "missing": "none.json"}[other]
    done = run("catalog", "compat", str(old), str(tmp_path / new))
    assert (done.code, len(done.err.splitlines())) == (1, 1)


def test_a_broker_that_cannot_be_browsed(run: Run) -> None:
    done = run("catalog", "infer", "--url", "sqs://eu-central-1", "--queue", "orders")
    assert done.code == 1
    assert "shows messages to nobody" in done.err


def test_what_is_in_queues_becomes_an_asyncapi_document_and_a_registry_again(
    sqlite: str, queue: str, tmp_path: Path, run: Run
) -> None:
    mails, other = f"{queue}-mails", tmp_path / "other"
    publish(sqlite, queue, [envelope(1, queue), envelope(2, queue, job=MAILS)])
    publish(sqlite, mails, [envelope(1, mails, job=MAILS)])
    arguments = ("--url", sqlite, "--queue", f"{queue},{mails}", "--output", str(tmp_path / "r"))
    assert run("catalog", "infer", *arguments).code == 0
    document = str(tmp_path / "asyncapi.json")
    export = ("catalog", "export-asyncapi", "--registry", str(tmp_path / "r"), "--output", document)
    done = run(*export, "--queue", f"audit={ORDERS}", "--queue", "all", "--title", "Shop")
    assert (done.code, done.err) == (0, "")
    found = json.loads(Path(document).read_text())
    carried = {each["address"]: list(each["messages"]) for each in found["channels"].values()}
    order, mail = "urn_babel_orders_created", "urn_babel_mails_sent"
    assert carried == {queue: [mail, order], mails: [mail], "audit": [order], "all": [mail, order]}
    done = run("catalog", "import-asyncapi", document, "--output", str(other))
    assert (done.code, done.err) == (0, "")
    for urn in (ORDERS, MAILS):
        assert Catalog(other).schema(urn) == Catalog(tmp_path / "r").schema(urn)
    assert Catalog(other).queues == {MAILS: (queue, mails, "all"), ORDERS: (queue, "audit", "all")}
    again = run("catalog", "import-asyncapi", document, "--output", str(other))
    assert (again.code, len(again.err.splitlines())) == (1, 1)


def test_a_registry_without_queues_has_no_channels(tmp_path: Path, run: Run) -> None:
    path = registry(tmp_path, {ORDERS: ORDER})
    done = run("catalog", "export-asyncapi", "--registry", str(path), "--output", str(tmp_path / "a.json"))
    assert done.code == 1
    assert "no queue is named" in done.err
    assert not (tmp_path / "a.json").exists()
