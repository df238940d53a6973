"""What the SQS tests share: bindings, a bare client and the published SDK beside us."""

from __future__ import annotations

from typing import Any

import boto3
import pyarrow as pa
from babelqueue.sqs_transport import SqsTransport

from babelqueue_spark.bindings.base import Binding, BindingConfig
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


def sdk(bare: Any, **options: Any) -> SqsTransport:
    """The published SDK's transport."""
    return SqsTransport(client=bare, **options)


def claim(reader: Binding, queue: str, messages: int = 100) -> pa.RecordBatch:
    return reader.claim(queue, messages, NO_LIMIT)


def bodies(batch: pa.RecordBatch) -> list[bytes]:
    values: list[bytes] = batch.column("body").to_pylist()
    return values
