"""The registry of the SDKs: for each URN a JSON Schema of its payload."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from babelqueue_spark.envelope.scan import raws_of
from babelqueue_spark.schemas.arrow_types import JSON_TEXT, arrow_type
from babelqueue_spark.schemas.documents import of_schemas, read_documents
from babelqueue_spark.schemas.embedding import embedded
from babelqueue_spark.schemas.sensitive import SensitiveFields
from babelqueue_spark.schemas.verdicts import Judge


class Registry:
    """The schemas of a `registry.json`. It is read once, here; copies that go to executors read nothing.

    Args:
        location: the file or its folder: a path, or the URL of an object store; or schemas by URN.
        config: of the object store, by the names that the options `journal.<name>` have.

    Raises:
        OptionError: a file is missing, or is no registry or schema.
    """

    def __init__(
        self,
        location: str | Path | Mapping[str, Mapping[str, Any]],
        *,
        config: Mapping[str, str] | None = None,
    ) -> None:
        self._documents = (
            of_schemas(location) if isinstance(location, Mapping) else read_documents(str(location), config)
        )
        self._judges: dict[str, Judge] = {}

    @property
    def urns(self) -> tuple[str, ...]:
        """The URNs that have a schema, in the order of the registry."""
        return tuple(self._documents.names)

    def schema(self, urn: str) -> Mapping[str, Any] | None:
        """Return the JSON Schema of a URN's payload, or None."""
        return self._documents.schema(urn)

    @property
    def queues(self) -> Mapping[str, tuple[str, ...]]:
        """URN → the queues that it is sent to, where the registry's entries have `queues`."""
        return self._documents.queues

    def whole_schema(self, urn: str, prefix: str = "#") -> dict[str, Any]:
        """Return the schema of a URN with all that it refers to in it; references begin with `prefix`.

        Raises:
            KeyError: there is no schema for the URN.
            OptionError: a `$ref` refers to nothing, or to itself.
        """
        return embedded(self._documents, (self._documents.names[urn], ()), prefix)

    def arrow_type(self, urn: str, untyped: pa.DataType = JSON_TEXT) -> pa.DataType:
        """Return the Arrow type of a URN's payload, `untyped` where the schema fixes none.

        Raises:
            KeyError: there is no schema.
        """
        return arrow_type(self._documents, urn, untyped)

    def sensitive_fields(self) -> dict[str, SensitiveFields]:
        """Return the sensitive fields of each URN that has some.

        Raises:
            OptionError: a schema marks `data` as a whole, or refers to one that is not there.
        """
        found = {urn: SensitiveFields(self._documents, urn) for urn in self.urns}
        return {urn: fields for urn, fields in found.items() if fields}

    def violations(self, jobs: pa.StringArray, data: pa.StringArray) -> pa.StringArray:
        """Return the first violation in each payload, in the SDKs' words.

        Null where there is none, no schema for the URN, or no payload.
        """
        found: list[str | None] = [None] * len(jobs)
        for urn in jobs.unique().to_pylist():
            judge = self._judge(urn)
            if judge is not None:
                mine = pc.fill_null(pc.and_(pc.equal(jobs, urn), data.is_valid()), False)
                rows = pc.indices_nonzero(mine)
                payloads = raws_of(data if len(rows) == len(data) else data.take(rows))
                for row, violation in zip(rows.to_pylist(), judge.first_violations(payloads), strict=True):
                    found[row] = violation
        return pa.array(found, pa.string())

    def violation(self, urn: str, data: str) -> str | None:
        """Return the first violation in one payload, as `violations` finds it."""
        judge = self._judge(urn)
        return None if judge is None else judge.first_violation(data.encode())

    def _judge(self, urn: str | None) -> Judge | None:
        if urn is not None and urn not in self._judges and (schema := self.schema(urn)) is not None:
            self._judges[urn] = Judge(schema)
        return self._judges.get(urn or "")

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_judges": {}}


def registry_of(given: Registry | str | Path) -> Registry:
    """Return the registry itself, or the one at a location."""
    return given if isinstance(given, Registry) else Registry(given)
