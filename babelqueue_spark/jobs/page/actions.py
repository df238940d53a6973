"""What the page asks for: to browse queues, to redrive and to drop."""

import threading
from collections.abc import Mapping
from typing import Any

from babelqueue_spark.connector.options import Options
from babelqueue_spark.errors import OptionError
from babelqueue_spark.jobs.page.messages import MOST, by_reason, first_messages, whole
from babelqueue_spark.jobs.page.queues import BrokerWatch
from babelqueue_spark.worker.dead_letters.by_name import drop_chosen, redrive_chosen


class Actions:
    """The requests of the page; each has a connection of its own.

    Attributes:
        busy: held while messages are moved, so that no two of these requests claim from each other.
    """

    def __init__(self, given: Mapping[str, str], options: Options, watch: BrokerWatch) -> None:
        self._given, self._options, self._watch = given, options, watch
        self.busy = threading.Lock()

    def messages(self, queue: str) -> dict[str, Any]:
        """Return the first messages of a queue, without their bodies."""
        self._check(queue, self._watch.names)
        with self._options.binding() as binding:
            found = first_messages(binding, queue, self._options)
            self._watch.keep(queue, found)
            return {
                "queue": queue,
                "messages": found,
                "reasons": by_reason(found),
                "most": MOST,
            }

    def body(self, queue: str, name: str) -> dict[str, Any]:
        self._check(queue, self._watch.names)
        with self._options.binding() as binding:
            found = whole(binding, queue, self._options, name)
        if found is None:
            raise OptionError(f"queue '{queue}': the message is not there any more: read the queue again")
        return found

    def redrive(self, queue: str, chosen: list[str]) -> dict[str, Any]:
        """Chosen dead letters back to their queues: where how many went, and why others stay."""
        self._check(queue, self._watch.dead_letter_queues)
        with self.busy:
            result = redrive_chosen(self._given, queue, chosen)
        went: dict[str, int] = {}
        for move in result.moves:
            went[move.to] = went.get(move.to, 0) + 1
        gone = len(chosen) - len(result.moves) - result.kept.total()
        return {"went": went, "stay": dict(result.kept), "gone": gone}

    def drop(self, queue: str, chosen: list[str]) -> dict[str, Any]:
        """Drop chosen dead letters for ever: how many, and how many had gone before."""
        self._check(queue, self._watch.dead_letter_queues)
        with self.busy:
            dropped = drop_chosen(self._given, queue, chosen)
        return {"dropped": dropped, "gone": len(chosen) - dropped}

    @staticmethod
    def _check(queue: str, allowed: set[str]) -> None:
        if queue not in allowed:
            raise OptionError(f"queue '{queue}' is not watched here: name it with --queue")
