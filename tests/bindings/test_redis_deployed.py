"""Redis Cluster and Sentinel: names, keys, errors, and what a failover leaves."""

from __future__ import annotations

import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Self

import psutil
import pytest
from redis import RedisCluster, exceptions

from babelqueue_spark.bindings import BindingConfig
from babelqueue_spark.bindings.redis import RedisBinding
from babelqueue_spark.bindings.redis.options import RedisOptions
from babelqueue_spark.connector.options import read_options, write_options
from babelqueue_spark.errors import BrokerError, BrokerUnreachableError, OptionError
from babelqueue_spark.testing import SECRET, assert_safe, unless_busy
from babelqueue_spark.worker import RedisStore
from tests import streams
from tests.bindings.redis_peers import outgoing
from tests.servers import RedisServer
from tests.servers.certificates import Certificates
from tests.servers.redis import RedisClusterServers, RedisSentinelServers

WAIT_SECONDS = 90


def parsed(url: str, **options: str) -> RedisOptions:
    return RedisOptions.parse(BindingConfig(url=url, client_options=options))


class TestUrls:
    def test_a_cluster_is_reached_by_some_of_its_nodes(self) -> None:
        options = parsed("rediss+cluster://user:p%40ss@one:7000,two,[::1]:7002/0?client_name=x")
        assert options.nodes == (("one", 7000), ("two", 6379), ("::1", 7002))
        assert options.secure
        assert options.client["username"] == "user"
        assert options.client["password"] == "p@ss"
        assert options.address == "one:7000,two:6379,::1:7002"

    def test_sentinels_are_named_with_their_service_and_the_database(self) -> None:
        options = parsed("redis+sentinel://:pw@one,two:5000/my-primary/3", sentinel_password="other")
        assert options.nodes == (("one", 26379), ("two", 5000))
        assert options.service == "my-primary"
        assert (options.client["db"], options.client["password"]) == (3, "pw")
        assert options.sentinel_client["password"] == "other"

    @pytest.mark.parametrize(
        "url",
        [
            "redis+sentinel://one:26379",
            "redis+sentinel://one:26379/service/db",
            "redis+replicas://one",
            "redis://one,two",
            "redis+cluster://one:port",
            "redis+cluster://one/1",
        ],
    )
    def test_another_url_is_refused(self, url: str) -> None:
        with pytest.raises(OptionError) as caught:
            parsed(url.replace("://", f"://:{SECRET}@"))
        assert_safe(caught.value)

    def test_no_password_is_shown(self) -> None:
        options = parsed(f"redis+sentinel://:{SECRET}@one/service", sentinel_password=SECRET)
        assert SECRET not in repr(options)

    @pytest.mark.parametrize("option", ["sentinel_password", "sentinel_username"])
    def test_only_sentinels_have_a_login_of_their_own(self, option: str) -> None:
        with pytest.raises(OptionError, match=r"redis\+sentinel"):
            parsed("redis+cluster://one", **{option: SECRET})


class TestNames:
    url = "redis+cluster://127.0.0.1:1"

    @pytest.mark.parametrize(
        ("queue", "corrected"), [("orders", "{orders}"), ("orders{}", "{orders}"), ("a}b{", "{ab}")]
    )
    def test_a_read_of_a_queue_without_hash_tag_is_refused_with_the_corrected_name(
        self, queue: str, corrected: str
    ) -> None:
        with pytest.raises(OptionError) as caught:
            read_options({"url": self.url, "queue": f"{{tagged}},{queue}"}).check()
        assert f"queue '{queue}'" in str(caught.value)
        assert f"'{corrected}'" in str(caught.value)

    def test_a_write_to_one_is_refused(self) -> None:
        for options in ({"queue": "orders"}, {"queue": "{orders}", "deadLetterQueue": "dead"}):
            with pytest.raises(OptionError, match="hash tag"):
                write_options({"url": self.url, **options}).check()

    def test_a_row_that_names_one_is_refused(self) -> None:
        with (
            RedisBinding(BindingConfig(url=self.url)) as binding,
            pytest.raises(OptionError, match=r"'\{dead\}'"),
        ):
            binding.publish("dead", streams.outgoing([b"x"]))

    def test_a_prefix_may_hold_the_hash_tag(self) -> None:
        options = {"redis.laravel": "1", "redis.prefix": "{app}:"}
        read_options({"url": self.url, "queue": "orders", **options}).check()

    def test_elsewhere_a_queue_needs_none(self) -> None:
        read_options({"url": "redis+sentinel://127.0.0.1:1/service", "queue": "orders"}).check()


@pytest.mark.server
class TestCluster:
    @pytest.fixture
    def client(self, redis_cluster: RedisClusterServers) -> Iterator[RedisCluster]:
        with redis_cluster.client() as client:
            yield client

    def test_all_keys_of_a_queue_are_in_its_slot(
        self, redis_cluster: RedisClusterServers, client: Any, queue: str
    ) -> None:
        tagged = f"{{{queue}}}"
        options = {"reclaim_idle": "1s"}
        with RedisBinding(BindingConfig(url=redis_cluster.url, client_options=options)) as binding:
            for name in (tagged, binding.dead_letter_name(tagged, "babelqueue")):
                binding.publish(name, streams.outgoing([b"a", b"b"]), idempotency_key=uuid.uuid4().hex)
                binding.publish(name, outgoing([b"later"], delay=[60_000]))
                client.lpush(f"{name}:processing", b"in flight at an SDK's consumer")
                binding.claim(name, 1, 100)
        keys = [key for node in redis_cluster.nodes for key in _keys(node, f"*{queue}*")]
        kinds = {key.decode().replace(tagged, "").split(":")[-1][:8] for key in keys}
        assert {"", ".dlq", "delayed", "processi", "claims", "seen", "looked"} <= kinds
        assert {client.keyslot(key) for key in keys} == {client.keyslot(tagged)}

    def test_a_query_reads_queues_of_different_slots(
        self, spark: Any, redis_cluster: RedisClusterServers, client: Any, queue: str, tmp_path: Path
    ) -> None:
        names = [f"{{{queue}-{number}}}" for number in range(12)]
        assert len({client.get_node_from_key(name).name for name in names}) == 3
        for number, name in enumerate(names):
            streams.publish(redis_cluster.url, name, [streams.envelope(number)])
        read = streams.drain(spark, redis_cluster.url, ",".join(names), tmp_path, numPartitions=1)
        assert sorted(streams.numbers(row for batch in read for row in batch)) == list(range(12))

    def test_a_worker_remembers_messages_in_any_slot(self, redis_cluster: RedisClusterServers) -> None:
        ids = [uuid.uuid4().hex for _ in range(50)]
        one, other = uuid.uuid4().hex, uuid.uuid4().hex
        with RedisStore(redis_cluster.url) as store:
            assert {record.standing for record in store.claim(ids, one)} == {"granted"}
            store.remember(ids[0], one)
            standings = [record.standing for record in store.claim(ids, other)]
            assert standings == ["handled", *["held"] * 49]

    def test_a_url_of_a_single_server_says_that_it_is_a_cluster(
        self, redis_cluster: RedisClusterServers, queue: str
    ) -> None:
        for node in redis_cluster.nodes[:2]:
            with RedisBinding(BindingConfig(url=node.url)) as binding, pytest.raises(BrokerError) as caught:
                binding.backlog(queue)
            assert "redis+cluster://" in str(caught.value)

    def test_a_single_server_is_no_cluster(self, redis_server: RedisServer) -> None:
        url = f"redis+cluster://{redis_server.address}"
        with (
            RedisBinding(BindingConfig(url=url)) as binding,
            pytest.raises(BrokerError, match="not part of a Redis Cluster"),
        ):
            binding.backlog("{orders}")


@pytest.mark.server
class TestSentinel:
    @pytest.mark.parametrize(
        ("changes", "expected"),
        [
            ({"service": "another"}, "watch no servers of this name"),
            ({"sentinel_password": SECRET}, "Sentinels refused the login"),
            ({"password": SECRET}, "it refused the login"),
        ],
    )
    def test_an_error_says_what_is_wrong(
        self, redis_sentinels: RedisSentinelServers, queue: str, changes: dict[str, str], expected: str
    ) -> None:
        url = redis_sentinels.url.replace("mymaster", changes.pop("service", "mymaster"))
        options = {"sentinel_password": str(redis_sentinels.sentinel_password), **changes}
        with (
            RedisBinding(BindingConfig(url=url, client_options=options)) as binding,
            pytest.raises(BrokerError, match=expected) as caught,
        ):
            binding.backlog(queue)
        assert_safe(caught.value)
        assert str(redis_sentinels.sentinel_password) not in str(caught.value)
        assert str(redis_sentinels.password) not in str(caught.value)


@pytest.mark.server
@pytest.mark.parametrize(
    "start",
    [
        pytest.param(RedisServer, id="a server"),
        pytest.param(RedisClusterServers, id="a cluster"),
        pytest.param(RedisSentinelServers, id="Sentinels"),
    ],
)
class TestTls:
    @pytest.fixture
    def servers(self, start: Callable[..., Any], certificates: Certificates) -> Iterator[Any]:
        with start(tls=certificates) as servers:
            yield servers

    def test_messages_go_through_tls_to_who_has_the_certificate(
        self, servers: Any, certificates: Certificates, queue: str
    ) -> None:
        queue = f"{{{queue}}}"
        trusted = BindingConfig(url=servers.secure_url, client_options={"ssl_ca_certs": str(certificates.ca)})
        with RedisBinding(trusted) as binding:
            binding.publish(queue, streams.outgoing([b"a", b"b"]))
            claimed = binding.claim(queue, 10, 100)
            assert claimed.column("body").to_pylist() == [b"a", b"b"]
            assert binding.acknowledge(queue, claimed).true_count == 2
        with (
            RedisBinding(BindingConfig(url=servers.secure_url)) as binding,
            pytest.raises(BrokerUnreachableError, match="and TLS") as caught,
        ):
            binding.backlog(queue)
        assert_safe(caught.value)


@pytest.mark.server
@pytest.mark.parametrize("start", [RedisClusterServers, RedisSentinelServers])
def test_servers_that_all_fall_silent_are_given_up(start: Callable[[], Any], queue: str) -> None:
    queue = f"{{{queue}}}"
    with start() as servers:
        config = BindingConfig(
            url=servers.url, client_options={"socket_timeout": "1", "socket_connect_timeout": "1"}
        )
        connected = RedisBinding(config)
        sent, key = streams.outgoing([b"a"]), uuid.uuid4().hex
        unless_busy(lambda: connected.publish(queue, sent, idempotency_key=key))
        with RedisBinding(config) as fresh, suspended(servers):
            for binding in (connected, fresh):
                started = time.monotonic()
                with pytest.raises(BrokerUnreachableError) as caught:
                    binding.claim(queue, 1, 100)
                assert time.monotonic() - started < 10 * binding.silence_limit
                assert_safe(caught.value)
        _until(lambda: connected.claim(queue, 1, 100).num_rows == 1)
        connected.close()


@contextmanager
def suspended(servers: Any) -> Iterator[None]:
    """All processes stand still."""
    processes = [psutil.Process(each.pid) for each in (*servers.nodes, *getattr(servers, "sentinels", ()))]
    for process in processes:
        process.suspend()
    try:
        yield
    finally:
        for process in processes:
            process.resume()


def _until(condition: Callable[[], bool]) -> None:
    """Wait; a broker that recovers may refuse for a while."""
    until = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            if condition():
                return
        except BrokerError:
            pass
        assert time.monotonic() < until
        time.sleep(0.05)


class Writer:
    """Publishes numbers, a batch at a time, until it is stopped; repeats a batch until it is confirmed.

    Attributes:
        kept: numbers that the new primary must have: a replica had confirmed them, or itself did.
        killed: set when the old primary is dead.
    """

    def __init__(self, servers: Any, queue: str) -> None:
        self._servers, self._queue = servers, queue
        self.kept: set[int] = set()
        self.killed, self._stopped = threading.Event(), threading.Event()
        self._executor = ThreadPoolExecutor(1)
        self._next = 0

    def __enter__(self) -> Self:
        self._running = self._executor.submit(self._run)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop after the batch that is on its way; raises what went wrong."""
        self._stopped.set()
        self._running.result()
        self._executor.shutdown()

    def _run(self) -> None:
        with RedisBinding(BindingConfig(url=self._servers.url)) as binding:
            while not self._stopped.is_set():
                self._publish(binding)

    def _publish(self, binding: RedisBinding) -> None:
        numbers = range(self._next, self._next + 20)
        self._next = numbers.stop
        killed = self.killed.is_set()
        messages, key = streams.outgoing(map(streams.envelope, numbers)), uuid.uuid4().hex
        while True:
            try:
                binding.publish(self._queue, messages, idempotency_key=key)
                break
            except BrokerUnreachableError:
                continue
        if killed or self._is_replicated():
            self.kept.update(numbers)

    def _is_replicated(self) -> bool:
        """Whether the replica has confirmed what the primary has done so far."""
        try:
            with self._servers.primary_of(self._queue).client() as client:
                client.set(f"{self._queue}:probe", 1)
                return bool(client.wait(1, 100) == 1)
        except (exceptions.RedisError, exceptions.RedisClusterException, OSError):
            return False


@pytest.mark.server
@pytest.mark.parametrize("start", [partial(RedisClusterServers, replicas=1), RedisSentinelServers])
def test_a_failover_loses_only_what_redis_lost(
    spark: Any, start: Callable[..., Any], queue: str, tmp_path: Path
) -> None:
    queue = f"{{{queue}}}"
    read: Counter[int] = Counter()
    with start(failover_ms=1_000) as servers, Writer(servers, queue) as writer:
        query = streams.run(
            streams.stream(spark, servers.url, queue, tmp_path),
            tmp_path,
            lambda frame, _: read.update(streams.numbers(frame.collect())),
            processingTime="100 milliseconds",
        )
        try:
            _await(lambda: len(read) >= 200, query)
            servers.primary_of(queue).kill()
            before = max(writer.kept)
            writer.killed.set()
            _await(lambda: max(read) > before + 1_000, query)
            writer.stop()
            _await(lambda: writer.kept <= read.keys(), query)
            query.processAllAvailable()
        finally:
            query.stop()
    assert read.most_common(1)[0][1] == 1


def _await(condition: Callable[[], bool], query: Any) -> None:
    until = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert query.exception() is None, query.exception()
        assert time.monotonic() < until
        time.sleep(0.05)


def _keys(server: RedisServer, pattern: str) -> list[bytes]:
    with server.client() as client:
        found: list[bytes] = client.keys(pattern)
    return found
