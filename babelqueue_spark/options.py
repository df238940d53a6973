"""The options of design and documentation: names, types, defaults, and errors that help."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from babelqueue_spark.bindings import (
    BaseBinding,
    Binding,
    BindingConfig,
    broker_of,
    brokers,
    create_binding,
    is_known,
)
from babelqueue_spark.bindings.contract import DeadLetterStyle
from babelqueue_spark.bindings.options import byte_size, flag, seconds
from babelqueue_spark.errors import OptionError

T = TypeVar("T")

Offsets = str | dict[str, dict[int, int]]

_SPARK_OWN = {"path", "checkpointlocation"}


def _count(text: str) -> int:
    if not re.fullmatch(r"\d+", text.strip()) or int(text) < 1:
        raise ValueError("a whole number of at least 1")
    return int(text)


def _version(text: str) -> int:
    if not re.fullmatch(r"\d+", text.strip()):
        raise ValueError("a whole number, such as the number of a batch")
    return int(text)


def _queues(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise ValueError("a queue name, or several with commas between")
    return names


def _location(text: str) -> str:
    """A path made absolute on the driver, since executors may run elsewhere; URLs as they are."""
    return text if ":" in text.partition("/")[0] else str(Path(text).absolute())


def _style(text: str) -> str:
    if text.strip().lower() not in ("babelqueue", "initphp"):
        raise ValueError("'babelqueue' or 'initphp'")
    return text.strip().lower()


def _offsets(text: str) -> Offsets:
    if text.strip().lower() in ("earliest", "latest"):
        return text.strip().lower()
    try:
        return msgspec.json.decode(text, type=dict[str, dict[int, Annotated[int, msgspec.Meta(ge=-2)]]])
    except msgspec.DecodeError:
        raise ValueError("""'earliest', 'latest', or JSON such as {"orders": {"0": 23, "1": -2}}""") from None


PARSERS: dict[str, Callable[[str], Any]] = {
    "broker": lambda text: text.strip().lower(),
    "url": str,
    "queue": _queues,
    "journalLocation": _location,
    "journalRetention": seconds,
    "maxMessagesPerTrigger": _count,
    "maxBytesPerTrigger": byte_size,
    "maxFetchTime": seconds,
    "numPartitions": _count,
    "visibilityTimeout": seconds,
    "deadLetterStyle": _style,
    "deadLetterQueue": str,
    "txnAppId": str,
    "txnVersion": _version,
    "failOnDataLoss": flag,
    "allowEmptyListData": flag,
    "startingOffsets": _offsets,
    "endingOffsets": _offsets,
}
_CANONICAL = {name.lower(): name for name in PARSERS}
_READ_ONLY = {
    "journalLocation", "journalRetention", "maxMessagesPerTrigger", "maxBytesPerTrigger", "maxFetchTime",
    "numPartitions", "visibilityTimeout", "failOnDataLoss", "allowEmptyListData", "startingOffsets",
    "endingOffsets",
}  # fmt: skip
_WRITE_ONLY = {"deadLetterStyle", "deadLetterQueue", "txnAppId", "txnVersion"}


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of one read or write, parsed; secrets stay references until `binding`.

    Attributes:
        broker: one of `babelqueue_spark.bindings.brokers()`.
        url: as given; may be `env:NAME` or `file:/path`.
        queue: the queues named; empty on a write whose rows name theirs.
        journal_location: directory or fsspec URL; None on batch reads and writes.
        journal_retention: seconds for which committed batches stay replayable.
        max_messages, max_bytes, max_fetch_time: bounds of one trigger (messages, bytes, seconds).
        num_partitions: most parallel claimers a trigger.
        visibility_timeout: seconds a claim may stay unacknowledged; None = the binding's default.
        dead_letter_style, dead_letter_queue: where dead letters go.
        txn_app_id, txn_version: what a batch write is a repeat of, when another one had the same.
        fail_on_data_loss: whether missing journal content fails the query.
        allow_empty_list_data: read PHP's `"data":[]` as an empty object.
        starting_offsets, ending_offsets: of a log: `earliest`, `latest`, or queue → partition → offset, where
            -2 and -1 are those two; None = not given.
        given: names of the options that were given.
        client_options: what was given as `<broker>.<name>`, names in lower case.
    """

    broker: str
    url: str = field(repr=False)
    queue: tuple[str, ...] = ()
    journal_location: str | None = None
    journal_retention: float = 0.0
    max_messages: int = 100_000
    max_bytes: int = 256 << 20
    max_fetch_time: float = 10.0
    num_partitions: int = field(default_factory=lambda: min(os.cpu_count() or 1, 8))
    visibility_timeout: float | None = None
    dead_letter_style: DeadLetterStyle = "babelqueue"
    dead_letter_queue: str | None = None
    txn_app_id: str | None = None
    txn_version: int | None = None
    fail_on_data_loss: bool = True
    allow_empty_list_data: bool = False
    starting_offsets: Offsets | None = None
    ending_offsets: Offsets | None = None
    given: frozenset[str] = frozenset()
    client_options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def queue_binding(self) -> Binding:
        """The binding, where messages can be claimed."""
        binding = self.binding()
        if not isinstance(binding, Binding):
            raise OptionError(
                f"broker '{self.broker}' keeps what was read, so nothing can be taken out of it: read it by "
                "offsets, with spark.read or spark.readStream"
            )
        return binding

    def binding(self) -> BaseBinding:
        """A binding to the broker, with references to secrets resolved on this machine."""
        return create_binding(
            self.broker,
            BindingConfig(
                url=resolve(self.url, "url"),
                visibility_timeout=self.visibility_timeout,
                client_options={
                    name: resolve(value, f"{self.broker}.{name}")
                    for name, value in self.client_options.items()
                },
                referenced=frozenset(
                    name
                    for name, value in {"url": self.url, **self.client_options}.items()
                    if is_reference(value)
                ),
            ),
        )


def read_options(given: Mapping[str, str]) -> Options:
    """Options of `spark.read` and `spark.readStream`; `OptionError` says what to change."""
    options = _parse(given, forbidden=_WRITE_ONLY, door="reading")
    if not options.queue:
        raise OptionError("option 'queue' is required: .option('queue', 'orders'), or several with commas")
    return options


def write_options(given: Mapping[str, str]) -> Options:
    """Options of `df.write` and `df.writeStream`; `OptionError` says what to change."""
    options = _parse(given, forbidden=_READ_ONLY, door="writing")
    if len(options.queue) > 1:
        raise OptionError("option 'queue' takes one queue on writes: name others in a 'queue' column")
    if (options.txn_app_id is None) != (options.txn_version is None):
        raise OptionError("options 'txnAppId' and 'txnVersion' are needed together: a name, and a number")
    return options


def _parse(given: Mapping[str, str], *, forbidden: set[str], door: str) -> Options:
    lowered = {key.lower(): value for key, value in given.items()}
    values: dict[str, Any] = {}
    for key, text in lowered.items():
        name = _CANONICAL.get(key)
        if name in forbidden:
            raise OptionError(f"option '{name}' has no meaning when {door}: remove it")
        if name is not None:
            values[name] = _value(name, text)
    broker = _broker(values)
    client = _client_options(lowered, broker, forbidden)
    return Options(
        broker=broker,
        given=frozenset(values),
        client_options=client,
        **{_field(name): value for name, value in values.items() if name != "broker"},
    )


def _value(name: str, text: str) -> Any:
    try:
        return PARSERS[name](text)
    except ValueError as error:
        shown = "" if name == "url" else f" '{text}'"
        raise OptionError(f"option '{name}' has the value{shown}, but takes {error}") from None


def _field(name: str) -> str:
    snake = re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower()
    return snake.removesuffix("_per_trigger")


def _broker(values: Mapping[str, Any]) -> str:
    if "url" not in values:
        raise OptionError("option 'url' is required, such as redis://localhost:6379/0 or sqlite:////srv/q.db")
    named = values.get("broker") or broker_of(resolve(values["url"], "url"))
    if named is None:
        known = ", ".join(brokers())
        raise OptionError(f"the scheme of 'url' names no broker: set option 'broker' to one of {known}")
    if not is_known(named):
        known = ", ".join(brokers())
        raise OptionError(f"option 'broker' has the value '{named}', but takes one of {known}")
    return str(named)


def _client_options(lowered: Mapping[str, str], broker: str, forbidden: set[str]) -> dict[str, str]:
    client = {}
    for key, text in lowered.items():
        if key in _CANONICAL or key in _SPARK_OWN:
            continue
        prefix, dot, name = key.partition(".")
        if dot and prefix == broker:
            client[name] = text
            continue
        raise OptionError(_unknown(key, broker, [name for name in PARSERS if name not in forbidden]))
    return client


def _unknown(key: str, broker: str, names: list[str]) -> str:
    nearest = difflib.get_close_matches(key, [name.lower() for name in names], n=1, cutoff=0.5)
    hint = f": did you mean '{_CANONICAL[nearest[0]]}'?" if nearest else f": known are {', '.join(names)}"
    return f"option '{key}' is unknown{hint} (the client's own options are given as '{broker}.<name>')"


def is_reference(value: str) -> bool:
    """Whether `resolve` gives another text than the value itself."""
    kind, separator, _ = value.partition(":")
    return bool(separator) and kind in ("env", "file")


def resolve(value: str, name: str) -> str:
    """The value itself, or what `env:NAME` or `file:/path` refers to on this machine."""
    if not is_reference(value):
        return value
    kind, _, target = value.partition(":")
    if kind == "env":
        if target not in os.environ:
            raise OptionError(
                f"option '{name}' refers to the environment variable {target}, which is not set on this "
                "machine: set it for the driver and for the executors (spark.executorEnv)"
            )
        return os.environ[target]
    try:
        return Path(target).read_text().strip()
    except OSError as error:
        raise OptionError(
            f"option '{name}' refers to the file {target}, which cannot be read ({error.strerror}): "
            "it must exist on the driver and on the executors"
        ) from None
