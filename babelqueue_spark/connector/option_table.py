"""The connector's options: one table, which parsing, errors and docs/options.md are made of."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from babelqueue_spark.bindings.options import byte_size, flag, seconds
from babelqueue_spark.errors import OptionError
from babelqueue_spark.forms import FORMS, JobSource
from babelqueue_spark.schemas.registry import Registry
from babelqueue_spark.tracing import Tracing

Offsets = str | dict[str, dict[int, int]]


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
    """Return an absolute path or a URL: processes of Spark have different working directories."""
    if ":" in text.partition("/")[0] or Path(text).is_absolute():
        return text
    raise ValueError(f"an absolute path or a URL, such as '{Path(text).absolute()}'")


def _folder(text: str) -> str:
    if Path(text).is_absolute():
        return text
    raise ValueError(f"the absolute path of a directory, such as '{Path(text).absolute()}'")


def _one_of(*values: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.strip().lower() not in values:
            raise ValueError(" or ".join(f"'{value}'" for value in values))
        return text.strip().lower()

    return parse


def _offsets(text: str) -> Offsets:
    if text.strip().lower() in ("earliest", "latest"):
        return text.strip().lower()
    try:
        return msgspec.json.decode(text, type=dict[str, dict[int, Annotated[int, msgspec.Meta(ge=-2)]]])
    except msgspec.DecodeError:
        raise ValueError("""'earliest', 'latest', or JSON such as {"orders": {"0": 23, "1": -2}}""") from None


def _broker_name(text: str) -> str:
    return text.strip().lower()


On = Literal["both", "reads", "stream reads", "logs", "writes", "batch writes"]


@dataclass(frozen=True, kw_only=True)
class Option:
    """One option of the connector: its parser, and its row in docs/options.md.

    Attributes:
        name: as documented; users may write it in any case.
        parse: makes a value of the text; its `ValueError` says what the option takes.
        doc: meaning, in Markdown.
        on: what the option is for; all options for logs are for reads.
        default: text that is parsed when the option is not given; None leaves the field as `Options` has it.
        default_doc: what docs/options.md says of the default; None shows `default`.
    """

    name: str
    parse: Callable[[str], Any]
    doc: str
    on: On = "both"
    default: str | None = None
    default_doc: str | None = None

    @property
    def field(self) -> str:
        """The field of `Options` that holds the value: the name in Python's case."""
        return re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", self.name)

    def value(self, text: str) -> Any:
        """Parse the text; `OptionError` says what the option takes."""
        try:
            return self.parse(text)
        except OptionError:
            raise
        except ValueError as error:
            shown = "" if self.name == "url" else f" '{text}'"
            raise OptionError(f"option '{self.name}' has the value{shown}, but takes {error}") from None


OPTIONS = (
    Option(
        name="url",
        parse=str,
        default_doc="required",
        doc="the broker: `redis://…`, `redis+cluster://…`, `redis+sentinel://…`, "
        "`amqp://…`, `sqs://REGION`, `pulsar://…`, `artemis://…`, `kafka://…`, `kinesis://REGION`, "
        "`firehose://REGION` (writes), "
        "`Endpoint=sb://…` or `sb://NAMESPACE…` (Service Bus), `sqlite:////path`, "
        "`postgresql+psycopg://…`, `mariadb+pymysql://…`; or `env:NAME`, `file:/path`",
    ),
    Option(
        name="broker",
        parse=_broker_name,
        default_doc="by scheme",
        doc="`redis`, `rabbitmq`, `sqs`, `pulsar`, `artemis`, `kafka`, `kinesis`, `firehose`, `servicebus` "
        "or `sql`",
    ),
    Option(
        name="queue",
        parse=_queues,
        default_doc="required on reads",
        doc="one queue, or several with commas (reads)",
    ),
    Option(
        name="journalLocation",
        parse=_location,
        on="stream reads",
        default_doc="required",
        doc="directory (an absolute path) or object store (`s3://…`, `gs://…`, `abfss://…`) that driver and "
        "executors share; none for Kafka and Kinesis",
    ),
    Option(
        name="journalRetention",
        parse=seconds,
        on="stream reads",
        default="0s",
        doc="how long committed segments stay, for an older checkpoint",
    ),
    Option(
        name="maxMessagesPerTrigger",
        parse=_count,
        on="stream reads",
        default="100000",
        doc="most messages a batch",
    ),
    Option(
        name="minMessagesPerTrigger",
        parse=_count,
        on="stream reads",
        default_doc="none",
        doc="a batch waits for so many, [against small files](operations.md#small-files); "
        "not with `availableNow`",
    ),
    Option(
        name="maxTriggerDelay",
        parse=seconds,
        on="stream reads",
        default="15m",
        doc="most time of that wait",
    ),
    Option(
        name="maxBytesPerTrigger",
        parse=byte_size,
        on="stream reads",
        default="256m",
        doc="most bytes of bodies a batch",
    ),
    Option(
        name="maxFetchTime",
        parse=seconds,
        on="stream reads",
        default="10s",
        doc="most time for which a reader task claims",
    ),
    Option(
        name="numPartitions",
        parse=_count,
        on="stream reads",
        default=str(min(os.cpu_count() or 1, 8)),
        default_doc="cores of the driver, 8 at most",
        doc="most reader tasks; on a cluster set it to the executors' cores",
    ),
    Option(
        name="visibilityTimeout",
        parse=seconds,
        on="stream reads",
        default_doc="the binding's: 90 s",
        doc="how long a claim may stay unacknowledged; not for RabbitMQ, Pulsar, Artemis, Kafka, Kinesis "
        "and Service Bus",
    ),
    Option(
        name="startingOffsets",
        parse=_offsets,
        on="logs",
        default_doc="`earliest`",
        doc="where a query begins: `earliest`, `latest`, or JSON such as "
        '`{"orders": {"0": 23, "1": -2}}` '
        "(-2 is earliest, -1 latest)",
    ),
    Option(
        name="endingOffsets",
        parse=_offsets,
        on="logs",
        default_doc="`latest`",
        doc="where a batch read ends; a stream takes none",
    ),
    Option(
        name="failOnDataLoss",
        parse=flag,
        on="stream reads",
        default="true",
        doc="whether missing content of a journal or log is an error",
    ),
    Option(
        name="envelope",
        parse=_one_of(*FORMS),
        default="babelqueue",
        doc="`babelqueue`, `none`, `cloudevents` or `cloudevents-binary`: the [form of messages](forms.md)",
    ),
    Option(
        name="jobFrom",
        parse=JobSource.of,
        on="reads",
        default_doc="the broker's own metadata",
        doc="with `envelope=none`, where `job` comes from: `header:NAME`, `field:NAME` of the body, or a "
        "name for all messages",
    ),
    Option(
        name="allowEmptyListData",
        parse=flag,
        on="reads",
        default="false",
        doc='read PHP\'s `"data":[]` as an empty object',
    ),
    Option(
        name="catalog",
        parse=Registry,
        default_doc="none",
        doc="path or URL of the SDKs' `registry.json`, or of its folder: a read gets the column `violation`, "
        "a write refuses payloads with one ([the catalog](catalog.md))",
    ),
    Option(
        name="messageLog",
        parse=_folder,
        default_doc="no log",
        doc="shared directory for a [JSON line about each message](worker.md#counts-and-logs), whole; with "
        "`catalog`, [sensitive fields](catalog.md#sensitive-fields) are masked",
    ),
    Option(
        name="largeNumbers",
        parse=_one_of("number", "string"),
        on="writes",
        default="number",
        doc="`number`, or `string`: integers in `data` beyond 2^53 - 1 go as strings, since "
        "[JavaScript rounds them](languages.md#data)",
    ),
    Option(
        name="tracing",
        parse=Tracing.of,
        on="writes",
        default_doc="no spans",
        doc="`environment`, or `module:function`, which returns a `TracerProvider`: [a span for each "
        "message](tracing.md#writes)",
    ),
    Option(
        name="deadLetterStyle",
        parse=_one_of("babelqueue", "initphp"),
        on="writes",
        default="babelqueue",
        doc="`babelqueue` (`<queue>.dlq`, on SQS `<queue>-dlq`) or `initphp` (see the broker's page)",
    ),
    Option(
        name="deadLetterQueue",
        parse=str,
        on="writes",
        default_doc="",
        doc="where dead letters go, instead of the style's name",
    ),
    Option(
        name="txnAppId",
        parse=str,
        on="batch writes",
        default_doc="that of the stream, within `foreachBatch` on a classic session",
        doc="with `txnVersion`, names a write: a repeat has the same ids, and is dropped where possible",
    ),
    Option(
        name="txnVersion",
        parse=_version,
        on="batch writes",
        default_doc="that of the stream, as for `txnAppId`",
        doc="number of the write, with `txnAppId`",
    ),
)
