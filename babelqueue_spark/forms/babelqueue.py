"""BabelQueue's envelope: all is in the body."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from babelqueue_spark.envelope import dead_letter, decode, encode, set_attempts, strip_dead_letter
from babelqueue_spark.forms.contract import STRING, Carrier, Form, Parts, headers_of


class BabelQueueForm(Form):
    """The frozen envelope of document 002."""

    name = "babelqueue"
    native = False
    needs_job = True

    def decode(
        self, messages: pa.RecordBatch, *, allow_list_data: bool = False, data_type: pa.DataType = STRING
    ) -> pa.RecordBatch:
        return decode(messages.column("body"), allow_list_data=allow_list_data, data_type=data_type)

    def encode(self, messages: pa.RecordBatch, headers: pa.MapArray, carrier: Carrier) -> Parts:
        del carrier
        return Parts(encode(messages), headers)

    def retried(self, messages: pa.RecordBatch, attempts: pa.Int32Array, carrier: Carrier) -> Parts:
        del carrier
        return Parts(set_attempts(messages.column("body"), attempts), headers_of(messages))

    def dead_lettered(self, messages: pa.RecordBatch, blocks: pa.StructArray, carrier: Carrier) -> Parts:
        del carrier
        return Parts(dead_letter(messages.column("body"), blocks), headers_of(messages))

    def redriven(self, messages: pa.RecordBatch) -> Parts:
        return Parts(strip_dead_letter(messages.column("body")), headers_of(messages))

    def content(self, body: bytes, headers: Any) -> tuple[Any, dict[str, Any]]:
        del headers
        envelope = json.loads(body)
        return envelope["data"] or {}, envelope["meta"]
