"""Poll queues and their dead-letter queues."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from babelqueue_spark.bindings import BaseBinding, Binding
from babelqueue_spark.connector.options import Options
from babelqueue_spark.errors import BabelQueueError, BrokerUnreachableError
from babelqueue_spark.jobs.page.messages import by_reason, first_messages
from babelqueue_spark.jobs.page.series import Series

_MOST_REASONS = 20


class Watched:
    """One queue: how many messages it has, over time; of some, why they are dead letters."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._backlog = Series()
        self._oldest: float | None = None
        self.reasons: dict[str, int] | None = None
        """Reason → messages, as they were read last; None where they were not."""
        self._reasons_of = 0
        self.error: str | None = None
        """Why it could not be polled."""

    def poll(self, binding: BaseBinding, options: Options, *, reasons: bool) -> None:
        """Ask for the count and the oldest message; browse for `reasons`, where that is free."""
        backlog = binding.backlog(self.name)
        self._backlog.add(backlog)
        since = binding.oldest(self.name) if backlog else None
        self._oldest = None if since is None else max(0.0, binding.now() - since)
        if not backlog:
            self.reasons, self._reasons_of = {}, 0
        elif reasons and backlog != self._reasons_of and binding.capabilities.browse == "exact":
            self.keep(first_messages(binding, self.name, options))
            self._reasons_of = backlog
        self.error = None

    def keep(self, messages: list[dict[str, Any]]) -> None:
        """Remember the reasons of messages that were read."""
        self.reasons = by_reason(messages, _MOST_REASONS)

    def as_dict(self) -> dict[str, Any]:
        values = self._backlog.values
        return {
            "name": self.name,
            "backlog": values[-1] if values else None,
            "points": values,
            "rate": self._backlog.rate,
            "oldest": self._oldest,
            "error": self.error,
        }


class BrokerWatch:
    """The queues of one broker, each with its dead-letter queue: `dead_letters` maps one to the other."""

    def __init__(self, options: Options, dead_letters: Mapping[str, str]) -> None:
        self._options = options
        self._binding = options.binding()
        self._is_broken = False
        self._queues = [Watched(name) for name in options.queue]
        self._letters = {name: Watched(name) for name in dead_letters.values()}
        self._letters_of = dict(dead_letters)
        for each in self._all():
            self._binding.check_queue(each.name)

    def _all(self) -> list[Watched]:
        return [*self._queues, *self._letters.values()]

    @property
    def names(self) -> set[str]:
        """All queues that may be browsed."""
        return {each.name for each in self._all()}

    @property
    def dead_letter_queues(self) -> set[str]:
        """The queues whose messages may be redriven and dropped."""
        return set(self._letters)

    def keep(self, queue: str, messages: list[dict[str, Any]]) -> None:
        """Remember the reasons of dead letters that somebody has read."""
        if queue in self._letters:
            self._letters[queue].keep(messages)

    def poll(self) -> dict[str, Any]:
        """Poll all queues once; a broker that is away is an error in what comes back.

        A queue that cannot be polled, as it may be closed to the user, has an error of its own.
        """
        error = None
        for each in self._all():
            try:
                if self._is_broken:
                    self._connect_again()
                each.poll(self._binding, self._options, reasons=each.name in self._letters)
            except (BrokerUnreachableError, OSError) as failure:
                self._is_broken, error = True, str(failure)
                break
            except BabelQueueError as failure:
                self._is_broken = True
                each.error = str(failure)
        return {"error": error, **self._as_dict()}

    def reasons(self) -> dict[str, dict[str, int] | None]:
        """Return the reasons of each dead-letter queue."""
        return {name: each.reasons for name, each in self._letters.items()}

    def _connect_again(self) -> None:
        self.close()
        self._binding = self._options.binding()
        self._is_broken = False

    def close(self) -> None:
        """Close the connection, as far as it is there."""
        with suppress(BabelQueueError):
            self._binding.close()

    def _as_dict(self) -> dict[str, Any]:
        return {
            "broker": self._binding.title,
            "browse": self._binding.capabilities.browse,
            "is_log": not isinstance(self._binding, Binding),
            "queues": [
                {**each.as_dict(), "dead_letters": self._letters_of[each.name]} for each in self._queues
            ],
            "dead_letters": [each.as_dict() for each in self._letters.values()],
        }
