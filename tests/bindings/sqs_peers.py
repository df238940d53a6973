"""What the SQS tests share: bindings, a bare client and the published SDK beside us."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import boto3
import pyarrow as pa
from babelqueue.sqs_transport import SqsTransport

from babelqueue_spark.bindings.contract import Binding, BindingConfig
from babelqueue_spark.bindings.sqs import SqsBinding
from tests.servers.elasticmq import CREDENTIALS, ElasticMqServer

NO_LIMIT = 1 << 40


def binding(server: ElasticMqServer, *, visibility: float | None = None, **options: str) -> SqsBinding:
    """A binding to a test server."""
    config = BindingConfig(url=server.url, visibility_timeout=visibility, client_options=options)
    return SqsBinding(config)


def client(server: ElasticMqServer) -> Any:
    """A bare client."""
    credentials = {f"aws_{name}": value for name, value in CREDENTIALS.items()}
    return boto3.client("sqs", endpoint_url=server.endpoint, region_name="elasticmq", **credentials)


def send_gated(server: ElasticMqServer, queue: str, messages: Iterable[bytes], attempts: str | None) -> None:
    """Send with an attribute that names another schema version, from a bare client."""
    bare = client(server)
    given = {"bq-schema-version": ("Number", "2"), "bq-attempts": ("String", attempts)}
    attributes = {
        name: {"DataType": kind, "StringValue": value} for name, (kind, value) in given.items() if value
    }
    address = bare.create_queue(QueueName=queue)["QueueUrl"]
    for body in messages:
        bare.send_message(QueueUrl=address, MessageBody=body.decode(), MessageAttributes=attributes)


def sdk(bare: Any, **options: Any) -> SqsTransport:
    """The published SDK's transport."""
    return SqsTransport(client=bare, **options)


def claim(reader: Binding, queue: str, messages: int = 100) -> pa.RecordBatch:
    return reader.claim(queue, messages, NO_LIMIT)


def bodies(batch: pa.RecordBatch) -> list[bytes]:
    values: list[bytes] = batch.column("body").to_pylist()
    return values
