"""ElasticMQ, which speaks Amazon SQS with its limits."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlencode

from tests.servers.base import Server, listens
from tests.servers.jars import jars

CREDENTIALS = {"access_key_id": "test", "secret_access_key": "test"}
LIMIT = 262_144
"""Bytes of a message and of a request: the limit of AWS before 2025."""

_SETTINGS = """
include classpath("application.conf")
node-address {{ protocol = http, host = "127.0.0.1", port = {port}, context-path = "" }}
rest-sqs {{ enabled = true, bind-port = {port}, bind-hostname = "127.0.0.1", sqs-limits = strict }}
rest-stats.enabled = false
queues-storage {{ enabled = {durable}, path = "{home}/queues.conf" }}
messages-storage {{ enabled = {durable}, uri = "jdbc:h2:{home}/messages" }}
"""


class ElasticMqServer(Server):
    """ElasticMQ from Maven Central; any credentials do, and its URL has some.

    Args:
        durable: queues and messages outlive a stop and start.
    """

    name = "elasticmq"

    def __init__(self, *, durable: bool = False) -> None:
        super().__init__()
        self._durable = durable
        self._jars = jars(Path(__file__).parent / "poms" / "elasticmq.xml")

    @property
    def endpoint(self) -> str:
        """Where it answers."""
        return f"http://{self.address}"

    @property
    def url(self) -> str:
        return f"sqs://elasticmq?{urlencode({'endpoint': self.endpoint, 'max_message_bytes': LIMIT, **CREDENTIALS})}"

    def prepare(self) -> None:
        durable = str(self._durable).lower()
        self._settings.write_text(_SETTINGS.format(port=self.port, home=self.home, durable=durable))

    def command(self) -> list[str]:
        settings = f"-Dconfig.file={self._settings}"
        return ["java", "-Xmx512m", settings, "-cp", f"{self._jars}/*", "org.elasticmq.server.Main"]

    def ready(self) -> bool:
        return listens(self.port)

    @property
    def _settings(self) -> Path:
        return self.home / "elasticmq.conf"
