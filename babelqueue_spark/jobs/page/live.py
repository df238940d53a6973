"""The live page: what watches, what answers, and how both end."""

from collections.abc import Mapping, Sequence
from typing import Self

from babelqueue_spark.bindings import binding_class
from babelqueue_spark.connector.options import (
    Options,
    journal_config,
    read_options,
    resolved_config,
    write_options,
)
from babelqueue_spark.jobs.page.actions import Actions
from babelqueue_spark.jobs.page.hub import Hub
from babelqueue_spark.jobs.page.queries import JournalWatch, MetricsWatch
from babelqueue_spark.jobs.page.queues import BrokerWatch
from babelqueue_spark.jobs.page.server import LiveServer

_OF_DEAD_LETTERS = ("deadletterstyle", "deadletterqueue")


class Live:
    """A web page on this host that shows the queues of a broker, and running queries.

    Args:
        options: of the connector's reads, by name, with `queue`; also `deadLetterStyle`, `deadLetterQueue`
            and `journal.<name>`.
        address: of the broker, as the page shows it: without a secret.
        metrics: URLs where queries export their metrics.
        journals: locations of journals.
        every: seconds between two polls.
        port: of 127.0.0.1; 0 takes a free one.
    """

    def __init__(
        self,
        options: Mapping[str, str],
        *,
        address: str,
        metrics: Sequence[str] = (),
        journals: Sequence[str] = (),
        every: float = 2.0,
        port: int = 0,
    ) -> None:
        reads = {name: value for name, value in options.items() if _is_of_reads(name)}
        given = read_options(reads)
        self._broker = BrokerWatch(given, _dead_letter_queues(options, given))
        config = resolved_config(journal_config(options))
        self._every = every
        queries: list[MetricsWatch | JournalWatch] = [
            *map(MetricsWatch, metrics),
            *(JournalWatch(each, config) for each in journals),
        ]
        self._watches = {
            **{f"query {number}": each.poll for number, each in enumerate(queries)},
            "broker": self._broker.poll,
            "reasons": self._broker.reasons,
        }
        self._hub = Hub()
        self._hub.put("address", address)
        self._actions = Actions(reads, given, self._broker)
        self._server = LiveServer(port, self._hub, self._actions)

    @property
    def url(self) -> str:
        return self._server.url

    def run(self) -> None:
        """Watch and serve until `stop` is called, or the program is interrupted."""
        for part, poll in self._watches.items():
            self._hub.watch(part, poll, self._every)
        self._server.serve_forever(poll_interval=0.1)

    def stop(self) -> None:
        """End `run`, from another thread."""
        self._server.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close it: messages that are being moved are moved first, and no others after them."""
        self._server.server_close()
        self._actions.busy.acquire()
        self._hub.close()
        self._broker.close()


def _is_of_reads(name: str) -> bool:
    return name.lower() not in _OF_DEAD_LETTERS and not name.lower().startswith("journal.")


def _dead_letter_queues(options: Mapping[str, str], given: Options) -> dict[str, str]:
    """Queue → the queue of its dead letters."""
    found = write_options(
        {"url": given.url, "broker": given.broker}
        | {name: value for name, value in options.items() if name.lower() in _OF_DEAD_LETTERS}
    )
    named, kind = found.dead_letter_queue, binding_class(given.broker)
    return {queue: named or kind.dead_letter_name(queue, found.dead_letter_style) for queue in given.queue}
