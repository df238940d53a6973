"""prometheus-pushgateway from Debian."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.request import urlopen

from tests.servers.base import Server


class PushgatewayServer(Server):
    """A push gateway without persistence."""

    name = "pushgateway"

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    def command(self) -> Sequence[str]:
        return ["prometheus-pushgateway", f"--web.listen-address={self.address}"]

    def ready(self) -> bool:
        with urlopen(f"{self.url}/-/ready", timeout=5) as answer:
            return bool(answer.status == 200)

    def pushed(self) -> str:
        """What Prometheus would scrape."""
        with urlopen(f"{self.url}/metrics", timeout=30) as answer:
            return str(answer.read().decode())
