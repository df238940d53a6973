"""Answer requests: what a responder returns or raises becomes the reply."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from babelqueue_spark.bindings import BaseBinding
from babelqueue_spark.connector.options import Options
from babelqueue_spark.errors import OptionError
from babelqueue_spark.worker.handlers.calls import Step, Steps
from babelqueue_spark.worker.messages import Message, Outgoing, Reject, Reply, Retry
from babelqueue_spark.worker.outcomes import Failure

REQUEST_FAILED = "urn:babel:worker:request_failed"
"""The URN of a reply that tells why there is no other."""
NO_REPLY_TO = "no_reply_to"
_LONGEST_QUEUE = 255
"""Bytes: the longest name that each broker can have."""


class Responder:
    """Replies with what a user's function returns, or with why it raised.

    Args:
        options: of the writes.
    """

    def __init__(self, options: Options) -> None:
        self._options = options

    def reply(self, message: Message, step: Step) -> Steps:
        """Return the reply; raise `Reject` for a request that names no queue, and the user's `Retry`."""
        queue = self._reply_queue(message)
        try:
            return _reply((yield step), message, queue)
        except (Retry, KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # noqa: BLE001 (whatever it raises)
            failure = Failure.of(error)
            data = {"reason": failure.reason, "error": failure.error, "exception": failure.exception}
            return Reply(job=REQUEST_FAILED, data=data, queue=queue, exception=failure.exception)

    def _reply_queue(self, message: Message) -> str:
        queue = message.reply_to
        if queue is None or len(queue.encode("utf-8", "replace")) > _LONGEST_QUEUE:
            raise Reject(NO_REPLY_TO, "neither the header 'reply-to' nor meta.reply_to names a queue")
        try:
            self._binding.check_foreign(queue)
        except OptionError as error:
            raise Reject(NO_REPLY_TO, error.text) from None
        return queue

    @cached_property
    def _binding(self) -> BaseBinding:
        """Of names alone: it connects to nothing."""
        return self._options.binding()


def _reply(returned: Any, message: Message, queue: str) -> Reply:
    """Make the reply of what a responder returned; raises where that can be none."""
    if not isinstance(returned, Outgoing):
        returned = Outgoing(job=f"{message.job}:reply", data=returned)
    if returned.queue not in (None, queue):
        raise OptionError(
            f"a reply goes to the queue that its request names, but this Outgoing names '{returned.queue}': "
            "leave out its queue"
        )
    if returned.send_at is not None:
        raise OptionError("a reply goes at once, but this Outgoing has a send_at: leave it out")
    if not isinstance(returned.data, Mapping):
        raise TypeError(
            "a responder returns the data of its reply, a mapping, or an Outgoing, but this is a "
            f"{type(returned.data).__name__}"
        )
    json.dumps(returned.data, ensure_ascii=False, allow_nan=False).encode()
    return Reply(**{**vars(returned), "queue": queue})
