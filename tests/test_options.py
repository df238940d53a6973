"""Options: typed, and with errors that help."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from babelqueue_spark.bindings import BINDINGS, BindingConfig, binding_class
from babelqueue_spark.bindings.options import byte_size, flag, milliseconds, seconds, whole_seconds
from babelqueue_spark.connector.option_table import OPTIONS
from babelqueue_spark.connector.options import Options, read_options, write_options
from babelqueue_spark.errors import OptionError
from babelqueue_spark.secrets import resolve
from tests.brokers import URLS

REDIS = "redis://h"
URL = "sqlite:////srv/queue.db"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10s", 10),
        ("5 minutes", 300),
        ("1 hour 30 min", 5400),
        ("250ms", 0.25),
        ("90", 90),
        ("INTERVAL 2 days", 172800),
        ("1.5 s", 1.5),
    ],
)
def test_times(text: str, expected: float) -> None:
    assert seconds(text) == expected


@pytest.mark.parametrize("text", ["", "soon", "10 parsecs", "-5s", "s"])
def test_bad_times(text: str) -> None:
    with pytest.raises(ValueError, match="a time such as"):
        seconds(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("64m", 64 << 20), ("1g", 1 << 30), ("512 KiB", 512 << 10), ("10", 10), ("2MB", 2 << 20)],
)
def test_sizes(text: str, expected: int) -> None:
    assert byte_size(text) == expected


@pytest.mark.parametrize("text", ["", "many", "0", "-1m", "1.5m"])
def test_bad_sizes(text: str) -> None:
    with pytest.raises(ValueError, match="a size such as"):
        byte_size(text)


def test_keys_are_case_insensitive_and_typed() -> None:
    options = read_options(
        {
            "URL": URL,
            "queue": "orders, mails",
            "MAXMESSAGESPERTRIGGER": "10",
            "maxbytespertrigger": "1m",
            "failondataloss": "FALSE",
            "sql.Table": "work",
        }
    )
    assert options.broker == "sql"
    assert options.queue == ("orders", "mails")
    assert (options.max_messages_per_trigger, options.max_bytes_per_trigger) == (10, 1 << 20)
    assert not options.fail_on_data_loss
    assert options.client_options == {"table": "work"}


@pytest.mark.parametrize("location", ["/srv/j", "s3://bucket/j", "file:/srv/j", "dbfs:/j"])
def test_a_journal_is_an_absolute_path_or_a_url(location: str) -> None:
    assert read_options({"url": URL, "queue": "q", "journalLocation": location}).journal_location == location


def test_a_check_needs_no_broker_and_no_secret() -> None:
    for url in URLS.values():
        read_options({"url": url, "queue": "q"}).check()
    read_options({"url": "env:NOT_SET_HERE", "broker": "redis", "queue": "q"}).check()
    with pytest.raises(OptionError, match=r"redis.socket_timeout has the value 'soon'"):
        read_options({"url": URLS["redis"], "queue": "q", "redis.socket_timeout": "soon"}).check()


def test_each_field_is_made_by_one_option() -> None:
    made = [option.field for option in OPTIONS]
    assert sorted([*made, "given", "client_options", "journal_config"]) == sorted(
        each.name for each in fields(Options)
    )


def test_what_is_not_given_has_its_default() -> None:
    options = read_options({"url": URL, "queue": "q"})
    assert options.given == {"url", "queue"}
    assert (options.max_messages_per_trigger, options.max_bytes_per_trigger, options.max_fetch_time) == (
        100_000,
        256 << 20,
        10,
    )
    assert (options.journal_retention, options.visibility_timeout) == (0, None)
    assert (options.fail_on_data_loss, options.allow_empty_list_data) == (True, False)
    assert write_options({"url": URL}).dead_letter_style == "babelqueue"


@pytest.mark.parametrize(
    ("scheme", "broker"),
    [("sqlite:///x", "sql"), ("postgresql+psycopg://h/d", "sql"), ("rediss://h", "redis")],
)
def test_broker_follows_from_the_scheme(scheme: str, broker: str) -> None:
    assert read_options({"url": scheme, "queue": "q"}).broker == broker


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"queue": "q"}, "'url' is required"),
        ({"url": URL}, "'queue' is required"),
        ({"url": "ftp://x", "queue": "q"}, "names no broker"),
        ({"url": URL, "queue": "q", "broker": "carrier-pigeon"}, "takes one of"),
        ({"url": URL, "queue": "q", "maxMessagePerTrigger": "5"}, "did you mean 'maxMessagesPerTrigger'"),
        ({"url": REDIS, "queue": "q", "socket_timeout": "5"}, "did you mean 'redis.socket_timeout'"),
        ({"url": URL, "queue": "q", "max_fetch_time": "5"}, "did you mean 'maxFetchTime'"),
        ({"url": URL, "subscribe": "q"}, "'subscribe' is unknown: did you mean 'queue'"),
        ({"url": URL, "queue": "q", "minOffsetsPerTrigger": "5"}, "did you mean 'minMessagesPerTrigger'"),
        (
            {"url": URL, "queue": "q", "minMessagesPerTrigger": "11", "maxMessagesPerTrigger": "10"},
            r"'minMessagesPerTrigger' has the value 11, .* maxMessagesPerTrigger \(10\): raise",
        ),
        ({"url": URL, "queue": "q", "minMessagesPerTrigger": "100001"}, r"maxMessagesPerTrigger \(100000\)"),
        ({"url": URL, "queue": "q", "maxTriggerDelay": "1h"}, "'maxTriggerDelay' .* set minMessages"),
        ({"url": "reddis://h", "queue": "q"}, "did you mean redis://"),
        ({"url": "localhost:6379", "queue": "q"}, r"'url' has no scheme: begin it .* redis://host:6379"),
        ({"url": URL, "queue": "q", "redis.socket_timeout": "5"}, "unknown"),
        ({"url": URL, "queue": "q", "maxFetchTime": "soon"}, "'maxFetchTime' has the value 'soon'"),
        ({"url": URL, "queue": "q", "numPartitions": "0"}, "at least 1"),
        ({"url": URL, "queue": " , "}, "a queue name"),
        (
            {"url": URL, "queue": "q", "journalLocation": "j"},
            f"absolute path or a URL, such as '{Path.cwd()}/j'",
        ),
        ({"url": URL, "queue": "q", "deadLetterQueue": "d"}, "no meaning when reading"),
    ],
)
def test_errors_say_what_to_do_in_one_line(given: dict[str, str], says: str) -> None:
    with pytest.raises(OptionError, match=says) as caught:
        read_options(given)
    assert "\n" not in str(caught.value)


def test_write_refuses_options_of_a_read() -> None:
    with pytest.raises(OptionError, match="no meaning when writing"):
        write_options({"url": URL, "journalLocation": "/j"})
    with pytest.raises(OptionError, match="takes one queue"):
        write_options({"url": URL, "queue": "a,b"})
    assert write_options({"url": URL, "checkpointlocation": "/c", "queryName": "copies"}).queue == ()


@pytest.mark.parametrize(
    "given", [{"txnAppId": "copy"}, {"txnVersion": "7"}, {"txnAppId": "a", "txnVersion": "-1"}]
)
def test_a_transaction_has_a_name_and_a_number(given: dict[str, str]) -> None:
    with pytest.raises(OptionError, match=r"a name, and a number|takes a whole number"):
        write_options({"url": URL, **given})


def test_secret_references(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("QUEUE_URL", "redis://:secret@h")
    (tmp_path / "url").write_text("redis://:other@h\n")
    assert resolve("env:QUEUE_URL", "url") == "redis://:secret@h"
    assert resolve(f"file:{tmp_path}/url", "url") == "redis://:other@h"
    options = read_options({"url": "env:QUEUE_URL", "queue": "q"})
    assert options.broker == "redis"
    assert options.url == "env:QUEUE_URL"
    with pytest.raises(OptionError, match="NOT_THERE, which is not set"):
        resolve("env:NOT_THERE", "url")
    with pytest.raises(OptionError, match="cannot be read"):
        resolve("file:/not/there", "url")


@pytest.mark.parametrize(
    "scheme", ["amqp", "redis", "sqs", "pulsar", "kafka", "artemis", "postgresql", "mysql"]
)
@pytest.mark.parametrize(
    "login", ["u:/s3cret", "u:123/s3cret", "u:1?s3cret", "u:1#s3cret", ":/s3cret", "s3cret/x"]
)
def test_a_password_that_is_cut_in_two_is_refused(scheme: str, login: str) -> None:
    """What stands before the cut would be taken for the host, and the rest be shown."""
    options = read_options({"url": f"{scheme}://{login}@h:5672/shop", "queue": "q"})
    with pytest.raises(OptionError, match="%2F") as refused:
        options.binding()
    assert "s3cret" not in str(refused.value)


def test_no_secret_is_shown() -> None:
    options = read_options({"url": "redis://:secret@h", "queue": "q", "redis.password": "secret"})
    assert "secret" not in repr(options)
    with pytest.raises(OptionError) as caught:
        read_options({"url": "redis://:secret@h", "queue": "q", "oops": "1"})
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *((text, True) for text in ("true", "Yes", "on", "1")),
        *((text, False) for text in ("FALSE", "no", "off", "0")),
    ],
)
def test_booleans(text: str, expected: bool) -> None:
    assert flag(text) is expected


@pytest.mark.parametrize("text", ["", "perhaps", "2", "y"])
def test_bad_booleans(text: str) -> None:
    with pytest.raises(ValueError, match="'true' or 'false'"):
        flag(text)


def test_bare_numbers_have_the_unit_of_the_name() -> None:
    assert (milliseconds(1, 99_999)("1500"), milliseconds(1, 99_999)("10s")) == (1_500, 10_000)
    assert (whole_seconds("30"), whole_seconds("5 minutes")) == (30, 300)
    for text in ("0", "1.5s", "12 days", "soon"):
        with pytest.raises(ValueError, match="whole seconds"):
            whole_seconds(text)


TIMES = [
    ("redis://h", "socket_timeout"),
    ("amqp://h/", "socket_timeout"),
    ("sqs://eu-west-1", "read_timeout"),
    ("pulsar://h", "operation_timeout_seconds"),
    ("pulsar://h", "connection_timeout_ms"),
    ("kafka://h:9092", "timeout_seconds"),
    ("kafka://h:9092", "retry_tiers_ms"),
    ("artemis://h", "timeout"),
    ("artemis://h", "time_to_live_ms"),
    ("sb://h", "try_timeout"),
]


@pytest.mark.parametrize(("url", "option"), TIMES)
def test_times_have_one_grammar(url: str, option: str) -> None:
    broker = read_options({"url": url, "queue": "q"}).broker
    for text in ("30", "10s", "5 minutes"):
        binding_class(broker)(BindingConfig(url=url, client_options={option: text})).close()
    with pytest.raises(OptionError, match=rf"{broker}\.{option} has the value 'soon', but takes .*'?\w+'?"):
        binding_class(broker)(BindingConfig(url=url, client_options={option: "soon"}))


@pytest.mark.parametrize(
    ("url", "option"),
    [
        ("redis://h", "laravel"),
        ("pulsar://h", "batching"),
        ("artemis://h", "duplicate_detection"),
        ("sqs://eu-west-1", "fifo"),
        ("sb://h", "sessions"),
        ("amqps://h/", "ssl_check_hostname"),
    ],
)
def test_booleans_have_one_grammar(url: str, option: str) -> None:
    broker = read_options({"url": url, "queue": "q"}).broker
    for text in ("true", "yes", "on", "1", "false", "no", "off", "0"):
        binding_class(broker)(BindingConfig(url=url, client_options={option: text})).close()
    with pytest.raises(OptionError, match="'perhaps', but takes 'true' or 'false'"):
        binding_class(broker)(BindingConfig(url=url, client_options={option: "perhaps"}))


@pytest.mark.parametrize(
    ("url", "option"),
    [
        ("redis://h", "ssl_ca_certs"),
        ("amqp://h/", "ssl_ca_certs"),
        ("artemis://h", "ssl_ca_certs"),
        ("pulsar://h", "tls_trust_certs_file_path"),
    ],
)
def test_tls_options_need_a_tls_url(url: str, option: str) -> None:
    given = read_options({"url": url, "queue": "q"})
    config = BindingConfig(url=url, client_options={option: "/ca.pem"})
    with pytest.raises(OptionError, match=rf"{given.broker}\.{option} needs a URL that starts with"):
        binding_class(given.broker)(config)


def test_a_value_that_came_by_reference_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_TIMEOUT", "s3cret")
    monkeypatch.setenv("A_URL", "redis://h?retry_after=s3cret")
    for given in (
        {"url": "redis://h", "redis.socket_timeout": "env:A_TIMEOUT"},
        {"url": "redis://h", "redis.socketTimeout": "env:A_TIMEOUT"},
        {"url": "env:A_URL"},
    ):
        with pytest.raises(OptionError, match="has a value that is not shown, but takes a time") as refused:
            read_options({"queue": "q", **given}).binding()
        assert "s3cret" not in str(refused.value)
    with pytest.raises(OptionError, match="retry_after has the value 'soon'"):
        read_options({"queue": "q", "url": "redis://h?retry_after=soon"}).binding()


@pytest.mark.parametrize("text", [" ", "  "])
def test_a_secret_is_not_shown(text: str) -> None:
    config = BindingConfig(url="pulsar://h", client_options={"token": text})
    with pytest.raises(OptionError, match="token has a value that is not shown"):
        binding_class("pulsar")(config)


@pytest.mark.parametrize("broker", BINDINGS)
def test_a_visibility_timeout_is_refused_where_claims_take_none(broker: str) -> None:
    config = BindingConfig(url=URLS[broker], visibility_timeout=30.0)
    chosen = binding_class(broker)
    if chosen.capabilities.visibility_timeout is None:
        with pytest.raises(
            OptionError, match=f"'visibilityTimeout' has no meaning for {chosen.title}, where"
        ):
            chosen(config)
    else:
        chosen(config).close()
