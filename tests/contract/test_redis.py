from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import ClassVar

import pytest

from babelqueue_spark.bindings import Binding, BindingConfig
from babelqueue_spark.bindings.redis import RedisBinding
from babelqueue_spark.testing import SECRET, BindingContract, assert_empty, outgoing, take
from tests.contract.default_timeouts import DefaultTimeouts
from tests.servers import RedisServer
from tests.servers.certificates import Certificates

BODY = b'{"job":"urn:x","data":{},"attempts":0}'


class TestRedis(DefaultTimeouts, BindingContract):
    binding_class = RedisBinding
    layout = "0"
    early = 1
    impatient: ClassVar = {"socket_timeout": "1s", "socket_connect_timeout": "1s"}

    @pytest.fixture
    def config(self, redis_server: RedisServer) -> BindingConfig:
        return BindingConfig(
            url=redis_server.url, visibility_timeout=60, client_options={"laravel": self.layout}
        )

    @pytest.fixture
    def secure(self, certificates: Certificates) -> tuple[ssl.SSLContext, BindingConfig]:
        options = {"laravel": self.layout, "ssl_ca_certs": str(certificates.ca), **self.impatient}
        return certificates.context(), BindingConfig(url="rediss://127.0.0.1:1", client_options=options)

    @pytest.fixture
    def unreachable(self) -> BindingConfig:
        return BindingConfig(url=f"redis://:{SECRET}@127.0.0.1:1/0", client_options={"laravel": self.layout})


class TestRedisLaravel(TestRedis):
    """The layout knows a claim by its body and attempts alone, which bounds two promises; see the docs."""

    layout = "1"

    def test_identical_bodies_are_separate_messages(self, binding: Binding, queue: str) -> None:
        binding.publish(queue, outgoing([BODY] * 3))
        claimed = take(binding, queue, 3)
        assert claimed.column("body").to_pylist() == [BODY] * 3
        assert binding.acknowledge(queue, claimed).to_pylist() == [True] * 3
        assert_empty(binding, queue)

    def test_a_late_acknowledge_neither_loses_nor_removes_the_message(
        self, hasty: Callable[[], Binding], queue: str
    ) -> None:
        late, prompt = hasty(), hasty()
        late.publish(queue, outgoing([BODY]))
        first = take(late, queue, 1)
        second = take(prompt, queue, 1)
        assert late.acknowledge(queue, first).to_pylist() == [False]
        assert prompt.acknowledge(queue, second).to_pylist() == [True]
        assert_empty(prompt, queue)
