"""What the bindings of AWS share: options of a session, its client, and errors that say what to do."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, ClassVar, Self
from urllib.parse import parse_qs, urlsplit

from botocore import exceptions
from botocore.config import Config
from botocore.credentials import AssumeRoleCredentialFetcher, DeferredRefreshableCredentials
from botocore.loaders import Loader, create_loader
from botocore.parsers import ResponseParserError
from botocore.session import Session

from babelqueue_spark.bindings.advice import Advice, denied, forbidden, full, unreachable
from babelqueue_spark.bindings.contract import BindingConfig
from babelqueue_spark.bindings.options import OptionTable, Parsers, duration, takes, whole
from babelqueue_spark.errors import BrokerError, OptionError

BUSY = "Throttl|TooManyRequests|SlowDown"
"""What the codes of answers match that are to be repeated later."""
_CREDENTIALS = ("access_key_id", "secret_access_key", "session_token")

Refusals = Mapping[str, Advice]
"""What the code of an answer matches, and what it means."""


@takes("a URL such as http://host:9324")
def _endpoint(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or (parts.port or 1) < 1:
        raise ValueError(text)
    return text


_OWN: Parsers = {
    "region": str,
    "endpoint_url": _endpoint,
    "profile": str,
    "access_key_id": str,
    "secret_access_key": str,
    "session_token": str,
    "role_arn": str,
    "role_session_name": str,
    "external_id": str,
    "max_attempts": whole(1),
    "connect_timeout": duration,
    "read_timeout": duration,
}
"""Options of a session, which each binding of AWS takes."""

_OF_BOTO3 = {
    "region_name": "region",
    "profile_name": "profile",
    **{f"aws_{name}": name for name in _CREDENTIALS},
}
"""boto3's names of them, where they differ."""


@dataclass(frozen=True, kw_only=True)
class AwsOptions:
    """What a binding needs for a session and its client: the options of `_OWN`, and what follows from them.

    Attributes:
        address: the endpoint's `host:port` or the region, as shown in errors.
        credentials: access key, secret and token, by the names that boto3 gives them.
        concurrency: requests in flight.
    """

    broker: ClassVar[str]
    """The service as boto3 names it; precedes the options."""
    title: ClassVar[str]
    own: ClassVar[Parsers] = {}
    """Options of this service alone."""

    region: str | None = None
    endpoint_url: str | None = field(default=None, repr=False)
    address: str
    profile: str | None = None
    credentials: Mapping[str, str] = field(repr=False)
    role_arn: str | None = None
    role_session_name: str = "babelqueue-spark"
    external_id: str | None = field(default=None, repr=False)
    concurrency: int = 4
    max_attempts: int = 3
    connect_timeout: float = 5.0
    read_timeout: float = 15.0

    @property
    def silence_limit(self) -> float:
        """Seconds until an endpoint that says nothing is given up, with the pauses before each repetition."""
        tries = self.max_attempts * max(self.connect_timeout, self.read_timeout)
        return tries + (1 << self.max_attempts - 1) - 1

    @classmethod
    def parse(cls, config: BindingConfig) -> Self:
        return cls(**cls._session(cls._given(config)))

    @classmethod
    def _given(cls, config: BindingConfig) -> dict[str, Any]:
        return cls.table().parse(config, _of_url(cls.broker, cls.title, config.url))

    @classmethod
    def table(cls) -> OptionTable:
        """Return the options that there are."""
        return OptionTable(broker=cls.broker, own={**_OWN, **cls.own}, of_client=_OF_BOTO3)

    @classmethod
    def _session(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return parsed options as fields; `OptionError` for half a login."""
        credentials = {f"aws_{name}": given[name] for name in _CREDENTIALS if name in given}
        if ("aws_access_key_id" in credentials) != ("aws_secret_access_key" in credentials):
            raise OptionError(
                f"{cls.broker}.access_key_id and {cls.broker}.secret_access_key are needed together"
            )
        others = {name: value for name, value in given.items() if name not in _CREDENTIALS}
        return {"address": _address(given), "credentials": credentials, **others}


def _of_url(broker: str, title: str, url: str) -> dict[str, str]:
    """Return the options that stand in a connection string; `OptionError` if it cannot be read."""
    try:
        parts = urlsplit(url)
        if parts.scheme != broker or set("@:") & set(parts.netloc) or parts.path not in ("", "/"):
            raise ValueError(parts.scheme)
        options = {name.lower(): values[-1] for name, values in parse_qs(parts.query).items()}
    except ValueError:
        raise OptionError(
            f"the {title} URL cannot be read: write {broker}://REGION, with ?endpoint=http://host:port for "
            f"anything but AWS, and credentials in {broker}.access_key_id and {broker}.secret_access_key"
        ) from None
    if "endpoint" in options:
        options["endpoint_url"] = options.pop("endpoint")
    if parts.hostname:
        options["region"] = parts.hostname
    return options


def _address(values: Mapping[str, Any]) -> str:
    if "endpoint_url" in values:
        return str(urlsplit(values["endpoint_url"]).netloc).rpartition("@")[2]
    return str(values.get("region", "AWS"))


_REFUSALS: Refusals = {
    "KMS|Kms": forbidden(
        "its encryption key cannot be used ({code}): allow kms:GenerateDataKey and kms:Decrypt"
    ),
    "AccessDenied|NotAuthorized|AuthorizationError": forbidden(
        "these credentials may not do that: allow {action}"
    ),
    "ExpiredToken|RequestExpired|TimeTooSkewed": denied(
        "the credentials have expired, or this host's clock is wrong: renew them"
    ),
    "InvalidClientTokenId|UnrecognizedClient|Signature|InvalidAccessKeyId|MissingAuthentication": denied(
        "it refused the credentials: check access key, secret, token and region"
    ),
}

_FAILURES: Mapping[type[Exception], Advice] = {
    exceptions.NoRegionError: Advice(
        "no region is configured: write {broker}://REGION, or set {broker}.region"
    ),
    exceptions.ProfileNotFound: Advice("the profile does not exist on this host: check {broker}.profile"),
    exceptions.NoCredentialsError: denied(
        "no credentials were found: set {broker}.access_key_id and {broker}.secret_access_key or "
        "{broker}.profile, or give driver and executors a role"
    ),
    exceptions.PartialCredentialsError: denied(
        "the credentials are incomplete: check key, secret and profile"
    ),
    exceptions.CredentialRetrievalError: denied(
        "the credentials could not be fetched: check {broker}.profile"
    ),
    exceptions.SSLError: unreachable("TLS failed: check the endpoint and the certificates of this host"),
    exceptions.ReadTimeoutError: unreachable("it did not answer in time: raise {broker}.read_timeout"),
    **dict.fromkeys(
        (exceptions.HTTPClientError, exceptions.ConnectionError),
        unreachable("it cannot be reached: check region, {broker}.endpoint_url and network"),
    ),
    ResponseParserError: unreachable(
        "what answers there does not speak {title}: check {broker}.endpoint_url"
    ),
}


class AwsClient:
    """A botocore client, made at the first request in the process that needs it."""

    noun: ClassVar[str]
    """What errors call a queue."""
    refusals: ClassVar[Refusals] = {}
    """Those of this service, after those of all."""

    def __init__(self, options: AwsOptions) -> None:
        self._options = options
        self._client: Any = None

    def call(self, operation: str, **parameters: Any) -> dict[str, Any]:
        with self._explained(self.named(parameters)):
            answer: dict[str, Any] = getattr(self.connected(), operation)(**parameters)
            return answer

    def named(self, parameters: Mapping[str, Any]) -> str:
        """Return the queue that the parameters of a request name, as errors show it."""
        raise NotImplementedError

    def error(self, text: str, queue: str = "", kind: type[BrokerError] = BrokerError) -> BrokerError:
        named = f"{self.noun} '{queue}': " if queue else ""
        return kind(f"{self._options.title} at {self._address}: {named}{text}")

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
        self._client = None

    @property
    def _address(self) -> str:
        if self._client is None or self._options.endpoint_url:
            return self._options.address
        return str(self._client.meta.region_name)

    def connected(self) -> Any:
        """Return the client; several threads may use it, once it is there."""
        if self._client is None:
            with self._explained(""):
                self._client = session(self._options).create_client(
                    self._options.broker,
                    endpoint_url=self._options.endpoint_url,
                    config=_config(self._options),
                )
        return self._client

    @contextmanager
    def _explained(self, queue: str) -> Iterator[None]:
        try:
            yield
        except exceptions.ClientError as error:
            refusal = self._refusal(error)
            raise self.error(refusal.text, queue, refusal.error) from None
        except (exceptions.BotoCoreError, ResponseParserError) as error:
            failure = self._failure(error)
            raise self.error(failure.text, queue, failure.error) from None

    def _refusal(self, error: exceptions.ClientError) -> Advice:
        code = code_of(error)
        service = "sts" if error.operation_name == "AssumeRole" else self._options.broker
        action = f"{service}:{error.operation_name}"
        for pattern, advice in {**_REFUSALS, **self.refusals}.items():
            if re.search(pattern, code):
                return advice._replace(text=advice.text.format(action=action, code=code))
        return Advice(reason(error.response.get("Error", {})))

    def _failure(self, error: Exception) -> Advice:
        # Not its text, which may hold the endpoint's URL with a password.
        known = (advice for kind, advice in _FAILURES.items() if isinstance(error, kind))
        found = next(known, Advice(f"the client failed with {type(error).__name__}"))
        return found._replace(text=found.text.format(broker=self._options.broker, title=self._options.title))


def throttled(advice: str) -> Advice:
    """Return what the refusal of a service means that is asked too often, with what to do."""
    return full(f"it throttles requests: {advice}")


def code_of(error: exceptions.ClientError) -> str:
    """Return the code of an answer that refuses a request."""
    return str(error.response.get("Error", {}).get("Code", ""))


def reason(failed: Mapping[str, Any]) -> str:
    """Return one line of an error's code and message."""
    return f"{failed.get('Code')}: {failed.get('Message') or 'no reason given'}".strip().splitlines()[0]


class _AssumedRole:
    """The credentials of a role, fetched when first needed and again before they expire."""

    def __init__(self, options: AwsOptions, source: Session) -> None:
        arguments = {"RoleSessionName": options.role_session_name}
        if options.external_id is not None:
            arguments["ExternalId"] = options.external_id
        create: Callable[..., Any] = partial(source.create_client, config=_config(options))
        fetcher = AssumeRoleCredentialFetcher(
            create, source.get_credentials(), options.role_arn, extra_args=arguments
        )
        self._credentials = DeferredRefreshableCredentials(fetcher.fetch_credentials, "assume-role")

    def load_credentials(self) -> Any:
        return self._credentials


def _config(options: AwsOptions) -> Config:
    return Config(
        connect_timeout=options.connect_timeout,
        read_timeout=options.read_timeout,
        retries={"mode": "standard", "total_max_attempts": options.max_attempts},
        max_pool_connections=options.concurrency,
        parameter_validation=False,
    )


def session(options: AwsOptions) -> Session:
    """Return a session of botocore with the credentials that the options name."""
    source = _opened(options.profile, options.region)
    if options.credentials:
        names = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
        source.set_credentials(*map(options.credentials.get, names))
    if options.role_arn is None:
        return source
    if source.get_credentials() is None:
        raise exceptions.NoCredentialsError
    assuming = _opened(None, source.get_config_variable("region"))
    assuming.register_component("credential_provider", _AssumedRole(options, source))
    return assuming


def _opened(profile: str | None, region: str | None) -> Session:
    opened = Session(profile=profile)
    if region is not None:
        opened.set_config_variable("region", region)
    opened.register_component("data_loader", _descriptions(opened.get_config_variable("data_path")))
    return opened


@cache
def _descriptions(data_path: str | None) -> Loader:
    """Return the descriptions of services: to read them takes ten times as long as all else of a client."""
    return create_loader(data_path)
