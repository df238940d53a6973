"""The message log: on request, a file of JSON lines about each message that is read or published.

A line has the event, the transport (the broker's name), the queue, what names the message, and its whole
body; with a catalog, `***` stands in it for what is sensitive. It has no URL and no header.
"""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Iterable, Iterator, Mapping
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

    def write(
        self,
        lines: Iterable[tuple[str, dict[str, Any]]],
        bodies: pa.Array,
        envelopes: Mapping[str, pa.Array] | None = None,
    ) -> None:
        """Write a line about each message; no more lines where that fails, as messages come first.

        Args:
            lines: the event of each, and what its line tells of it.
            bodies: their bodies.
            envelopes: what is in those, where it is known.
        """
        if self._file is None:
            return
        shown = bodies if self._mask is None else self._mask.bodies(bodies, envelopes)
        try:
            for (event, content), body in zip(lines, shown.to_pylist(), strict=True):
                hidden = {"error": MASK} if self._mask is not None and "error" in content else {}
                line = {"event": event, "transport": self._transport, **content, **hidden, **_readable(body)}
                self._file.write(f"{json_line(line)}\n")
        except OSError as error:
            logger.warning("the message log gets no more lines: %s", error)
            self._file = None

    def write_all(
        self,
        event: str,
        messages: pa.RecordBatch,
        queues: pa.Array | str,
        envelopes: Mapping[str, pa.Array] | None = None,
    ) -> None:
        """Write a line about each message.

        Args:
            event: what happened to them.
            messages: `body`, and what else `OUTGOING` or `DELIVERIES` have.
            queues: the queue of each, or of all.
            envelopes: `job`, `trace_id` and `meta` of each; None = they are read from the bodies.
        """
        if self._file is None:
            return
        found = envelopes_of(messages) if envelopes is None else envelopes
        columns = {
            "queue": [queues] * len(messages) if isinstance(queues, str) else queues.to_pylist(),
            "urn": found["job"].to_pylist(),
            "trace_id": found["trace_id"].to_pylist(),
            "id": pc.struct_field(found["meta"], "id").to_pylist(),
        }
        if "delay" in messages.schema.names:
            columns["delay"] = [(delay or 0) / 1000 for delay in messages.column("delay").to_pylist()]
        rows = zip(*columns.values(), strict=True)
        lines = ((event, dict(zip(columns, row, strict=True))) for row in rows)
        self.write(lines, messages.column("body"), envelopes)


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
    mask = None if catalog is None else Mask(catalog, native=binding.config.native)
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
