"""A sensitive value at another level than its schema says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from babelqueue_spark.catalog import Catalog
from babelqueue_spark.errors import OptionError
from babelqueue_spark.schemas.masking import mask
from babelqueue_spark.schemas.protection import protect, unprotect
from babelqueue_spark.schemas.registry import Registry
from babelqueue_spark.schemas.sensitive import MARK
from tests.brokers import url_of
from tests.catalog.registries import FORMS, SECRET, STRAYED, STRAYS, registry, strayed
from tests.catalog.test_protection import KEY, key_file
from tests.streams import publish
from tests.worker.queues import lines

URN = "urn:babel:orders:created"
MARKED = {"type": "string", MARK: True}


def masked(schema: Any, data: Any) -> Any:
    fields = Registry({URN: schema}).sensitive_fields()
    [found] = mask(pa.array([URN]), pa.array([json.dumps(data)]), fields).to_pylist()
    return json.loads(found)


@pytest.mark.parametrize("schema", FORMS.values(), ids=FORMS)
def test_a_value_where_a_container_of_marks_belongs_is_replaced(schema: Any) -> None:
    for stray in [*STRAYS, 7, True, "", []]:
        assert masked(schema, {"contact": stray}) == {"contact": "***"}
    for fine in [None, {}, {"name": "Ann"}]:
        assert masked(schema, {"contact": fine}) == {"contact": fine}


@pytest.mark.parametrize("elements", [{"items": MARKED}, {"prefixItems": [MARKED]}], ids=str)
def test_a_value_where_an_array_of_marks_belongs_is_replaced(elements: Any) -> None:
    schema = {"properties": {"mails": elements}}
    assert masked(schema, {"mails": SECRET}) == {"mails": "***"}
    assert masked(schema, {"mails": {"first": SECRET}}) == {"mails": "***"}
    assert masked(schema, {"mails": None}) == {"mails": None}


def test_marks_in_elements_of_the_payload_are_an_error() -> None:
    with pytest.raises(OptionError, match="'data', which has to stay an object"):
        Registry({URN: {"items": MARKED}}).sensitive_fields()


def test_protect(tmp_path: Path) -> None:
    fields, key = Registry(FORMS).sensitive_fields(), key_file(tmp_path / "key", KEY)
    job, data = pa.array([urn for urn, _ in STRAYED]), pa.array([json.dumps(data) for _, data in STRAYED])
    sealed = protect(job, data, fields, key)
    assert SECRET not in str(sealed.to_pylist())
    assert [json.loads(each) for each in unprotect(job, sealed, fields, key).to_pylist()] == [
        data for _, data in STRAYED
    ]


@pytest.mark.spark
def test_a_notebook_and_the_message_log(
    spark: Any, request: pytest.FixtureRequest, queue: str, tmp_path: Path
) -> None:
    url, log = url_of("sqlite", request, tmp_path), tmp_path / "log"
    given = {"url": url, "queue": queue, "catalog": str(registry(tmp_path, FORMS)), "messageLog": str(log)}
    publish(url, queue, strayed())
    messages = spark.read.format("babelqueue").options(**given).load()
    rows = Catalog(FORMS).mask(messages).collect()
    assert len(rows) == len(lines(log)) == len(STRAYED)
    assert SECRET not in str(rows) + json.dumps(lines(log))
