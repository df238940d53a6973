"""A Spark standalone cluster from the wheel of PySpark: a master, and workers that look like two hosts."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Self

import pyspark

from tests.servers.base import Server, listens

SPARK_HOME = Path(pyspark.__file__).parent
HOSTS = ("127.0.0.1", "127.0.0.2")


class _Daemon(Server):
    """A daemon of Spark's; the process is the JVM itself."""

    def environment(self) -> dict[str, str]:
        # Executors inherit it: they are to find what is installed, not what lies beside the tests.
        return {"SPARK_HOME": str(SPARK_HOME), "SPARK_DAEMON_MEMORY": "256m", "PYTHONPATH": ""}

    def _spark_class(self, name: str, *arguments: str) -> list[str]:
        return [str(SPARK_HOME / "bin/spark-class"), f"org.apache.spark.deploy.{name}", *arguments]


class SparkMaster(_Daemon):
    """The master of a cluster."""

    name = "spark-master"

    @property
    def url(self) -> str:
        return f"spark://{self.address}"

    def command(self) -> list[str]:
        arguments = ["--host", "127.0.0.1", "--port", str(self.port), "--webui-port", "0"]
        return self._spark_class("master.Master", *arguments)

    def environment(self) -> dict[str, str]:
        return {**super().environment(), "SPARK_LOCAL_IP": "127.0.0.1"}

    def ready(self) -> bool:
        return listens(self.port)


class SparkWorker(_Daemon):
    """A worker of a cluster, on a host of its own as far as Spark can see."""

    name = "spark-worker"

    def __init__(self, master: SparkMaster, host: str, cores: int) -> None:
        super().__init__()
        self.host = host
        self._master = master
        self._cores = cores

    @property
    def url(self) -> str:
        return f"spark://{self.host}:{self.port}"

    def command(self) -> list[str]:
        where = [
            "--host",
            self.host,
            "--port",
            str(self.port),
            "--webui-port",
            "0",
            "--work-dir",
            str(self.home),
        ]
        size = ["--cores", str(self._cores), "--memory", "2g"]
        return self._spark_class("worker.Worker", *where, *size, self._master.url)

    def environment(self) -> dict[str, str]:
        return {**super().environment(), "SPARK_LOCAL_IP": self.host}

    def ready(self) -> bool:
        return "Successfully registered with master" in self.log.read_text(errors="replace")


class SparkCluster:
    """A master and two workers, as a context manager.

    Args:
        cores: of each worker.
    """

    def __init__(self, cores: int = 2) -> None:
        self._cores = cores
        self.master = SparkMaster()
        self.workers = [SparkWorker(self.master, host, cores) for host in HOSTS]
        self._running = ExitStack()

    @property
    def url(self) -> str:
        """What `SparkSession.builder.master` takes."""
        return self.master.url

    def awaited(self) -> list[str]:
        """Options of spark-submit with which a program begins when all executors are there."""
        settings = {
            "spark.executor.memory": "512m",
            "spark.cores.max": str(len(self.workers) * self._cores),
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
        }
        return [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]

    def __enter__(self) -> Self:
        with ExitStack() as starting:
            for server in (self.master, *self.workers):
                starting.enter_context(server)
            self._running = starting.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._running.close()
