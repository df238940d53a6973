"""Where metrics go: a port that Prometheus scrapes, a push gateway, or a file for node_exporter."""

import re
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from prometheus_client import CollectorRegistry, push_to_gateway, start_http_server, write_to_textfile
from prometheus_client.exposition import basic_auth_handler, default_handler

from babelqueue_spark.errors import OptionError
from babelqueue_spark.secrets import resolve

_LOOPBACK = "127.0.0.1"
_PORT = re.compile(r"(?:(?P<host>[\w.-]+|\[[\da-fA-F:]+\]):)?(?P<port>\d{1,5})")
_PUSH_SECONDS = 10.0


class Port:
    """Answers scrapes at `/metrics`, by a thread."""

    def __init__(self, host: str, port: int, registry: CollectorRegistry) -> None:
        try:
            self._server, self._thread = start_http_server(port, host.strip("[]"), registry)
        except (OSError, OverflowError) as error:
            raise OptionError(
                f"metrics: port {port} of {host} cannot be opened ({error}): choose another one; 0 takes any"
            ) from None
        self.address = f"http://{host}:{self._server.server_port}/metrics"

    def write(self) -> None:
        """Nothing: a scrape takes what is there."""

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class PushGateway:
    """Replaces what the gateway has of this job on this host."""

    def __init__(self, url: str, job: str, registry: CollectorRegistry) -> None:
        parts = urlsplit(url)
        self.address = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
        self._job, self._registry = job, registry
        self._handler: Callable[..., Any] = default_handler
        if parts.username is not None:
            self._handler = partial(
                basic_auth_handler, username=unquote(parts.username), password=unquote(parts.password or "")
            )

    def write(self) -> None:
        push_to_gateway(
            self.address,
            job=self._job,
            grouping_key={"instance": socket.gethostname()},
            registry=self._registry,
            timeout=_PUSH_SECONDS,
            handler=self._handler,
        )

    def close(self) -> None:
        """Nothing: the gateway keeps what was pushed."""


class TextFile:
    """Replaces a file of the text format as a whole."""

    def __init__(self, path: Path, registry: CollectorRegistry) -> None:
        if not path.parent.is_dir():
            raise OptionError(f"metrics: there is no directory {path.parent}: create it")
        self.address = str(path)
        self._registry = registry

    def write(self) -> None:
        write_to_textfile(self.address, self._registry)

    def close(self) -> None:
        """Nothing: the file stays."""


Exposure = Port | PushGateway | TextFile
"""A place for metrics, at an address without a secret; `write` raises `OSError` or `HTTPException`."""


def exposed(to: str, job: str, registry: CollectorRegistry) -> Exposure:
    """Open the place that a text names; `OptionError` says what is wrong with it."""
    where = resolve(to, "metrics")
    port = _PORT.fullmatch(where)
    if port is not None:
        return Port(port["host"] or _LOOPBACK, int(port["port"]), registry)
    if where.startswith(("http://", "https://")):
        return PushGateway(where, job, registry)
    if where.endswith(".prom"):
        return TextFile(Path(where), registry)
    raise OptionError(
        f"metrics go to '{to}', which is no place for them: use a port (9464, or 0.0.0.0:9464), the URL of a "
        "push gateway (http://gateway:9091), or a file (/var/lib/node_exporter/orders.prom)"
    )
