"""Requests to SQS: several in flight, failed entries repeated, errors that say what to do."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, TypeVar

from botocore import exceptions
from botocore.config import Config
from botocore.credentials import AssumeRoleCredentialFetcher, DeferredRefreshableCredentials
from botocore.loaders import Loader, create_loader
from botocore.parsers import ResponseParserError
from botocore.session import Session

from babelqueue_spark.bindings.advice import Advice, denied, failed, full, not_found, unreachable
from babelqueue_spark.bindings.sqs.options import SqsOptions
from babelqueue_spark.errors import BrokerError, BrokerFullError

BATCH = 10
"""Most entries of one request."""

_Entry = Mapping[str, Any]
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}|[A-Za-z0-9_-]{1,75}\.fifo")
_ARN = re.compile(r"arn:[a-z-]+:sqs:(?P<region>[^:]*):(?P<account>[^:]*):(?P<name>[^:]+)")
_AWS_URL = re.compile(r"https://sqs\.(?P<region>[a-z0-9-]+)\.amazonaws\.com")
_MISSING = re.compile("QueueDoesNotExist|NonExistentQueue")
_BUSY = "Throttl|TooManyRequests|SlowDown"
_FIRST_PAUSE = 0.2


class OverLimitError(BrokerFullError):
    """As many messages are in flight as the queue allows."""


# What the code of an answer matches.
_REFUSALS: tuple[tuple[str, Advice], ...] = (
    (
        "KMS|Kms",
        denied("its encryption key cannot be used ({code}): allow kms:GenerateDataKey and kms:Decrypt"),
    ),
    (
        "AccessDenied|NotAuthorized|AuthorizationError",
        denied("these credentials may not do that: allow {action}"),
    ),
    (
        "ExpiredToken|RequestExpired|TimeTooSkewed",
        denied("the credentials have expired, or this host's clock is wrong: renew them"),
    ),
    (
        "InvalidClientTokenId|UnrecognizedClient|Signature|InvalidAccessKeyId|MissingAuthentication",
        denied("it refused the credentials: check access key, secret, token and region"),
    ),
    (_MISSING.pattern, not_found("it does not exist: create it, or check name, account and region")),
    (
        "QueueDeletedRecently",
        not_found("it was deleted less than a minute ago: wait before it is created again"),
    ),
    (
        "OverLimit",
        Advice(
            "too many messages are in flight: acknowledge some, or lower maxMessagesPerTrigger",
            OverLimitError,
        ),
    ),
    (_BUSY, full("it throttles requests: lower numPartitions or sqs.concurrency")),
)

_FAILURES: tuple[tuple[type[Exception], Advice], ...] = (
    (exceptions.NoRegionError, failed("no region is configured: write sqs://REGION, or set sqs.region")),
    (exceptions.ProfileNotFound, failed("the profile does not exist on this host: check sqs.profile")),
    (
        exceptions.NoCredentialsError,
        denied(
            "no credentials were found: set sqs.access_key_id and sqs.secret_access_key or sqs.profile, or "
            "give driver and executors a role"
        ),
    ),
    (
        exceptions.PartialCredentialsError,
        denied("the credentials are incomplete: check key, secret and profile"),
    ),
    (exceptions.CredentialRetrievalError, denied("the credentials could not be fetched: check sqs.profile")),
    (exceptions.SSLError, unreachable("TLS failed: check the endpoint and the certificates of this host")),
    (exceptions.ReadTimeoutError, unreachable("it did not answer in time: raise sqs.read_timeout")),
    (
        exceptions.HTTPClientError,
        unreachable("it cannot be reached: check region, sqs.endpoint_url and network"),
    ),
    (
        exceptions.ConnectionError,
        unreachable("it cannot be reached: check region, sqs.endpoint_url and network"),
    ),
    (ResponseParserError, unreachable("what answers there does not speak SQS: check sqs.endpoint_url")),
)


class SqsClient:
    """A botocore client and its threads, made at the first request in the process that needs them."""

    def __init__(self, options: SqsOptions) -> None:
        self._options = options
        self._client: Any = None
        self._threads: ThreadPoolExecutor | None = None
        self._urls: dict[str, str] = {}

    def url(self, queue: str) -> str:
        """The URL of a queue, given by name, URL or ARN; what a bare name lacks is created."""
        if queue not in self._urls:
            self._urls[queue] = self._resolved(queue)
        return self._urls[queue]

    def call(self, operation: str, **parameters: Any) -> dict[str, Any]:
        """The answer to one request."""
        with self._explained(parameters):
            answer: dict[str, Any] = getattr(self._connected(), operation)(**parameters)
            return answer

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
            refused |= {name: _reason(entry) for name, entry in failed.items() if _is_final(entry)}
            entries = [entry for entry in entries if entry["Id"] in failed and entry["Id"] not in refused]
            if not entries:
                return refused
        reasons = {_reason(failed[entry["Id"]]) for entry in entries}
        raise self.error(f"{operation} failed for {len(entries)} messages: {', '.join(sorted(reasons))}", url)

    def each(self, work: Callable[[_Item], _Result], items: Iterable[_Item]) -> list[_Result]:
        """What `work` returns for each item, several at a time."""
        todo = list(items)
        if len(todo) <= 1 or self._options.concurrency == 1:
            return [work(item) for item in todo]
        self._connected()
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._options.concurrency, thread_name_prefix="sqs")
        return list(self._threads.map(work, todo))

    def error(self, text: str, queue: str = "", kind: type[BrokerError] = BrokerError) -> BrokerError:
        """An error that names the broker and the queue."""
        named = f"queue '{short_name(queue)}': " if queue else ""
        return kind(f"SQS at {self._address}: {named}{text}")

    def close(self) -> None:
        """Close connections and threads; idempotent."""
        if self._threads is not None:
            self._threads.shutdown()
        if self._client is not None:
            self._client.close()
        self._threads = self._client = None
        self._urls.clear()

    @property
    def _address(self) -> str:
        if self._client is None or self._options.endpoint_url:
            return self._options.address
        return str(self._client.meta.region_name)

    def _connected(self) -> Any:
        if self._client is None:
            options = self._options
            with self._explained({}):
                session = _session(options)
                self._client = session.create_client(
                    "sqs", endpoint_url=options.endpoint_url, config=_config(options)
                )
        return self._client

    def _resolved(self, queue: str) -> str:
        arn = _ARN.fullmatch(queue)
        is_url = queue.startswith(("https://", "http://"))
        self._check(queue, arn or _AWS_URL.match(queue))
        if is_url:
            return queue
        if arn:
            name, account = arn["name"], arn["account"]
            found = self.call("get_queue_url", QueueName=name, QueueOwnerAWSAccountId=account)
            return str(found["QueueUrl"])
        if not _NAME.fullmatch(queue):
            raise self.error(
                "this cannot be a name: 1 to 80 letters, digits, hyphens and underscores, with .fifo at "
                "the end of a FIFO queue's; or give its URL or ARN",
                queue,
            )
        if self._options.prefix:
            return f"{self._options.prefix.rstrip('/')}/{queue}"
        return self._found_or_created(queue)

    def _check(self, queue: str, located: re.Match[str] | None) -> None:
        if self._options.fifo and not is_fifo(queue):
            raise self.error("sqs.fifo is set, but the name does not end in .fifo", queue)
        if located and not self._options.endpoint_url:
            region = self._connected().meta.region_name
            if located["region"] != region:
                raise self.error(f"it is in {located['region']}: write sqs://{located['region']}", queue)

    def _found_or_created(self, queue: str) -> str:
        with self._explained({"QueueName": queue}):
            try:
                return str(self._connected().get_queue_url(QueueName=queue)["QueueUrl"])
            except exceptions.ClientError as error:
                if not _MISSING.search(_code(error)):
                    raise
        attributes = {"FifoQueue": "true"} if is_fifo(queue) else {}
        if attributes and self._options.content_dedup:
            attributes["ContentBasedDeduplication"] = "true"
        return str(self.call("create_queue", QueueName=queue, Attributes=attributes)["QueueUrl"])

    @contextmanager
    def _explained(self, parameters: Mapping[str, Any]) -> Iterator[None]:
        queue = parameters.get("QueueName") or parameters.get("QueueUrl") or ""
        try:
            yield
        except exceptions.ClientError as error:
            refusal = _refusal(error)
            raise self.error(refusal.text, queue, refusal.error) from None
        except (exceptions.BotoCoreError, ResponseParserError) as error:
            failure = _failure(error)
            raise self.error(failure.text, queue, failure.error) from None


class _AssumedRole:
    """The credentials of a role, fetched when first needed and again before they expire."""

    def __init__(self, source: Session, options: SqsOptions) -> None:
        arguments = {"RoleSessionName": options.role_session_name}
        if options.external_id is not None:
            arguments["ExternalId"] = options.external_id
        fetcher = AssumeRoleCredentialFetcher(
            partial(source.create_client, config=_config(options)),
            source.get_credentials(),
            options.role_arn,
            extra_args=arguments,
        )
        self._credentials = DeferredRefreshableCredentials(fetcher.fetch_credentials, "assume-role")

    def load_credentials(self) -> Any:
        return self._credentials


def short_name(queue: str) -> str:
    """The name in a queue's URL or ARN."""
    return re.split("[/:]", queue)[-1]


def is_fifo(queue: str) -> bool:
    """Whether a name, URL or ARN is that of a FIFO queue."""
    return queue.endswith(".fifo")


def _config(options: SqsOptions) -> Config:
    return Config(
        connect_timeout=options.connect_timeout,
        read_timeout=options.read_timeout,
        retries={"mode": "standard", "total_max_attempts": options.max_attempts},
        max_pool_connections=options.concurrency,
        parameter_validation=False,
    )


def _session(options: SqsOptions) -> Session:
    source = _opened(options.profile, options.region)
    if options.credentials:
        names = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
        source.set_credentials(*map(options.credentials.get, names))
    if options.role_arn is None:
        return source
    if source.get_credentials() is None:
        raise exceptions.NoCredentialsError
    assuming = _opened(None, source.get_config_variable("region"))
    assuming.register_component("credential_provider", _AssumedRole(source, options))
    return assuming


def _opened(profile: str | None, region: str | None) -> Session:
    session = Session(profile=profile)
    if region is not None:
        session.set_config_variable("region", region)
    session.register_component("data_loader", _descriptions(session.get_config_variable("data_path")))
    return session


@cache
def _descriptions(data_path: str | None) -> Loader:
    """The descriptions of services: to read them takes ten times as long as all else of a client."""
    return create_loader(data_path)


def _code(error: exceptions.ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _is_final(failed: _Entry) -> bool:
    return bool(failed.get("SenderFault")) and not re.search(_BUSY, str(failed.get("Code")))


def _reason(failed: _Entry) -> str:
    return _first_line(f"{failed.get('Code')}: {failed.get('Message') or 'no reason given'}")


def _refusal(error: exceptions.ClientError) -> Advice:
    code = _code(error)
    action = f"{'sts' if error.operation_name == 'AssumeRole' else 'sqs'}:{error.operation_name}"
    for pattern, advice in _REFUSALS:
        if re.search(pattern, code):
            return advice._replace(text=advice.text.format(action=action, code=code))
    return failed(_reason(error.response.get("Error", {})))


def _failure(error: Exception) -> Advice:
    # Not its text, which may hold the endpoint's URL with a password.
    known = (advice for kind, advice in _FAILURES if isinstance(error, kind))
    return next(known, failed(f"the client failed with {type(error).__name__}"))


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0]
