"""An S3 server on loopback: moto's, which honours conditional puts."""

from __future__ import annotations

import os
import uuid
from types import TracebackType
from typing import Self

import boto3
from moto.server import ThreadedMotoServer
from s3fs import S3FileSystem

_ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_DEFAULT_REGION": "us-east-1",
}


class S3Server:
    """A server with one bucket, found by clients through the usual environment variables.

    Its buckets live in this process, and end with any `mock_aws` there.
    """

    def __enter__(self) -> Self:
        self.bucket = f"journals-{uuid.uuid4().hex}"
        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self._server.start()
        host, port = self._server.get_host_and_port()
        self._before = dict(os.environ)
        os.environ.update(_ENVIRONMENT, AWS_ENDPOINT_URL=f"http://{host}:{port}")
        boto3.client("s3").create_bucket(Bucket=self.bucket)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.stop()
        S3FileSystem.clear_instance_cache()
        os.environ.clear()
        os.environ.update(self._before)
