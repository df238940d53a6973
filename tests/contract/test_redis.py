from __future__ import annotations

import ssl
import uuid
from collections.abc import Callable, Sequence
from typing import ClassVar

import pytest

from babelqueue_spark.bindings import Binding, BindingConfig
from babelqueue_spark.bindings.redis import RedisBinding
from babelqueue_spark.testing import SECRET, BindingContract, assert_empty, outgoing, take
from tests.contract.default_timeouts import DefaultTimeouts
from tests.servers import RedisServer
from tests.servers.certificates import Certificates
from tests.servers.redis import RedisClusterServers, RedisSentinelServers

TOKEN = uuid.uuid4().hex
BODY = b'{"job":"urn:x","data":{},"attempts":0}'


class TestRedis(DefaultTimeouts, BindingContract):
    binding_class = RedisBinding
    layout = "0"
    early = 1
    no_queues = ("bq:idemp:0e9d1f4a-6a53-4a8e-8a0b-3a1f9a7c2b10",)
    own_suffixes: Sequence[str] = (
        *(":delayed", ":processing", ":processing:deadlines", ":processing:claims", ":processing:seen"),
        *(":processing:looked", f":processing:{TOKEN}", f":published:{TOKEN}"),
    )
    secure_url = "rediss://127.0.0.1:1"
    impatient: ClassVar = {"socket_timeout": "1s", "socket_connect_timeout": "1s"}

    @pytest.fixture
    def config(self, redis_server: RedisServer) -> BindingConfig:
        return BindingConfig(
            url=redis_server.url, visibility_timeout=60, client_options={"laravel": self.layout}
        )

    @pytest.fixture
    def secure(self, certificates: Certificates) -> tuple[ssl.SSLContext, BindingConfig]:
        options = {"laravel": self.layout, "ssl_ca_certs": str(certificates.ca), **self.impatient}
        return certificates.context(), BindingConfig(url=self.secure_url, client_options=options)

    @pytest.fixture
    def unreachable(self) -> BindingConfig:
        return BindingConfig(url=f"redis://:{SECRET}@127.0.0.1:1/0", client_options={"laravel": self.layout})


class TestRedisLaravel(TestRedis):
    """The layout knows a claim by its body and attempts alone, which bounds two promises; see the docs."""

    layout = "1"
    no_queues = ()
    own_suffixes = (":delayed", ":reserved", ":notify", f":published:{TOKEN}")

    def test_identical_bodies_are_separate_messages(self, binding: Binding, queue: str) -> None:
        binding.publish(queue, outgoing([BODY] * 3))
        claimed = take(binding, queue, 3)
        assert claimed.column("body").to_pylist() == [BODY] * 3
        assert binding.acknowledge(queue, claimed).to_pylist() == [True] * 3
        assert_empty(binding, queue)

    def test_a_late_acknowledge_neither_loses_nor_removes_the_message(
        self, hasty: Callable[[], Binding], heir: Binding, queue: str
    ) -> None:
        late = hasty()
        late.publish(queue, outgoing([BODY]))
        first = take(late, queue, 1)
        second = take(heir, queue, 1)
        assert late.acknowledge(queue, first).to_pylist() == [False]
        assert heir.acknowledge(queue, second).to_pylist() == [True]
        assert_empty(heir, queue)


class TestRedisCluster(TestRedis):
    """What a proxy in front of one node shows is not tested: clients reach the others by themselves."""

    secure_url = "rediss+cluster://127.0.0.1:1"

    @pytest.fixture
    def config(self, redis_cluster: RedisClusterServers) -> BindingConfig:
        return BindingConfig(url=redis_cluster.url.partition(",")[0], visibility_timeout=60)

    @pytest.fixture
    def queue(self) -> str:
        return f"{{orders-{uuid.uuid4().hex[:12]}}}"

    @pytest.fixture
    def proxy(self) -> None:
        return None

    @pytest.fixture
    def unreachable(self) -> BindingConfig:
        return BindingConfig(url=f"redis+cluster://:{SECRET}@127.0.0.1:1")


class TestRedisSentinel(TestRedis):
    """What a proxy in front of a Sentinel shows is not tested: clients reach the primary by themselves."""

    secure_url = "rediss+sentinel://127.0.0.1:1/mymaster"

    @pytest.fixture
    def config(self, redis_sentinels: RedisSentinelServers) -> BindingConfig:
        return BindingConfig(
            url=redis_sentinels.url,
            visibility_timeout=60,
            client_options={"sentinel_password": str(redis_sentinels.sentinel_password)},
        )

    @pytest.fixture
    def proxy(self) -> None:
        return None

    @pytest.fixture
    def unreachable(self) -> BindingConfig:
        return BindingConfig(url=f"redis+sentinel://:{SECRET}@127.0.0.1:1/mymaster")
