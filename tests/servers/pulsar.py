"""Apache Pulsar, standalone: broker, bookie and metadata store in one process."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from tests.servers.base import Server, free_port
from tests.servers.certificates import Certificates
from tests.servers.jars import jars

_SETTINGS = """
brokerServicePort={port}
webServicePort={web_port}
bindAddress=127.0.0.1
advertisedAddress=127.0.0.1
clusterName=standalone
managedLedgerDefaultEnsembleSize=1
managedLedgerDefaultWriteQuorum=1
managedLedgerDefaultAckQuorum=1
allowAutoTopicCreation=true
brokerDeleteInactiveTopicsEnabled=false
loadManagerClassName=org.apache.pulsar.broker.loadbalance.NoopLoadManager
delayedDeliveryEnabled=true
delayedDeliveryTickTimeMillis=50
dispatcherDispatchMessagesInSubscriptionThread=false
diskUsageThreshold=0.9999
diskUsageWarnThreshold=0.9999
diskUsageLwmThreshold=0.9999
"""

_SECRET = b"the secret key of the tests' server"

_OPENED = (
    "java.base/java.lang", "java.base/java.util", "java.base/java.nio", "java.base/jdk.internal.misc",
    "java.base/jdk.internal.platform", "java.base/sun.net", "java.management/sun.management",
    "jdk.management/com.sun.management.internal",
)  # fmt: skip


class PulsarServer(Server):
    """Pulsar from Maven Central, durable across `stop` and `start`.

    Args:
        tls: also listens with TLS, with a certificate of that authority.
        logins: takes no client without a token or, by TLS, a certificate of that authority.
        settings: further lines of its configuration, such as `maxMessageSize="1048576"`.
    """

    name = "pulsar"
    start_seconds = 120.0

    def __init__(self, tls: Certificates | None = None, *, logins: bool = False, **settings: str) -> None:
        super().__init__()
        self.token = _token() if logins else None
        self._settings = settings
        self._tls = tls
        self._web_port = 0
        self._tls_port = 0
        self._jars = jars(Path(__file__).parent / "poms" / "pulsar.xml")

    @property
    def url(self) -> str:
        return f"pulsar://{self.address}"

    @property
    def secure_url(self) -> str:
        """The connection string of the TLS listener."""
        return f"pulsar+ssl://127.0.0.1:{self._tls_port}"

    @property
    def admin_url(self) -> str:
        """The HTTP endpoint."""
        return f"http://127.0.0.1:{self._web_port}"

    def prepare(self) -> None:
        self._web_port, self._tls_port = free_port(), free_port()
        settings = {**self._tls_settings(), **self._login_settings(), **self._settings}
        (self.home / "standalone.conf").write_text(
            _SETTINGS.format(port=self.port, web_port=self._web_port)
            + "".join(f"{name}={value}\n" for name, value in settings.items())
        )

    def command(self) -> list[str]:
        return [
            "java", "-Xmx512m", "-XX:MaxDirectMemorySize=512m", "-XX:+UseSerialGC",
            "-Dio.netty.tryReflectionSetAccessible=true",
            *(f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED),
            "-cp", f"{self._jars}/*", "org.apache.pulsar.PulsarStandaloneStarter",
            "--config", "standalone.conf", "--no-functions-worker", "--no-stream-storage",
        ]  # fmt: skip

    def ready(self) -> bool:
        # The namespace of plain topic names is the last thing that a standalone broker makes.
        found: list[str] = self.admin("namespaces/public")
        return "public/default" in found

    def admin(self, path: str, body: Any = None, method: str = "GET") -> Any:
        """The answer of the HTTP endpoint below `/admin/v2/`."""
        content = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        request = Request(f"{self.admin_url}/admin/v2/{path}", content, headers, method=method)
        try:
            with urlopen(request, timeout=10) as answer:
                text = answer.read()
        except HTTPError as error:
            with error:
                raise OSError(f"{path}: {error.code} {error.reason}") from None
        return json.loads(text) if text else None

    def subscription(self, topic: str) -> dict[str, Any]:
        """What the broker says of the subscription `babelqueue` of a topic of the usual namespace."""
        stats = self.admin(f"persistent/public/default/{topic}/stats")
        found: dict[str, Any] = stats["subscriptions"]["babelqueue"]
        return found

    def make_partitioned(self, topic: str, partitions: int) -> None:
        """Make a partitioned topic in the usual namespace."""
        self.admin(f"persistent/public/default/{topic}/partitions", partitions, "PUT")

    def _tls_settings(self) -> dict[str, str]:
        if self._tls is None:
            return {}
        return {
            "brokerServicePortTls": str(self._tls_port),
            "tlsCertificateFilePath": str(self._tls.server),
            "tlsKeyFilePath": str(self._tls.server_key),
            "tlsTrustCertsFilePath": str(self._tls.ca),
        }

    def _login_settings(self) -> dict[str, str]:
        if self.token is None:
            return {}
        package = "org.apache.pulsar"
        providers = [
            f"{package}.broker.authentication.AuthenticationProvider{kind}" for kind in ("Token", "Tls")
        ]
        return {
            "authenticationEnabled": "true",
            "authenticationProviders": ",".join(providers),
            "tokenSecretKey": f"data:;base64,{base64.b64encode(_SECRET).decode()}",
            "superUserRoles": "babel,client",
            "brokerClientAuthenticationPlugin": f"{package}.client.impl.auth.AuthenticationToken",
            "brokerClientAuthenticationParameters": f"token:{self.token}",
        }


def _token() -> str:
    """A JSON web token of the role `babel`."""
    parts = [_base64(json.dumps(part).encode()) for part in ({"alg": "HS256"}, {"sub": "babel"})]
    signature = hmac.digest(_SECRET, ".".join(parts).encode(), hashlib.sha256)
    return ".".join([*parts, _base64(signature)])


def _base64(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()
