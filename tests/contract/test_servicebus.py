from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import pytest
from azure.servicebus.management import ServiceBusAdministrationClient

from babelqueue_spark.bindings import Binding, BindingConfig
from babelqueue_spark.bindings.servicebus import ServiceBusBinding
from babelqueue_spark.testing import SECRET, BindingContract
from tests.servers.servicebus import ServiceBusServer

NAMESPACE = os.environ.get("AZURE_SERVICEBUS_CONNECTION_STRING")
LOCK_SECONDS = 20


class TestServiceBus(BindingContract):
    """Names of queues are letters, digits, periods, hyphens, underscores and slashes here."""

    binding_class = ServiceBusBinding
    shortest_timeout = None
    largest_body = 255_000
    queue_suffixes: Sequence[str] = ("-eu", "_v2", ".dlq", "/a/b", "0")
    _expire: Callable[[], None]

    @pytest.fixture(autouse=True)
    def _locks_of_the_queue(self, servicebus_server: ServiceBusServer, queue: str) -> None:
        self._expire = lambda: servicebus_server.lapse(queue)

    @pytest.fixture
    def config(self, servicebus_server: ServiceBusServer) -> BindingConfig:
        return BindingConfig(url=servicebus_server.url)

    @pytest.fixture
    def unreachable(self) -> BindingConfig:
        return BindingConfig(
            url=f"Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=babel;SharedAccessKey={SECRET};"
            "UseDevelopmentEmulator=true",
            client_options={"retry_total": "0"},
        )

    def test_the_claim_of_a_killed_process_comes_back(
        self,
        hasty: Callable[[], Binding],
        config: BindingConfig,
        queue: str,
        servicebus_server: ServiceBusServer,
    ) -> None:
        servicebus_server.create(queue, lock_seconds=3.0)
        super().test_the_claim_of_a_killed_process_comes_back(hasty, config, queue)

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
            self, hasty: Callable[[], Any], config: BindingConfig, queue: str
        ) -> None:
            BindingContract.test_the_claim_of_a_killed_process_comes_back(self, hasty, config, queue)
