"""redis-server, without persistence: one, a cluster of them, and some that Sentinels watch."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from redis import Redis, RedisCluster, exceptions

from tests.servers.base import Server, StartError, free_port
from tests.servers.certificates import Certificates

_WAIT_SECONDS = 90.0
_FAILOVER_MS = 30_000
"""Milliseconds of silence after which another server takes over: longer than a busy machine stalls."""


class RedisServer(Server):
    """`redis-server` from Debian.

    Args:
        password: what clients must give; none by default.
        tls: also listens with TLS, with a certificate of that authority.
        options: further directives, such as `maxmemory="8mb"`.
    """

    name = "redis"

    def __init__(self, password: str | None = None, tls: Certificates | None = None, **options: str) -> None:
        super().__init__()
        self.password = password
        self.tls_port = free_port() if tls else 0
        login = {"requirepass": password} if password else {}
        self._options = {**login, **(_tls(tls, self.tls_port) if tls else {}), **options}

    @property
    def url(self) -> str:
        login = f":{self.password}@" if self.password else ""
        return f"redis://{login}{self.address}/0"

    @property
    def secure_url(self) -> str:
        """The connection string of the TLS listener."""
        return self.url.replace("redis://", "rediss://").replace(str(self.port), str(self.tls_port))

    def command(self) -> list[str]:
        directives = {
            "port": str(self.port),
            "bind": "127.0.0.1",
            "dir": str(self.home),
            "save": "",
            "appendonly": "no",
            **({"masterauth": self.password} if self.password else {}),
            **self._options,
        }
        words = (word for name, value in directives.items() for word in (f"--{name}", value))
        return ["redis-server", *words]

    def client(self) -> Redis:
        """A client of this server alone."""
        return Redis(port=self.port, password=self.password)

    def kill(self) -> None:
        """SIGKILL."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._process = None

    def ready(self) -> bool:
        with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(64).startswith((b"+PONG", b"-NOAUTH"))


class _ClusterNode(RedisServer):
    def prepare(self) -> None:
        self._options["cluster-port"] = str(free_port())


class RedisClusterServers:
    """A Redis Cluster: three primaries, each with some replicas.

    Args:
        password: what clients must give; none by default.
        replicas: of each primary.
        tls: all nodes also listen with TLS, and speak it among themselves.
        failover_ms: how long a primary may be silent.
    """

    def __init__(
        self,
        password: str | None = None,
        replicas: int = 0,
        tls: Certificates | None = None,
        failover_ms: int = _FAILOVER_MS,
    ) -> None:
        options = {
            "cluster-enabled": "yes",
            "cluster-node-timeout": str(failover_ms),
            "repl-diskless-sync-delay": "0",
        }
        if tls:
            options |= {"tls-cluster": "yes", "tls-replication": "yes"}
        self.password = password
        self._tls = tls
        self._replicas = replicas
        self.nodes = [_ClusterNode(password, tls, **options) for _ in range(3 * (1 + replicas))]
        self._running = ExitStack()

    @property
    def url(self) -> str:
        """The connection string, with the password; it names all nodes."""
        login = f":{self.password}@" if self.password else ""
        return f"redis+cluster://{login}{','.join(node.address for node in self.nodes)}"

    @property
    def secure_url(self) -> str:
        """The connection string of the TLS listeners."""
        login = f":{self.password}@" if self.password else ""
        return f"rediss+cluster://{login}{','.join(f'127.0.0.1:{node.tls_port}' for node in self.nodes)}"

    def __enter__(self) -> Self:
        with self._running:
            for node in self.nodes:
                self._running.enter_context(node)
            words = ["redis-cli", *(("-a", self.password) if self.password else ()), "--no-auth-warning"]
            words += ["--tls", "--cacert", str(self._tls.ca)] if self._tls else []
            create = ["--cluster", "create", *(f"127.0.0.1:{port_of(node)}" for node in self.nodes)]
            replicas = ["--cluster-replicas", str(self._replicas), "--cluster-yes"]
            done = subprocess.run([*words, *create, *replicas], capture_output=True, text=True, check=False)
            if done.returncode:
                raise StartError(f"redis-cli: {done.stdout}{done.stderr}")
            _await(self._is_whole)
            self._running = self._running.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._running.close()

    def client(self) -> RedisCluster:
        """A client of the cluster."""
        return RedisCluster("127.0.0.1", self._alive().port, password=self.password)

    def primary_of(self, key: str) -> _ClusterNode:
        """The node that has the slot of a key."""
        with self.client() as client:
            found = client.get_node_from_key(key)
            assert found is not None
            return next(node for node in self.nodes if node.port == found.port)

    def _alive(self) -> _ClusterNode:
        return next(node for node in self.nodes if node.runs)

    def _is_whole(self) -> bool:
        """Whether all nodes have all slots, and each primary its replicas in step."""
        for node in self.nodes:
            with node.client() as client:
                if client.execute_command("CLUSTER INFO")["cluster_state"] != "ok":
                    return False
                info = client.info("replication")
                if info["role"] == "slave" and info["master_link_status"] != "up":
                    return False
                if info["role"] == "master" and info["connected_slaves"] != self._replicas:
                    return False
        return True


class _SentinelServer(RedisServer):
    """`redis-server --sentinel`."""

    def __init__(
        self,
        primary: RedisServer,
        service: str,
        quorum: int,
        password: str | None,
        tls: Certificates | None,
        failover_ms: int,
    ) -> None:
        super().__init__(password)
        self._primary, self._service, self._quorum = primary, service, quorum
        self._failover_ms = failover_ms
        if tls:
            self.tls_port = free_port()
        self._tls = _tls(tls, self.tls_port) if tls else {}

    def prepare(self) -> None:
        lines = [
            f"port {self.port}",
            "bind 127.0.0.1",
            f"dir {self.home}",
            *(f"{name} {value}" for name, value in self._tls.items()),
            *(["tls-replication yes"] if self._tls else []),
            f"sentinel monitor {self._service} 127.0.0.1 {port_of(self._primary)} {self._quorum}",
            f"sentinel down-after-milliseconds {self._service} {self._failover_ms}",
            f"sentinel failover-timeout {self._service} 5000",
        ]
        if self._primary.password:
            lines.append(f"sentinel auth-pass {self._service} {self._primary.password}")
        if self.password:
            lines += [f"requirepass {self.password}", f"sentinel sentinel-pass {self.password}"]
        (self.home / "sentinel.conf").write_text("\n".join(lines) + "\n")

    def command(self) -> list[str]:
        return ["redis-server", str(self.home / "sentinel.conf"), "--sentinel"]


class RedisSentinelServers:
    """A primary and a replica, watched by three Sentinels.

    Args:
        password: what clients of the servers must give; none by default.
        sentinel_password: what clients of the Sentinels must give; none by default.
        tls: all speak TLS, with clients and with each other.
        failover_ms: how long the primary may be silent.
    """

    service = "mymaster"

    def __init__(
        self,
        password: str | None = None,
        sentinel_password: str | None = None,
        tls: Certificates | None = None,
        failover_ms: int = _FAILOVER_MS,
    ) -> None:
        self._tls = tls
        self._failover_ms = failover_ms
        self.password = password
        self.sentinel_password = sentinel_password
        self._running = ExitStack()
        self.nodes: list[RedisServer] = []
        self.sentinels: list[_SentinelServer] = []

    @property
    def url(self) -> str:
        """The connection string, with the password."""
        login = f":{self.password}@" if self.password else ""
        addresses = ",".join(sentinel.address for sentinel in self.sentinels)
        return f"redis+sentinel://{login}{addresses}/{self.service}/0"

    @property
    def secure_url(self) -> str:
        """The connection string of the TLS listeners."""
        login = f":{self.password}@" if self.password else ""
        addresses = ",".join(f"127.0.0.1:{sentinel.tls_port}" for sentinel in self.sentinels)
        return f"rediss+sentinel://{login}{addresses}/{self.service}/0"

    def __enter__(self) -> Self:
        with self._running:
            options = {"repl-diskless-sync-delay": "0", **({"tls-replication": "yes"} if self._tls else {})}
            first = self._running.enter_context(RedisServer(self.password, self._tls, **options))
            replica = RedisServer(
                self.password, self._tls, replicaof=f"127.0.0.1 {port_of(first)}", **options
            )
            self.nodes = [first, self._running.enter_context(replica)]
            for _ in range(3):
                sentinel = _SentinelServer(
                    first, self.service, 2, self.sentinel_password, self._tls, self._failover_ms
                )
                self.sentinels.append(self._running.enter_context(sentinel))
            _await(self._is_whole)
            self._running = self._running.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._running.close()

    def primary_of(self, key: str) -> RedisServer:
        """The primary, whatever the key."""
        del key
        with self.sentinels[0].client() as client:
            _, port = client.sentinel_get_master_addr_by_name(self.service)
        return next(node for node in self.nodes if port_of(node) == port)

    def _is_whole(self) -> bool:
        """Whether each Sentinel knows the others and a replica, and the replica is in step."""
        for sentinel in self.sentinels:
            with sentinel.client() as client:
                state = client.sentinel_master(self.service)
                if state["num-other-sentinels"] != 2 or state["num-slaves"] != 1:
                    return False
        with self.nodes[1].client() as client:
            return bool(client.info("replication")["master_link_status"] == "up")


def port_of(server: RedisServer) -> int:
    """The port at which the other servers reach it."""
    return server.tls_port or server.port


def _tls(certificates: Certificates, port: int) -> dict[str, str]:
    return {
        "tls-port": str(port),
        "tls-cert-file": str(certificates.server),
        "tls-key-file": str(certificates.server_key),
        "tls-client-cert-file": str(certificates.client),
        "tls-client-key-file": str(certificates.client_key),
        "tls-ca-cert-file": str(certificates.ca),
        "tls-auth-clients": "no",
    }


def _await(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + _WAIT_SECONDS
    while time.monotonic() < until:
        try:
            if condition():
                return
        except exceptions.RedisError:
            pass
        time.sleep(0.05)
    raise StartError(f"redis: not whole after {_WAIT_SECONDS:.0f} s")
