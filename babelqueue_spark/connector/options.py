"""The options of a read or write, as users give them and as the connector uses them."""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from babelqueue_spark.bindings import (
    BaseBinding,
    Binding,
    BindingConfig,
    binding_class,
    broker_of,
    brokers,
    create_binding,
    is_known,
    known_schemes,
)
from babelqueue_spark.bindings.contract import DeadLetterStyle
from babelqueue_spark.connector.option_table import OPTIONS, Offsets, On
from babelqueue_spark.errors import OptionError
from babelqueue_spark.forms import Form, JobSource, form_of
from babelqueue_spark.journal import Journal
from babelqueue_spark.schemas.registry import Registry
from babelqueue_spark.secrets import is_reference, resolve
from babelqueue_spark.storage import is_object_store
from babelqueue_spark.tracing import Tracing

_SPARK_OWN = {"path", "checkpointlocation", "queryname"}
_JOURNAL = "journal."
_ON_READS: tuple[On, ...] = ("both", "reads", "stream reads", "logs")
_ON_WRITES: tuple[On, ...] = ("both", "writes", "batch writes")
_OF_SPARKS_KAFKA = {
    "subscribe": "queue",
    "topic": "queue",
    "maxoffsetspertrigger": "maxMessagesPerTrigger",
    "minoffsetspertrigger": "minMessagesPerTrigger",
}
"""Option of Spark's own Kafka connector → ours."""
_BY_KEY = {option.name.lower(): option for option in OPTIONS}


@dataclass(frozen=True, kw_only=True)
class Options:
    """Parsed options of one read or write; `OPTIONS` says what each field means.

    Times are seconds, sizes bytes. None means that an option was not given. Secrets stay references until
    `binding`.

    Attributes:
        broker: one of `babelqueue_spark.bindings.brokers()`.
        queue: the queues named; empty on a write whose rows name theirs.
        starting_offsets, ending_offsets: `earliest`, `latest`, or queue → partition → offset, where -2 and -1
            are those two.
        given: names of the options that were given.
        client_options: what was given as `<broker>.<name>`, names in lower case.
        journal_config: what was given as `journal.<name>`, names in lower case.
    """

    broker: str
    url: str = field(repr=False)
    queue: tuple[str, ...] = ()
    journal_location: str | None = None
    journal_retention: float
    max_messages_per_trigger: int
    min_messages_per_trigger: int | None = None
    max_trigger_delay: float
    max_bytes_per_trigger: int
    max_fetch_time: float
    num_partitions: int
    visibility_timeout: float | None = None
    starting_offsets: Offsets | None = None
    ending_offsets: Offsets | None = None
    fail_on_data_loss: bool
    allow_empty_list_data: bool
    envelope: str
    job_from: JobSource | None = None
    catalog: Registry | None = None
    message_log: str | None = None
    tracing: Tracing | None = None
    large_numbers: str = "number"
    dead_letter_style: DeadLetterStyle
    dead_letter_queue: str | None = None
    txn_app_id: str | None = None
    txn_version: int | None = None
    given: frozenset[str] = frozenset()
    client_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    journal_config: Mapping[str, str] = field(default_factory=dict, repr=False)

    @cached_property
    def form(self) -> Form:
        """The form of messages."""
        return form_of(self.envelope, self.job_from)

    def journal(self, clock: Callable[[], float] = time.time) -> Journal:
        """Open the journal, whose commits reckon by `clock`; resolves references on this machine."""
        return Journal(str(self.journal_location), resolved_config(self.journal_config), clock)

    def check(self) -> None:
        """Raise `OptionError` for options and names of queues that the binding refuses; connects to nothing.

        References to secrets stay unresolved, and unchecked: they may be for executors only.
        """
        if any(map(is_reference, (self.url, *self.client_options.values()))):
            binding_class(self.broker)
        else:
            binding = self.binding()
            for queue in (*self.queue, *([self.dead_letter_queue] if self.dead_letter_queue else ())):
                binding.check_queue(queue)
            binding.close()

    def queue_binding(self) -> Binding:
        """Make a binding from which messages can be claimed; `OptionError` where the broker is a log."""
        binding = self.binding()
        if not isinstance(binding, Binding):
            raise OptionError(
                f"broker '{self.broker}' keeps what was read, so nothing can be taken out of it: read it by "
                "offsets, with spark.read or spark.readStream"
            )
        return binding

    def binding(self) -> BaseBinding:
        """Make a binding to the broker; resolves references to secrets on this machine."""
        return create_binding(
            self.broker,
            BindingConfig(
                url=resolve(self.url, "url"),
                visibility_timeout=self.visibility_timeout,
                native=self.form.native,
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


def checked_location(text: str) -> str:
    """Return the value of `journalLocation`; `OptionError` unless it is an absolute path or a URL."""
    return str(_BY_KEY["journallocation"].value(text))


def journal_config(given: Mapping[str, str]) -> dict[str, str]:
    """Return the options of the family `journal.<name>`, without the prefix, names in lower case."""
    lowered = {key.lower(): value for key, value in given.items()}
    return {key.removeprefix(_JOURNAL): lowered[key] for key in lowered if key.startswith(_JOURNAL)}


def resolved_config(config: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a journal's store with references to secrets resolved on this machine."""
    return {name: resolve(value, f"{_JOURNAL}{name}") for name, value in config.items()}


def read_options(given: Mapping[str, str]) -> Options:
    """Parse the options of `spark.read` and `spark.readStream`; `OptionError` says what to change."""
    options = _parse(given, allowed=_ON_READS, door="reading")
    if not options.queue:
        raise OptionError("option 'queue' is required: .option('queue', 'orders'), or several with commas")
    _check_minimum(options)
    return options


def _check_minimum(options: Options) -> None:
    least, most = options.min_messages_per_trigger, options.max_messages_per_trigger
    if least is None and "maxTriggerDelay" in options.given:
        raise OptionError("option 'maxTriggerDelay' has no effect alone: set minMessagesPerTrigger too")
    if least is not None and least > most:
        raise OptionError(
            f"option 'minMessagesPerTrigger' has the value {least}, but no batch is larger than "
            f"maxMessagesPerTrigger ({most}): raise that, or lower the minimum"
        )


def write_options(given: Mapping[str, str]) -> Options:
    """Parse the options of `df.write` and `df.writeStream`; `OptionError` says what to change."""
    options = _parse(given, allowed=_ON_WRITES, door="writing")
    if len(options.queue) > 1:
        raise OptionError("option 'queue' takes one queue on writes: name others in a 'queue' column")
    if (options.txn_app_id is None) != (options.txn_version is None):
        raise OptionError("options 'txnAppId' and 'txnVersion' are needed together: a name, and a number")
    return options


def envelope_options(given: Mapping[str, str], what: str) -> Options:
    """Parse as `write_options` does; `OptionError` unless messages are envelopes, which `what` needs."""
    options = write_options(given)
    if options.form.native:
        raise OptionError(f"{what} needs envelopes: remove option 'envelope', or set it to babelqueue")
    return options


def _parse(given: Mapping[str, str], *, allowed: tuple[On, ...], door: str) -> Options:
    lowered = {key.lower(): value for key, value in given.items()}
    values = {option.field: option.parse(option.default) for option in OPTIONS if option.default is not None}
    found = [_BY_KEY[key] for key in lowered if key in _BY_KEY]
    for option in found:
        if option.on not in allowed:
            raise OptionError(f"option '{option.name}' has no meaning when {door}: remove it")
        values[option.field] = option.value(lowered[option.name.lower()])
    if "catalog" in values and "message_log" in values:
        values["catalog"].sensitive_fields()
    if "job_from" in values and values["envelope"] != "none":
        raise OptionError("option 'jobFrom' is for envelope=none: other messages name their job themselves")
    values["broker"] = _broker(values)
    config = journal_config(given)
    if config and not is_object_store(values.get("journal_location", "")):
        raise OptionError(
            f"option '{_JOURNAL}{next(iter(config))}' is for a journalLocation on an object store"
        )
    return Options(
        given=frozenset(option.name for option in found),
        client_options=_client_options(lowered, values["broker"], allowed),
        journal_config=config,
        **values,
    )


def _broker(values: Mapping[str, Any]) -> str:
    if "url" not in values:
        raise OptionError("option 'url' is required, such as redis://localhost:6379/0 or sqlite:////srv/q.db")
    named = values.get("broker") or broker_of(resolve(values["url"], "url"))
    if named is None:
        raise OptionError(_no_broker(resolve(values["url"], "url")))
    if not is_known(named):
        known = ", ".join(brokers())
        raise OptionError(f"option 'broker' has the value '{named}', but takes one of {known}")
    return str(named)


def _client_options(lowered: Mapping[str, str], broker: str, allowed: tuple[On, ...]) -> dict[str, str]:
    client = {}
    for key, text in lowered.items():
        if key in _BY_KEY or key in _SPARK_OWN or (key.startswith(_JOURNAL) and "stream reads" in allowed):
            continue
        prefix, dot, name = key.partition(".")
        if not dot or prefix != broker:
            known = [option.name for option in OPTIONS if option.on in allowed]
            raise OptionError(_unknown(key, broker, known))
        client[name] = text
    return client


def _no_broker(url: str) -> str:
    """Say what a URL lacks, and show nothing of it but its scheme."""
    scheme, colon, _ = url.partition("://")
    if not colon:
        return "option 'url' has no scheme: begin it with that of its broker, as in redis://host:6379"
    nearest = difflib.get_close_matches(scheme.lower(), known_schemes(), n=1)
    hint = f"did you mean {nearest[0]}://?" if nearest else ""
    advice = hint or f"set option 'broker' to one of {', '.join(brokers())}"
    return f"the scheme of 'url' names no broker: {advice}"


def _unknown(key: str, broker: str, names: list[str]) -> str:
    """Say that an option is unknown, and which of `names` was meant."""
    nearest = _nearest(key, broker, names)
    hint = f": did you mean '{nearest}'?" if nearest else f": known are {', '.join(names)}"
    return f"option '{key}' is unknown{hint} (the client's own options are given as '{broker}.<name>')"


def _nearest(key: str, broker: str, names: list[str]) -> str | None:
    """Return the option that was meant; names with underscores are those of clients."""
    spelt = {name.lower(): name for name in names}
    plain = key.replace("_", "")
    if key in _OF_SPARKS_KAFKA or plain in spelt:
        return _OF_SPARKS_KAFKA.get(key) or spelt[plain]
    if "_" in key and "." not in key:
        return f"{broker}.{key}"
    nearest = difflib.get_close_matches(key, spelt, n=1, cutoff=0.5)
    return spelt[nearest[0]] if nearest else None
