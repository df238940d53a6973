"""The contract between the connector and a form of messages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa

STRING = pa.string()


class Carrier(NamedTuple):
    """What a broker carries beside a body.

    Attributes:
        headers: whether it keeps any.
        names: whether it does so outside of the body, so that what names a message may always go there.
        event_prefix: what the names of an event's attributes begin with there.
    """

    headers: bool
    names: bool
    event_prefix: str = "ce_"


class Parts(NamedTuple):
    """The bodies of messages, and their headers: a map of texts, null where there are none."""

    bodies: pa.BinaryArray
    headers: pa.MapArray

    def batch(self) -> pa.RecordBatch:
        """Return them as messages."""
        return pa.RecordBatch.from_arrays([*self], ["body", "headers"])

    def replaced(self, rows: Sequence[int], others: Parts) -> Parts:
        """Return the parts with others in the place of some rows, in their order."""
        order = np.arange(len(self.bodies))
        order[list(rows)] = len(order) + np.arange(len(rows))
        taken = pa.array(order)
        pairs = zip(self, others, strict=True)
        return Parts(*(pa.concat_arrays([one, other.cast(one.type)]).take(taken) for one, other in pairs))


class Form(ABC):
    """One form of messages. It knows neither Spark nor a broker.

    A method takes `DELIVERIES` or `OUTGOING` messages, of which it reads `body` and `headers`.
    """

    name: ClassVar[str]
    native: ClassVar[bool] = True
    """Whether a broker's own metadata name the message: its type, its id, its correlation id."""
    needs_job: ClassVar[bool] = False
    """Whether each message has a `job`."""

    @abstractmethod
    def decode(
        self, messages: pa.RecordBatch, *, allow_list_data: bool = False, data_type: pa.DataType = STRING
    ) -> pa.RecordBatch:
        """Return what messages say, of `ENVELOPE_SCHEMA`, with `data` of another type if asked; never raises.

        Args:
            messages: to read.
            allow_list_data: read PHP's `"data":[]` as an empty object.
            data_type: of `data`, as `envelope.typed` makes it.
        """

    @abstractmethod
    def encode(self, messages: pa.RecordBatch, headers: pa.MapArray, carrier: Carrier) -> Parts:
        """Make messages of columns; `EnvelopeError` names a row that lacks what it needs.

        Args:
            messages: `job`, `trace_id`, `data`, `meta` and `attempts`, as `ENVELOPE_SCHEMA` has them; where
                the form is native also `body`, for rows without `data`.
            headers: those given.
            carrier: what the broker carries.
        """

    @abstractmethod
    def retried(self, messages: pa.RecordBatch, attempts: pa.Int32Array, carrier: Carrier) -> Parts:
        """Give messages another count of attempts; a null count changes nothing."""

    @abstractmethod
    def dead_lettered(self, messages: pa.RecordBatch, blocks: pa.StructArray, carrier: Carrier) -> Parts:
        """Give messages the blocks of dead letters, each of `DEAD_LETTER_TYPE`."""

    @abstractmethod
    def redriven(self, messages: pa.RecordBatch) -> Parts:
        """Take off what retries and dead letters have added."""

    @abstractmethod
    def content(self, body: bytes, headers: Any) -> tuple[Any, dict[str, Any]]:
        """Return `data` and `meta` of an accepted message, for a handler, of JSON's types."""


def headers_of(messages: pa.RecordBatch) -> pa.MapArray:
    """Return the headers, null where messages have no such column."""
    kind = pa.map_(STRING, STRING)
    has = "headers" in messages.schema.names
    return messages.column("headers").cast(kind) if has else pa.nulls(len(messages), kind)
