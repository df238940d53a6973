"""Options by the names that the brokers' clients have for them: as good as ours."""

from __future__ import annotations

import pytest

from babelqueue_spark.bindings import BindingConfig, binding_class
from babelqueue_spark.bindings.pulsar.options import PulsarOptions
from babelqueue_spark.bindings.rabbitmq.options import RabbitOptions
from babelqueue_spark.bindings.servicebus.options import ServiceBusOptions
from babelqueue_spark.bindings.sqs.options import SqsOptions
from babelqueue_spark.connector.options import read_options
from babelqueue_spark.errors import OptionError
from tests.brokers import URLS

KEYS = {"access_key_id": "a", "secret_access_key": "b", "session_token": "c"}
OPTIONS = {
    "sqs": SqsOptions,
    "rabbitmq": RabbitOptions,
    "pulsar": PulsarOptions,
    "servicebus": ServiceBusOptions,
}


@pytest.mark.parametrize(
    ("broker", "of_client", "ours"),
    [
        ("sqs", {"region_name": "us-east-2"}, {"region": "us-east-2"}),
        ("sqs", {"profile_name": "reader"}, {"profile": "reader"}),
        ("sqs", {f"aws_{name}": value for name, value in KEYS.items()}, KEYS),
        ("sqs", {f"aws_{name}".replace("_", ""): value for name, value in KEYS.items()}, KEYS),
        ("rabbitmq", {"connection_name": "x"}, {"client_name": "x"}),
        ("pulsar", {"subscription_name": "x"}, {"subscription": "x"}),
        ("pulsar", {"batching_enabled": "true"}, {"batching": "true"}),
        ("servicebus", {"transport_type": "AmqpOverWebsocket"}, {"transport": "websocket"}),
        ("servicebus", {"transport_type": "Amqp"}, {"transport": "amqp"}),
        ("servicebus", {"prefetch_count": "7"}, {"prefetch": "7"}),
    ],
    ids=str,
)
def test_a_clients_name_is_ours(broker: str, of_client: dict[str, str], ours: dict[str, str]) -> None:
    def parsed(options: dict[str, str]) -> object:
        return OPTIONS[broker].parse(BindingConfig(url=URLS[broker], client_options=options))

    assert parsed(of_client) == parsed(ours)


def test_through_spark_and_by_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET", "s3cret")
    given = {"sqs.AWS_access_key_id": "a", "sqs.aws_secret_access_key": "env:AWS_SECRET"}
    options = read_options({"url": "sqs://eu-west-1", "queue": "q", **given})
    assert "s3cret" not in repr(options)
    with options.binding() as binding:
        assert "s3cret" not in repr(binding)


def test_an_unusable_value_hides_the_secret() -> None:
    with pytest.raises(OptionError, match="are needed together") as caught:
        binding_class("sqs")(BindingConfig(url="sqs://x", client_options={"aws_secret_access_key": "s3cret"}))
    assert "s3cret" not in str(caught.value)
