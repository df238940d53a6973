from __future__ import annotations

import os
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import ClassVar

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.management import ServiceBusAdministrationClient

from babelqueue_spark.bindings import Binding, BindingConfig
from babelqueue_spark.bindings.servicebus import ServiceBusBinding
from babelqueue_spark.testing import ENVELOPE, SECRET, BindingContract
from tests.contract.default_timeouts import DefaultTimeouts
from tests.servers.certificates import Certificates
from tests.servers.servicebus import ServiceBusServer

NAMESPACE = os.environ.get("AZURE_SERVICEBUS_CONNECTION_STRING")
LOCK_SECONDS = 20


class TestServiceBus(DefaultTimeouts, BindingContract):
    """Names of queues are letters, digits, periods, hyphens, underscores and slashes here."""

    binding_class = ServiceBusBinding
    no_queues = ("$management", "$cbs", "a//b", "orders eu")
    own_suffixes = ("/$DeadLetterQueue", "/$Transfer/$DeadLetterQueue", "/subscriptions/audit")
    shortest_timeout = None
    largest_body = 255_000
    queue_suffixes: Sequence[str] = ("-eu", "_v2", ".dlq", "/a/b", "0")
    impatient: ClassVar = {"try_timeout": "1s", "retry_total": "1"}
    _expire: Callable[[], None]

    @pytest.fixture(autouse=True)
    def _locks_of_the_queue(self, servicebus_server: ServiceBusServer, queue: str) -> None:
        self._expire = lambda: servicebus_server.lapse(queue)

    @pytest.fixture
    def config(self, servicebus_server: ServiceBusServer) -> BindingConfig:
        return BindingConfig(url=servicebus_server.url)

    def send_hostile(self, config: BindingConfig, queue: str) -> Sequence[bytes]:
        hostile = [
            ServiceBusMessage(ENVELOPE, application_properties=properties)
            for properties in (
                {"most": 2**31 - 1, "least": -(2**31)},
                {"nan": float("nan"), "infinite": float("inf")},
                {"\0": "\0", "ü": "\x7f", "long": "x" * 40_000},
            )
        ]
        with (
            ServiceBusClient.from_connection_string(config.url) as client,
            client.get_queue_sender(queue) as sender,
        ):
            sender.send_messages(hostile)
        return [ENVELOPE] * len(hostile)

    @pytest.fixture
    def secure(self, certificates: Certificates) -> tuple[ssl.SSLContext, BindingConfig]:
        url = f"Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=babel;SharedAccessKey={SECRET}"
        return certificates.context(), BindingConfig(
            url=url, client_options={"connection_verify": str(certificates.ca)}
        )

    def at(self, config: BindingConfig, address: str) -> BindingConfig:
        """A connection string without TLS has its port, one with TLS needs it by an option."""
        changed = super().at(config, address)
        options = {"custom_endpoint_address": f"sb://{address}", **changed.client_options}
        return changed if "connection_verify" not in options else replace(changed, client_options=options)

    @pytest.fixture
    def unreachable(self) -> BindingConfig:
        return BindingConfig(
            url=f"Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=babel;SharedAccessKey={SECRET};"
            "UseDevelopmentEmulator=true",
            client_options={"retry_total": "0"},
        )

    def test_the_claim_of_a_killed_process_comes_back(
        self, heir: Binding, config: BindingConfig, queue: str, servicebus_server: ServiceBusServer
    ) -> None:
        servicebus_server.create(queue, lock_seconds=3.0)
        super().test_the_claim_of_a_killed_process_comes_back(heir, config, queue)

    def expire_claims(self, holder: Binding) -> None:
        self._expire()


if NAMESPACE is not None:

    class TestNamespace(TestServiceBus):
        """The same on Azure, or on an emulator that has an administration endpoint; makes and removes its queues."""

        @pytest.fixture(autouse=True)
        def _locks_of_the_queue(self, queue: str) -> Iterator[None]:
            names = [queue + suffix for suffix in ("", ".failed", *self.queue_suffixes)]
            self._expire = lambda: time.sleep(LOCK_SECONDS + 1)
            with ServiceBusAdministrationClient.from_connection_string(str(NAMESPACE)) as administration:
                for name in names:
                    administration.create_queue(name, lock_duration=timedelta(seconds=LOCK_SECONDS))
                yield
                for name in names:
                    administration.delete_queue(name)

        @pytest.fixture
        def config(self) -> BindingConfig:
            return BindingConfig(url=str(NAMESPACE))

        def test_the_claim_of_a_killed_process_comes_back(  # type: ignore[override]
            self, heir: Binding, config: BindingConfig, queue: str
        ) -> None:
            BindingContract.test_the_claim_of_a_killed_process_comes_back(self, heir, config, queue)
