"""The binding of Amazon Data Firehose."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import pyarrow as pa

from babelqueue_spark.bindings.advice import missing
from babelqueue_spark.bindings.aws import BUSY, AwsClient, AwsOptions, Refusals, throttled
from babelqueue_spark.bindings.aws_records import Answer, Record, check_sizes, send
from babelqueue_spark.bindings.contract import BaseBinding, BindingConfig, Capabilities

LARGEST_RECORD = 1_000 << 10
"""Bytes of a record, with the end of its line."""
_LARGEST_REQUEST = 4 << 20
_LINE_BREAK = re.compile(rb"[\r\n]")
_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")


class FirehoseOptions(AwsOptions):
    """What the binding makes of its configuration."""

    broker = "firehose"
    title = "Firehose"


class FirehoseClient(AwsClient):
    """A botocore client, made at the first request in the process that needs it."""

    noun = "stream"
    refusals: ClassVar[Refusals] = {
        "ResourceNotFound": missing("it does not exist: create it, or check name, account and region"),
        f"{BUSY}|ServiceUnavailable|LimitExceeded": throttled("write less at once, or raise its quota"),
    }

    def named(self, parameters: Mapping[str, Any]) -> str:
        return str(parameters.get("DeliveryStreamName", ""))


class FirehoseBinding(BaseBinding):
    """Firehose, or what speaks its protocol. It takes messages and gives none."""

    name = "firehose"
    title = "Firehose"
    capabilities = Capabilities(publish_batch=10_000, max_delay=0, browse="none", ordered=False)

    def __init__(self, config: BindingConfig) -> None:
        super().__init__(config)
        options = FirehoseOptions.parse(config)
        self.silence_limit = options.silence_limit
        self._firehose = FirehoseClient(options)

    def backlog(self, queue: str) -> int:
        """0, for nothing can be read; `QueueNotFoundError` where there is no such stream."""
        self._firehose.call("describe_delivery_stream", DeliveryStreamName=queue)
        return 0

    def browse(self, queue: str) -> Iterator[pa.RecordBatch]:
        raise self._firehose.error("it gives no messages: read what it delivers", queue)

    def check_queue(self, queue: str) -> None:
        if not _NAME.fullmatch(queue):
            raise self.refused_name(queue, "use 1 to 64 letters, digits, hyphens, underscores and dots")

    def too_large(self, queue: str, messages: pa.RecordBatch) -> list[int]:
        del queue
        return [row for row, record in enumerate(_lines(messages)) if record.size > LARGEST_RECORD]

    def _publish(self, queue: str, messages: pa.RecordBatch, *, idempotency_key: str | None) -> int:
        del idempotency_key
        records = _lines(messages)
        check_sizes(self._firehose, queue, records, LARGEST_RECORD)

        def put(entries: list[Mapping[str, Any]]) -> Answer:
            answer = self._firehose.call("put_record_batch", DeliveryStreamName=queue, Records=entries)
            results: Answer = answer["RequestResponses"]
            return results

        send(self._firehose, queue, records, _LARGEST_REQUEST, put)
        return len(records)

    def close(self) -> None:
        self._firehose.close()


def _lines(messages: pa.RecordBatch) -> list[Record]:
    """Return a line for each body. Line breaks of JSON are between its tokens, where a space does as well."""
    lines = [_LINE_BREAK.sub(b" ", body) + b"\n" for body in messages.column("body").to_pylist()]
    return [Record({"Data": line}, len(line)) for line in lines]
