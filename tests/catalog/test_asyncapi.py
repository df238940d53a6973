"""AsyncAPI documents of registries, valid by the schema that AsyncAPI publishes, and registries of documents."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from babelqueue.schema import DirProvider
from jsonschema import Draft7Validator

from babelqueue_spark.errors import OptionError
from babelqueue_spark.schemas.asyncapi import document_of, read_asyncapi
from babelqueue_spark.schemas.registry import Registry
from tests.catalog.registries import FORMS, MAIL, MAILS, ORDER, ORDERS, registry
from tests.servers.npm import ASYNCAPI, package

MONEY = {"type": "number", "multipleOf": 0.01}
TREE = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "properties": {
        "left": {"$ref": "#"},
        "price": {"$ref": "#/definitions/price"},
        "paid": {"$ref": "../shared/money.json#/definitions/money"},
        "due": {"$ref": "../shared/money.json#/definitions/other~1money"},
        "kept": {"const": {"$ref": "#/definitions/price"}, "default": {"$ref": "#/none"}},
        "$ref": {"type": "string"},
    },
    "definitions": {"price": MONEY},
}
TREES = "urn:babel:trees:grown"


@pytest.fixture(scope="module")
def published() -> Draft7Validator:
    schema = json.loads((package(ASYNCAPI) / "schemas" / "3.0.0.json").read_text())
    return Draft7Validator(schema)


@pytest.fixture
def trees(tmp_path: Path) -> Path:
    """A registry whose schemas refer to themselves, to parts of themselves and to a file beside them."""
    (tmp_path / "shared").mkdir()
    money = {"definitions": {"money": {"$ref": "#/definitions/other~1money"}, "other/money": MONEY}}
    (tmp_path / "shared/money.json").write_text(json.dumps(money))
    return registry(tmp_path, {TREES: TREE, ORDERS: ORDER, MAILS: MAIL, **FORMS})


@pytest.mark.server
def test_a_document_is_valid_and_has_queues_urns_and_schemas(published: Draft7Validator, trees: Path) -> None:
    queues = {"orders": ["urn:babel:orders:*", TREES], "mails": [MAILS], "all of them": ["*"]}
    found = document_of(Registry(trees), queues, title="Shop", version="1.2.0")
    assert [error.message for error in published.iter_errors(found)] == []
    assert found["info"]["title"] == "Shop"
    assert {channel["address"]: named(found, channel) for channel in found["channels"].values()} == {
        "orders": [TREES, ORDERS],
        "mails": [MAILS],
        "all of them": [TREES, ORDERS, MAILS, *FORMS],
    }
    assert found["components"]["messages"]["urn_babel_mails_sent"]["payload"] == MAIL
    found["components"]["messages"]["urn_babel_mails_sent"]["payload"] = {"type": "text"}
    assert not published.is_valid(found)


def test_references_lead_to_what_they_led_to(trees: Path) -> None:
    found = document_of(Registry(trees), {"q": ["*"]})
    payload = found["components"]["messages"]["urn_babel_trees_grown"]["payload"]
    properties = payload["properties"]
    assert at(found, properties["left"]["$ref"]) == payload
    for name in ("price", "paid", "due"):
        schema = properties[name]
        while "$ref" in schema:
            schema = at(found, schema["$ref"])
        assert schema == MONEY
    assert properties["kept"] == TREE["properties"]["kept"]  # type: ignore[index]


def test_what_is_exported_and_imported_is_the_same(trees: Path, tmp_path: Path) -> None:
    queues = {"orders": [ORDERS, TREES], "mails": [MAILS, TREES]}
    document = document_of(Registry(trees), queues)
    path = tmp_path / "asyncapi.json"
    path.write_text(json.dumps(document))
    imported = read_asyncapi(str(path))
    assert imported.queues == {TREES: ["orders", "mails"], ORDERS: ["orders"], MAILS: ["mails"]}
    before, after = Registry(trees), Registry(imported.schemas)
    assert imported.schemas[ORDERS] == ORDER
    for urn in before.urns:
        assert after.arrow_type(urn) == before.arrow_type(urn)
    assert marks(after) == marks(before)
    again = document_of(after, {"orders": [ORDERS, TREES], "mails": [MAILS, TREES]})
    assert {key: again[key] for key in ("channels", "components")} == {
        key: document[key] for key in ("channels", "components")
    }


def test_the_queues_of_a_registry_are_channels(tmp_path: Path) -> None:
    path = registry(tmp_path, {ORDERS: ORDER, MAILS: MAIL})
    manifest = json.loads(path.read_text())
    manifest["schemas"][0]["queues"] = ["orders", "invoices"]
    path.write_text(json.dumps(manifest))
    assert Registry(path).queues == {ORDERS: ("orders", "invoices")}
    assert DirProvider(str(path)).schema_for(ORDERS) == ORDER
    found = document_of(Registry(path), {"mails": [MAILS]})
    assert {channel["address"]: named(found, channel) for channel in found["channels"].values()} == {
        "orders": [ORDERS],
        "invoices": [ORDERS],
        "mails": [MAILS],
    }


def test_ids_differ_where_names_do() -> None:
    schemas = {f"urn:babel:a{joint}b": {"title": joint} for joint in ("-", ":", "_", "é")}
    found = document_of(Registry(schemas), {"a.b": ["*"], "a-b": ["*"]})
    assert len(found["channels"]) == 2
    assert [each["name"] for each in found["components"]["messages"].values()] == list(schemas)
    assert all(named(found, channel) == list(schemas) for channel in found["channels"].values())
    assert all(
        re.fullmatch(r"\w+", key, re.ASCII)
        for part in (found["channels"], found["components"]["messages"])
        for key in part
    )


@pytest.mark.parametrize("queues", [{}, {"orders": ["urn:none:*"]}])
def test_a_document_without_channels_is_refused(queues: dict[str, list[str]]) -> None:
    with pytest.raises(OptionError, match=r"no URN of the registry|no queue"):
        document_of(Registry({ORDERS: ORDER}), queues)


def test_a_document_of_others(tmp_path: Path) -> None:
    """Messages in channels, by reference, without a name, with a format, and in a file beside it."""
    (tmp_path / "mail.json").write_text(json.dumps({"mail": MAIL}))
    document = {
        "asyncapi": "3.1.0",
        "channels": {
            "a": {
                "address": "orders.{region}",
                "messages": {
                    ORDERS: {"payload": {"$ref": "#/components/schemas/order"}},
                    "m": {"$ref": "#/components/messages/mail"},
                    "anything": {},
                },
            },
            "b": {"$ref": "#/components/channels/b"},
            "c": {"messages": {"m": {"$ref": "#/components/messages/mail"}}},
        },
        "components": {
            "channels": {"b": {"address": "b", "messages": {"m": {"$ref": "#/components/messages/mail"}}}},
            "messages": {
                "mail": {
                    "name": MAILS,
                    "payload": {
                        "schemaFormat": "application/schema+json;version=draft-07",
                        "schema": {"$ref": "mail.json#/mail"},
                    },
                },
                "unused": {"name": ["x"], "payload": True},
            },
            "schemas": {
                "order": {
                    "type": "object",
                    "properties": {
                        "of": {"$ref": "#/components/schemas/order"},
                        "paid": {"$ref": "#/components/schemas/money"},
                    },
                },
                "money": MONEY,
            },
        },
    }
    path = tmp_path / "asyncapi.json"
    path.write_text(json.dumps(document))
    found = read_asyncapi(str(path))
    assert found.queues == {
        ORDERS: ["orders.{region}"],
        MAILS: ["orders.{region}", "b"],
        "anything": ["orders.{region}"],
    }
    assert found.schemas == {
        ORDERS: {
            "type": "object",
            "properties": {"of": {"$ref": "#"}, "paid": {"$ref": "#/definitions/money"}},
            "definitions": {"money": MONEY},
        },
        MAILS: MAIL,
        "anything": {},
        "unused": {},
    }


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"asyncapi": "2.6.0", "channels": {}}, "is no AsyncAPI 3 document"),
        ([], "is no AsyncAPI 3 document"),
        ({"asyncapi": "3.0.0"}, "has no messages"),
        ({"asyncapi": "3.0.0", "channels": {}, "components": []}, "has no messages"),
        ({"asyncapi": "3.0.0", "channels": {"a": {"$ref": "#/nothing"}}}, "nothing is there"),
        (
            {"asyncapi": "3.0.0", "channels": {"a": {"messages": {"m": {"$ref": "https://x.org/m"}}}}},
            "https://x.org/m",
        ),
        ({"asyncapi": "3.0.0", "channels": {"a": {"messages": []}}}, "messages"),
        (
            {
                "asyncapi": "3.0.0",
                "channels": {
                    "a": {
                        "messages": {
                            "m": {
                                "payload": {
                                    "schemaFormat": "application/vnd.apache.avro;version=1.9.0",
                                    "schema": {},
                                }
                            }
                        }
                    }
                },
            },
            "avro",
        ),
        (
            {
                "asyncapi": "3.0.0",
                "channels": {c: {"messages": {"m": {"payload": {"title": c}}}} for c in "ab"},
            },
            "two payloads",
        ),
        (
            {
                "asyncapi": "3.0.0",
                "components": {"messages": {"m": {"payload": {"$ref": "#/components/messages/m/payload"}}}},
            },
            "refers to itself",
        ),
        ({"asyncapi": "3.0.0", "components": {"messages": {"m": {"payload": False}}}}, "payload"),
    ],
)
def test_what_cannot_be_imported_is_one_line(document: Any, words: str, tmp_path: Path) -> None:
    path = tmp_path / "asyncapi.json"
    path.write_text(json.dumps(document))
    with pytest.raises(OptionError) as caught:
        read_asyncapi(str(path))
    assert words in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def named(document: Any, channel: Any) -> list[str]:
    return [at(document, each["$ref"])["name"] for each in channel["messages"].values()]


def at(document: Any, reference: str) -> Any:
    for step in filter(None, reference.removeprefix("#").split("/")):
        document = document[step.replace("~1", "/").replace("~0", "~")]
    return document


def marks(registry: Registry) -> dict[str, Any]:
    """What is replaced of a payload that has a value wherever a mark may be."""
    text = json.dumps({"contact": {"email": "a"}})
    return {
        urn: fields.replaced(text, lambda _: b'"*"') for urn, fields in registry.sensitive_fields().items()
    }
