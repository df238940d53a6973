"""Ask brokers for what no query tells: how old the oldest message is, and how many dead letters there are."""

import logging
from collections.abc import Iterable, Iterator, Mapping

from babelqueue_spark.bindings import Binding
from babelqueue_spark.connector.option_table import OPTIONS
from babelqueue_spark.connector.options import Options, write_options
from babelqueue_spark.connector.rows.dead_letters import dead_letter_queue
from babelqueue_spark.errors import BabelQueueError, OptionError, QueueNotFoundError
from babelqueue_spark.metrics import families
from babelqueue_spark.metrics.store import Metrics

logger = logging.getLogger(__name__)

_OF_READS = {each.name.lower() for each in OPTIONS if each.on in ("reads", "stream reads", "logs")}


class Watch:
    """One queue and its dead-letter queue, asked over a new connection each time.

    Raises:
        OptionError: the broker is a log, or would hold messages back from readers.
    """

    def __init__(self, queue: str, options: Options, metrics: Metrics) -> None:
        self._queue = queue
        self._options = options
        self._metrics = metrics
        with options.queue_binding() as binding:
            if binding.capabilities.intrusive_backlog:
                raise OptionError(
                    f"queue '{queue}' cannot be polled for metrics: {binding.title} tells its backlog to "
                    "consumers only, which hold messages back; take the metrics of the broker itself"
                )
            self._dead_letters = dead_letter_queue(queue, options, binding)
        self._failing = False

    def poll(self) -> None:
        """Ask, and set the gauges; what fails is counted, logged once, and leaves no gauge behind."""
        try:
            with self._options.queue_binding() as binding:
                self._ask(binding)
            self._failing = False
        except BabelQueueError as error:
            self._forget()
            self._metrics.add(families.POLL_FAILURES, 1, self._options.broker, self._queue)
            if not self._failing:
                logger.warning("queue '%s' is not watched for now: %s", self._queue, error)
            self._failing = True

    def _ask(self, binding: Binding) -> None:
        broker, queue = self._options.broker, self._queue
        waiting = binding.backlog(queue)
        since = binding.oldest(queue)
        dead = _dead(binding, self._dead_letters)
        self._metrics.set(families.WAITING, waiting, broker, queue)
        self._metrics.set(families.DEAD_LETTERS, dead, broker, self._dead_letters)
        if since is not None:
            self._metrics.set(families.OLDEST, max(0.0, binding.now() - since), broker, queue)
        elif type(binding).oldest is not Binding.oldest and not waiting:  # it could tell
            self._metrics.set(families.OLDEST, 0, broker, queue)
        else:
            self._metrics.forget(families.OLDEST, broker, queue)

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


def _dead(binding: Binding, queue: str) -> int:
    try:
        return binding.backlog(queue)
    except QueueNotFoundError:  # it comes with the first dead letter
        return 0
