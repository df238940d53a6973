"""Ask brokers for what no query tells: how old the oldest message is, and how many dead letters there are."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping

from babelqueue_spark.bindings import Binding
from babelqueue_spark.errors import BabelQueueError, QueueNotFoundError
from babelqueue_spark.metrics import families
from babelqueue_spark.metrics.store import Metrics
from babelqueue_spark.options import OPTIONS, Options, write_options
from babelqueue_spark.rows.dead_letters import dead_letter_queue

logger = logging.getLogger(__name__)

_OF_READS = {each.name.lower() for each in OPTIONS if each.on in ("reads", "stream reads", "logs")}


class Watch:
    """One queue and its dead-letter queue, over a connection of its own. Not safe for concurrent use.

    Args:
        queue: its name.
        options: of a write, for the broker and the name of the dead-letter queue.
        metrics: takes what polls find.
    """

    def __init__(self, queue: str, options: Options, metrics: Metrics) -> None:
        self._queue = queue
        self._options = options
        self._metrics = metrics
        self._binding = options.queue_binding()
        self._dead_letters = dead_letter_queue(queue, options, self._binding)
        self._failing = False

    def poll(self) -> None:
        """Ask, and set the gauges; what fails is counted, logged once, and leaves no gauge behind."""
        try:
            self._ask()
            self._failing = False
        except BabelQueueError as error:
            self._binding.close()
            self._forget()
            self._metrics.add(families.POLL_FAILURES, 1, self._options.broker, self._queue)
            if not self._failing:
                logger.warning("queue '%s' is not watched for now: %s", self._queue, error)
            self._failing = True

    def close(self) -> None:
        """Close the connection."""
        self._binding.close()

    def _ask(self) -> None:
        broker, queue, binding = self._options.broker, self._queue, self._binding
        waiting = binding.backlog(queue)
        since = binding.oldest(queue)
        self._metrics.set(families.WAITING, waiting, broker, queue)
        if since is not None:
            self._metrics.set(families.OLDEST, max(0.0, binding.now() - since), broker, queue)
        elif _tells_age(binding) and not waiting:
            self._metrics.set(families.OLDEST, 0, broker, queue)
        else:
            self._metrics.forget(families.OLDEST, broker, queue)
        self._metrics.set(families.DEAD_LETTERS, self._dead(), broker, self._dead_letters)

    def _dead(self) -> int:
        try:
            return self._binding.backlog(self._dead_letters)
        except QueueNotFoundError:  # it comes with the first dead letter
            return 0

    def _forget(self) -> None:
        for family in (families.WAITING, families.OLDEST):
            self._metrics.forget(family, self._options.broker, self._queue)
        self._metrics.forget(families.DEAD_LETTERS, self._options.broker, self._dead_letters)


def watches(queues: Iterable[Mapping[str, str]], metrics: Metrics) -> Iterator[Watch]:
    """Watch the queues that options of reads or writes name; `OptionError` says what is wrong with them."""
    for given in queues:
        own = {name: value for name, value in given.items() if not _is_of_reads(name)}
        for queue in dict.fromkeys(own.pop("queue", "").split(",")):
            yield Watch(queue.strip(), write_options({**own, "queue": queue.strip()}), metrics)


def _is_of_reads(name: str) -> bool:
    return name.lower() in _OF_READS or name.lower().startswith("journal.")


def _tells_age(binding: Binding) -> bool:
    return type(binding).oldest is not Binding.oldest
