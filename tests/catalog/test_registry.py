"""The files of a registry: what is read, from where, and what is refused."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from babelqueue.schema import DirProvider

from babelqueue_spark.catalog import Catalog
from babelqueue_spark.errors import OptionError
from tests.catalog.registries import MAIL, MAILS, ORDER, ORDERS, registry


def test_a_registry_is_read_as_the_sdk_reads_it(tmp_path: Path) -> None:
    path = registry(tmp_path, {ORDERS: ORDER, MAILS: MAIL})
    provider = DirProvider(str(path))
    for location in (str(path), tmp_path, f"file:{path}", f"file://{tmp_path}"):
        catalog = Catalog(location)
        assert catalog.urns == (ORDERS, MAILS)
        assert {urn: catalog.schema(urn) for urn in catalog.urns} == {
            urn: provider.schema_for(urn) for urn in catalog.urns
        }
        assert catalog.schema("urn:other") is None


def test_a_copy_reads_nothing(tmp_path: Path) -> None:
    catalog = pickle.loads(pickle.dumps(Catalog(registry(tmp_path / "a", {ORDERS: ORDER}))))
    (tmp_path / "a/registry.json").unlink()
    assert catalog.data_type(ORDERS).simpleString() == "struct<order_id:bigint,amount:decimal(38,2)>"


def test_schemas_refer_to_files_beside_them(tmp_path: Path) -> None:
    money = {
        "definitions": {"money": {"type": "number", "multipleOf": 0.01}, "when": {"$ref": "when.json#/a~1b"}}
    }
    order = {
        "type": "object",
        "properties": {
            "amount": {"$ref": "../shared/money.json#/definitions/money"},
            "at": {"$ref": "../shared/money.json#/definitions/when"},
            "far": {"$ref": "https://example.org/schema.json"},
        },
    }
    path = registry(tmp_path, {ORDERS: order})
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared/money.json").write_text(json.dumps(money))
    (tmp_path / "shared/when.json").write_text('{"a/b": {"type": "string", "format": "date-time"}}')
    found = Catalog(path).data_type(ORDERS).simpleString()
    assert found == "struct<amount:decimal(38,2),at:timestamp,far:string>"


@pytest.mark.parametrize(
    ("manifest", "words"),
    [
        (None, "there is no file registry.json"),
        ("{", "registry.json cannot be read"),
        ("[]", "is no registry"),
        ('{"schemas": [{"urn": "urn:a"}]}', "entry 0 needs the texts 'urn' and 'schema'"),
        ('{"schemas": [{"urn": "urn:a", "schema": "a.json"}]}', "there is no file a.json"),
        ('{"schemas": [{"urn": "urn:a", "schema": "list.json"}]}', "list.json is no JSON Schema"),
        (
            '{"schemas": [{"urn": "urn:a", "schema": "b.json"}, {"urn": "urn:a", "schema": "b.json"}]}',
            "urn:a is declared more than once",
        ),
    ],
)
def test_what_is_no_registry_is_one_line(manifest: str | None, words: str, tmp_path: Path) -> None:
    (tmp_path / "list.json").write_text("[]")
    if manifest is not None:
        (tmp_path / "registry.json").write_text(manifest)
    with pytest.raises(OptionError) as caught:
        Catalog(tmp_path)
    assert words in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_scheme_that_is_unknown() -> None:
    with pytest.raises(OptionError, match=r"catalog has the scheme 'hdfs:', which cannot be used"):
        Catalog("hdfs://names/registry.json")


def test_a_reference_to_nothing(tmp_path: Path) -> None:
    catalog = Catalog({ORDERS: {"type": "object", "properties": {"a": {"$ref": "#/definitions/none"}}}})
    with pytest.raises(OptionError, match="nothing is there"):
        catalog.data_type(ORDERS)


def test_the_registry_imports_neither_spark_nor_a_client() -> None:
    script = "import sys, babelqueue_spark.schemas.registry; print({'pyspark', 'redis', 'sqlalchemy'} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"
