"""Kinesis and Firehose on loopback: moto's, with what of AWS it leaves out, and faults when a test says so."""

from __future__ import annotations

import io
import json
import logging
import threading
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self
from unittest.mock import patch
from urllib.parse import urlencode

import boto3
from moto.kinesis import models
from moto.kinesis.exceptions import InvalidArgumentError
from moto.moto_server.werkzeug_app import (
    DomainDispatcherApplication,
    MotoRequestHandler,
    create_backend_app,
)
from werkzeug.serving import make_server

_ROLE = "arn:aws:iam::123456789012:role/firehose"
CREDENTIALS = {"access_key_id": "test", "secret_access_key": "test"}
REGION = "eu-west-1"
FIRST = 49_590_338_271_490_256_608_559_692_538_361_571_095_921_575_989_136_588_802
"""A sequence number as Kinesis gives them."""
STEP = 16 * 1_208_925
"""Between two of them: not every number is one, and they end with the same hexadecimal digit."""


class _Shard(models.Shard):
    """Sequence numbers are long and have gaps; one that is no record's is refused."""

    def put_record(self, partition_key: str, data: str, explicit_hash_key: str) -> str:
        assert self.is_open
        number = getattr(self, "_next", FIRST + self._shard_id * 7 * STEP)
        self._next = number + STEP
        self.records[number] = models.Record(partition_key, data, number, explicit_hash_key)
        return str(number)


class AwsServer:
    """A server in this process; its streams live as long as it does, or to the end of a `mock_aws` here."""

    def __enter__(self) -> Self:
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self._app = DomainDispatcherApplication(create_backend_app)
        self._turns = threading.Lock()
        self._patches = ExitStack()
        self.operations: list[str] = []
        """Operations that were asked for, in order."""
        self.throttled = 0
        """So many requests are answered with an error for being too many."""
        self.refuse: Callable[[list[dict[str, Any]]], Iterable[int]] = lambda records: ()
        """Of the records of a put, the places of those that are refused."""
        for name, replacement in _REPLACEMENTS.items():
            self._patches.enter_context(patch.object(models, name, replacement))
        for owner, name, method in _METHODS:
            self._patches.enter_context(patch.object(owner, name, method))
        self._server = make_server(
            "127.0.0.1", 0, self._answer, threaded=True, request_handler=MotoRequestHandler
        )
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._patches.close()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def url(self) -> str:
        """Of Kinesis; a stream that a write creates has one shard."""
        return f"kinesis://{REGION}?{urlencode({'endpoint': self.endpoint, 'shard_count': 1, **CREDENTIALS})}"

    @property
    def firehose_url(self) -> str:
        return f"firehose://{REGION}?{urlencode({'endpoint': self.endpoint, **CREDENTIALS})}"

    def client(self, service: str) -> Any:
        keys = {f"aws_{name}": value for name, value in CREDENTIALS.items()}
        return boto3.client(service, endpoint_url=self.endpoint, region_name=REGION, **keys)

    def deliver(self, stream: str) -> None:
        """Create a Firehose stream that delivers to a bucket of the same name."""
        self.client("s3").create_bucket(
            Bucket=stream, CreateBucketConfiguration={"LocationConstraint": REGION}
        )
        self.client("firehose").create_delivery_stream(
            DeliveryStreamName=stream,
            ExtendedS3DestinationConfiguration={"RoleARN": _ROLE, "BucketARN": f"arn:aws:s3:::{stream}"},
        )

    def delivered(self, stream: str) -> list[bytes]:
        """The lines that a Firehose stream has delivered, in order of its files."""
        client = self.client("s3")
        files = client.list_objects_v2(Bucket=stream).get("Contents", [])
        order = sorted(files, key=lambda file: file["LastModified"])
        text = b"".join(client.get_object(Bucket=stream, Key=file["Key"])["Body"].read() for file in order)
        return text.split(b"\n")[:-1]

    def trim(self, stream: str, shard: int, records: int) -> None:
        """Let retention take the oldest records of a shard."""
        kept = self._shards(stream)[f"shardId-{shard:012}"].records
        for number in list(kept)[:records]:
            del kept[number]

    def expire(self, stream: str, shard: int) -> None:
        """Let a shard be gone with all of its records."""
        del self._shards(stream)[f"shardId-{shard:012}"]

    def _shards(self, stream: str) -> dict[str, Any]:
        return dict.__getitem__(models.kinesis_backends["123456789012"], REGION).streams[stream].shards

    def _answer(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        operation = environ.get("HTTP_X_AMZ_TARGET", "").rpartition(".")[2]
        with self._turns:
            self.operations.append(operation)
            if self.throttled:
                self.throttled -= 1
                return _busy(environ, start_response)
            if operation in ("PutRecords", "PutRecordBatch"):
                return self._put(environ, start_response, operation)
            return [b"".join(self._app(environ, start_response))]

    def _put(
        self, environ: dict[str, Any], start_response: Callable[..., Any], operation: str
    ) -> Iterable[bytes]:
        """Hand on what is not refused, and put the refusals into the answer."""
        asked = json.loads(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
        records = asked["Records"]
        refused = set(self.refuse(records))
        asked["Records"] = [record for place, record in enumerate(records) if place not in refused]
        body = json.dumps(asked).encode()
        environ |= {"wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))}
        answered: dict[str, Any] = {}

        def keep(status: str, headers: list[tuple[str, str]], *_: Any) -> None:
            answered.update(status=status, headers=headers)

        content = b"".join(self._app(environ, keep))
        if refused and answered["status"].startswith("200"):
            said = json.loads(content)
            name, failed = {
                "PutRecords": ("Records", "FailedRecordCount"),
                "PutRecordBatch": ("RequestResponses", "FailedPutCount"),
            }[operation]
            accepted = iter(said[name])
            error = {"ErrorCode": "ProvisionedThroughputExceededException", "ErrorMessage": "Slow down."}
            said[name] = [error if place in refused else next(accepted) for place in range(len(records))]
            said[failed] = len(refused)
            content = json.dumps(said).encode()
        headers = [pair for pair in answered["headers"] if pair[0].lower() != "content-length"]
        start_response(answered["status"], [*headers, ("Content-Length", str(len(content)))])
        return [content]


def _busy(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    content = b'{"__type": "ProvisionedThroughputExceededException", "message": "Rate exceeded"}'
    headers = [("Content-Type", "application/x-amz-json-1.1"), ("Content-Length", str(len(content)))]
    start_response("400 Bad Request", headers)
    return [content]


def _open_shard_of(stream: Any, partition_key: str, explicit_hash_key: str) -> Any:
    """As in AWS, no closed shard takes records."""
    every = stream.shards
    stream.shards = {name: shard for name, shard in every.items() if shard.is_open}
    try:
        return _OF_KEY(stream, partition_key, explicit_hash_key)
    finally:
        stream.shards = every


def _split(stream: Any, shard_to_split: str, new_starting_hash_key: str) -> None:
    """As in AWS, the records stay in the parent."""
    parent = stream.shards[shard_to_split]
    kept, parent.records = parent.records, {}
    _SPLIT(stream, shard_to_split, new_starting_hash_key)
    parent.records = kept


def _merge(stream: Any, shard_to_merge: str, adjacent_shard_to_merge: str) -> None:
    parents = [stream.shards[shard] for shard in (shard_to_merge, adjacent_shard_to_merge)]
    kept = [parent.records for parent in parents]
    for parent in parents:
        parent.records = {}
    _MERGE(stream, shard_to_merge, adjacent_shard_to_merge)
    for parent, records in zip(parents, kept, strict=True):
        parent.records = records


def _get_records(backend: Any, stream_arn: Any, shard_iterator: str, limit: int | None) -> Any:
    """As in AWS, a closed shard has an end, and only its last record is not behind."""
    following, records, _ = _GET(backend, stream_arn, shard_iterator, limit)
    name, number, _ = models.decompose_shard_iterator(shard_iterator)
    shard = backend.streams[name].shards[number]
    behind = bool(records) and records[-1].sequence_number != next(reversed(shard.records))
    ended = not shard.is_open and not behind
    return None if ended else following, records, 1_000 if behind else 0


def _iterator(
    backend: Any, stream_arn: Any, stream_name: str, shard_id: str, kind: str, at: Any, since: Any
) -> str:
    if "SEQUENCE_NUMBER" in kind:
        shard = backend.streams[stream_name].shards[shard_id]
        if int(at) not in shard.records:
            raise InvalidArgumentError(f"StartingSequenceNumber {at} is invalid")
    return str(_ITERATOR(backend, stream_arn, stream_name, shard_id, kind, at, since))


_OF_KEY = models.Stream.get_shard_for_key
_SPLIT, _MERGE = models.Stream.split_shard, models.Stream.merge_shards
_GET, _ITERATOR = models.KinesisBackend.get_records, models.KinesisBackend.get_shard_iterator
_REPLACEMENTS = {"Shard": _Shard}
_METHODS: list[tuple[Any, str, Any]] = [
    (models.Stream, "get_shard_for_key", _open_shard_of),
    (models.Stream, "split_shard", _split),
    (models.Stream, "merge_shards", _merge),
    (models.KinesisBackend, "get_records", _get_records),
    (models.KinesisBackend, "get_shard_iterator", _iterator),
]
