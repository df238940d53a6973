"""A registry in a bucket: read as the one in a folder, by catalogs, column functions and options."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest

from babelqueue_spark.catalog import Catalog
from babelqueue_spark.errors import JournalError, OptionError
from tests.catalog.registries import MAIL, MAILS, ORDER, ORDERS, registry
from tests.programs import run as run_program
from tests.s3 import S3Server
from tests.streams import envelope, publish

SHARED = {"definitions": {"money": {"type": "number", "multipleOf": 0.01}}}
REFERRING = {
    **ORDER,
    "properties": {**ORDER["properties"], "amount": {"$ref": "shared.json#/definitions/money"}},
}


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with S3Server() as server:
        yield server


@pytest.fixture
def bucket(server: S3Server, tmp_path: Path) -> str:
    """The URL of a folder that holds a registry."""
    registry(tmp_path / "registry", {ORDERS: REFERRING, MAILS: MAIL})
    (tmp_path / "registry/schemas/shared.json").write_text(json.dumps(SHARED))
    client = boto3.client("s3")
    for path in (tmp_path / "registry").rglob("*.json"):
        name = f"{tmp_path.name}/{path.relative_to(tmp_path / 'registry')}"
        client.put_object(Bucket=server.bucket, Key=name, Body=path.read_bytes())
    return f"s3://{server.bucket}/{tmp_path.name}"


def test_a_registry_in_a_bucket_is_the_one_in_a_folder(bucket: str, tmp_path: Path) -> None:
    folder = Catalog(tmp_path / "registry")
    for location in (bucket, f"{bucket}/", f"{bucket}/registry.json"):
        catalog = Catalog(location)
        assert catalog.urns == folder.urns
        assert [catalog.schema(urn) for urn in catalog.urns] == [folder.schema(urn) for urn in folder.urns]
        assert catalog.data_type(ORDERS) == folder.data_type(ORDERS)
        assert catalog.violation(ORDERS, '{"order_id":0}') == "order_id: below_minimum"


def test_a_configuration_stands_for_the_environment(
    bucket: str, server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    config = {
        "aws_access_key_id": "test",
        "aws_secret_access_key": "not-to-be-shown",
        "aws_region": "us-east-1",
        "aws_endpoint": server.url,
    }
    assert Catalog(bucket, config=config).urns == (ORDERS, MAILS)
    with pytest.raises(OptionError) as raised:
        Catalog(f"{bucket}/none.json", config=config)
    assert "there is no file none.json" in str(raised.value)
    assert "not-to-be-shown" not in str(raised.value)


def test_a_file_that_is_missing_or_refused_is_one_line(bucket: str, server: S3Server) -> None:
    with pytest.raises(OptionError, match=r"there is no file registry\.json") as raised:
        Catalog(f"{bucket}/nowhere")
    assert len(str(raised.value).splitlines()) == 1
    server.refuse(1, "403 Forbidden")
    with pytest.raises(JournalError) as refused:
        Catalog(bucket)
    assert len(str(refused.value).splitlines()) == 1
    server.be_unavailable(2)
    assert Catalog(bucket).urns == (ORDERS, MAILS)


@pytest.mark.spark
@pytest.mark.slow
def test_the_option_of_a_read(bucket: str, tmp_path: Path, queue: str) -> None:
    url = f"sqlite:///{tmp_path}/queue.db"
    publish(url, queue, [envelope(1), envelope(0)])
    program = f"""
from pyspark.sql import SparkSession
from babelqueue_spark import functions as bq
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
read = spark.read.format("babelqueue").options(url="{url}", queue="{queue}", catalog="{bucket}").load()
rows = read.select("violation", bq.violation("job", "data", "{bucket}/registry.json").alias("own")).collect()
assert [tuple(row) for row in rows] == [(None, None), ("order_id: below_minimum",) * 2], rows
spark.stop()
"""
    run_program(program)
