"""The message log: on request, a file of JSON lines about each message that is read or published.

A line has the event, the transport (the broker's name), the queue, what names the message, and its whole
body; with a catalog, `***` stands in it for what is sensitive. It has no URL and no header.
"""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import pyarrow as pa
import pyarrow.compute as pc

from babelqueue_spark.bindings import BaseBinding
from babelqueue_spark.bindings.batches import envelopes_of
from babelqueue_spark.schemas.masking import MASK, Mask
from babelqueue_spark.schemas.registry import Registry

logger = logging.getLogger(__name__)


class MessageLog:
    """A file of JSON lines, one for each message; None = no lines.

    Args:
        file: where they go.
        transport: the broker's name.
        mask: hides what is sensitive; None = bodies and errors are whole.
    """

    def __init__(self, file: TextIO | None, transport: str, mask: Mask | None = None) -> None:
        self._file = file
        self._transport = transport
        self._mask = mask

    def write(self, event: str, content: dict[str, Any], body: bytes) -> None:
        """Write a line about one message."""
        if self._file is None:
            return
        [shown] = self._shown(pa.array([body], pa.binary()))
        if self._mask is not None and "error" in content:
            content = {**content, "error": MASK}
        self._write(event, content, shown)

    def _write(self, event: str, content: dict[str, Any], body: bytes) -> None:
        """Write a line; no more lines where that fails, as messages come first."""
        if self._file is None:
            return
        line = {"event": event, "transport": self._transport, **content, **_readable(body)}
        try:
            self._file.write(f"{json_line(line)}\n")
        except OSError as error:
            logger.warning("the message log gets no more lines: %s", error)
            self._file = None

    def write_all(self, event: str, messages: pa.RecordBatch, queues: pa.Array | str) -> None:
        """Write a line about each message.

        Args:
            event: what happened to them.
            messages: `body`, and what else `OUTGOING` or `DELIVERIES` have.
            queues: the queue of each, or of all.
        """
        if self._file is None:
            return
        envelopes = envelopes_of(messages)
        columns = {
            "queue": [queues] * len(messages) if isinstance(queues, str) else queues.to_pylist(),
            "urn": envelopes.column("job").to_pylist(),
            "trace_id": envelopes.column("trace_id").to_pylist(),
            "id": pc.struct_field(envelopes.column("meta"), "id").to_pylist(),
            "body": self._shown(messages.column("body")),
        }
        if "delay" in messages.schema.names:
            columns["delay"] = [(delay or 0) / 1000 for delay in messages.column("delay").to_pylist()]
        for row in zip(*columns.values(), strict=True):
            content = dict(zip(columns, row, strict=True))
            self._write(event, content, content.pop("body"))

    def _shown(self, bodies: pa.Array) -> list[bytes]:
        shown: list[bytes] = (bodies if self._mask is None else self._mask.bodies(bodies)).to_pylist()
        return shown


@contextmanager
def message_log(
    folder: str | None, name: str, binding: BaseBinding, catalog: Registry | None
) -> Iterator[MessageLog]:
    """Open a file in a folder that driver and executors share.

    Args:
        folder: None = no lines.
        name: of the file.
        binding: of the messages.
        catalog: says what is sensitive; None = lines have it all.
    """
    if folder is None:
        yield MessageLog(None, binding.name)
        return
    mask = None if catalog is None else Mask(catalog)
    path = Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
        file = (path / f"{name}.jsonl").open("a", encoding="utf-8")
    except OSError as error:
        logger.warning("there is no message log: %s", error)
        yield MessageLog(None, binding.name)
        return
    try:
        yield MessageLog(file, binding.name, mask)
    finally:
        try:
            file.close()
        except OSError as error:
            logger.warning("the message log lost its last lines: %s", error)


def json_line(content: dict[str, Any]) -> str:
    """Return a line of JSON."""
    return json.dumps(content, separators=(",", ":"))


def _readable(body: bytes) -> dict[str, str]:
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode()}
