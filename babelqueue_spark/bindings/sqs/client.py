"""Requests to SQS: several in flight, failed entries repeated, errors that say what to do."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, TypeVar

from botocore import exceptions

from babelqueue_spark.bindings.advice import Advice, missing
from babelqueue_spark.bindings.aws import BUSY, AwsClient, Refusals, code_of, reason, throttled
from babelqueue_spark.bindings.sqs.options import SqsOptions
from babelqueue_spark.errors import BrokerError, BrokerFullError

BATCH = 10
"""Most entries of one request."""

_Entry = Mapping[str, Any]
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}|[A-Za-z0-9_-]{1,75}\.fifo")
_ARN = re.compile(r"arn:[a-z-]+:sqs:(?P<region>[^:]*):(?P<account>[^:]*):(?P<name>[^:]+)")
_URL = re.compile(r"https?://[!-~]+")
_AWS_URL = re.compile(r"https://sqs\.(?P<region>[a-z0-9-]+)\.amazonaws\.com")
_MISSING = re.compile("QueueDoesNotExist|NonExistentQueue")
_FIRST_PAUSE = 0.2


class OverLimitError(BrokerFullError):
    """As many messages are in flight as the queue allows."""


_REFUSALS: Refusals = {
    _MISSING.pattern: missing("it does not exist: create it, or check name, account and region"),
    "QueueDeletedRecently": missing("it was deleted less than a minute ago: wait before it is created again"),
    "OverLimit": Advice(
        "too many messages are in flight: acknowledge some, or lower maxMessagesPerTrigger", OverLimitError
    ),
    BUSY: throttled("lower numPartitions or sqs.concurrency"),
}


class SqsClient(AwsClient):
    """A botocore client and its threads, made at the first request in the process that needs them."""

    noun = "queue"
    _options: SqsOptions
    refusals: ClassVar[Refusals] = _REFUSALS

    def __init__(self, options: SqsOptions) -> None:
        super().__init__(options)
        self._threads: ThreadPoolExecutor | None = None
        self._urls: dict[str, str] = {}

    def url(self, queue: str) -> str:
        """Return the URL of a queue, given by name, URL or ARN; what a bare name lacks is created."""
        if queue not in self._urls:
            self._urls[queue] = self._resolved(queue)
        return self._urls[queue]

    def is_missing(self, queue: str) -> bool:
        """Return whether `url` would create the queue."""
        is_name = _NAME.fullmatch(queue) and not self._options.prefix
        return bool(is_name) and queue not in self._urls and self._found(queue) is None

    def names(self) -> list[str]:
        """Return names of the account's queues; none where this login may not list them."""
        try:
            answer = self.call("list_queues", MaxResults=1000)
        except BrokerError:
            return []
        return [short_name(url) for url in answer.get("QueueUrls", ())]

    def named(self, parameters: Mapping[str, Any]) -> str:
        return short_name(parameters.get("QueueName") or parameters.get("QueueUrl") or "")

    def batch(self, operation: str, url: str, entries: Sequence[_Entry]) -> dict[str, str]:
        """Send up to ten entries; those refused for good, by id, with the reason.

        Entries that failed on the side of SQS are sent again; `BrokerError` if they keep failing.
        """
        refused: dict[str, str] = {}
        for attempt in range(self._options.max_attempts):
            if attempt:
                time.sleep(_FIRST_PAUSE * 2 ** (attempt - 1))
            failed = {
                entry["Id"]: entry
                for entry in self.call(operation, QueueUrl=url, Entries=entries).get("Failed", ())
            }
            refused |= {name: reason(entry) for name, entry in failed.items() if _is_final(entry)}
            entries = [entry for entry in entries if entry["Id"] in failed and entry["Id"] not in refused]
            if not entries:
                return refused
        reasons = {reason(failed[entry["Id"]]) for entry in entries}
        raise self.error(f"{operation} failed for {len(entries)} messages: {', '.join(sorted(reasons))}", url)

    def each(self, work: Callable[[_Item], _Result], items: Iterable[_Item]) -> list[_Result]:
        """Return what `work` returns for each item, several at a time."""
        todo = list(items)
        if len(todo) <= 1 or self._options.concurrency == 1:
            return [work(item) for item in todo]
        self.connected()
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._options.concurrency, thread_name_prefix="sqs")
        return list(self._threads.map(work, todo))

    def error(self, text: str, queue: str = "", kind: type[BrokerError] = BrokerError) -> BrokerError:
        return super().error(text, short_name(queue), kind)

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown()
        self._threads = None
        self._urls.clear()
        super().close()

    def _resolved(self, queue: str) -> str:
        arn = _ARN.fullmatch(queue)
        self._check(queue, arn or _AWS_URL.match(queue))
        if _URL.fullmatch(queue):
            return queue
        if arn:
            name, account = arn["name"], arn["account"]
            found = self.call("get_queue_url", QueueName=name, QueueOwnerAWSAccountId=account)
            return str(found["QueueUrl"])
        if self._options.prefix:
            return f"{self._options.prefix.rstrip('/')}/{queue}"
        return self._found(queue) or self._created(queue)

    def _check(self, queue: str, located: re.Match[str] | None) -> None:
        if self._options.fifo and not is_fifo(queue):
            raise self.error("sqs.fifo is set, but the name does not end in .fifo", queue)
        if located and not self._options.endpoint_url:
            region = self.connected().meta.region_name
            if located["region"] != region:
                raise self.error(f"it is in {located['region']}: write sqs://{located['region']}", queue)

    def _found(self, queue: str) -> str | None:
        with self._explained(queue):
            try:
                return str(self.connected().get_queue_url(QueueName=queue)["QueueUrl"])
            except exceptions.ClientError as error:
                if not _MISSING.search(code_of(error)):
                    raise
        return None

    def _created(self, queue: str) -> str:
        attributes = {"FifoQueue": "true"} if is_fifo(queue) else {}
        if attributes and self._options.content_dedup:
            attributes["ContentBasedDeduplication"] = "true"
        return str(self.call("create_queue", QueueName=queue, Attributes=attributes)["QueueUrl"])


def short_name(queue: str) -> str:
    """Return the name in a queue's URL or ARN."""
    return re.split("[/:]", queue)[-1]


def is_bare_name(queue: str) -> bool:
    """Return whether it is the name of a queue of this account and region, not a URL or ARN."""
    return _NAME.fullmatch(queue) is not None


def is_name(queue: str) -> bool:
    """Return whether a queue can have this name, URL or ARN."""
    return any(each.fullmatch(queue) for each in (_NAME, _ARN, _URL))


def is_fifo(queue: str) -> bool:
    """Return whether a name, URL or ARN is that of a FIFO queue."""
    return queue.endswith(".fifo")


def _is_final(failed: _Entry) -> bool:
    return bool(failed.get("SenderFault")) and not re.search(BUSY, str(failed.get("Code")))
