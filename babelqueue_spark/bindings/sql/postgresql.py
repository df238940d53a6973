"""A connection to PostgreSQL that does not wait for ever: psycopg bounds the login alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from typing import Any, Self, TypeVar

from psycopg import Connection, OperationalError
from psycopg.waiting import Ready

T = TypeVar("T")


class BoundedConnection(Connection[Any]):
    """Ends with `OperationalError` when the server says nothing for `read_timeout` seconds."""

    read_timeout = 0.0

    @classmethod
    def opened(cls, *args: Any, read_timeout: str, **kwargs: Any) -> Self:
        made = cls.connect(*args, **kwargs)
        made.read_timeout = float(read_timeout)
        return made

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **kwargs: Any) -> T:
        return super().wait(_bounded(gen, self.read_timeout, self.close), *args, **kwargs)


def _bounded(
    steps: Generator[Any, Any, T], seconds: float, close: Callable[[], None]
) -> Generator[Any, Any, T]:
    """Yield the same steps, until the socket was not ready for so long."""
    heard = time.monotonic()
    try:
        wanted = next(steps)
        while True:
            ready = yield wanted
            if ready != Ready.NONE:
                heard = time.monotonic()
            elif time.monotonic() - heard > seconds:
                close()
                raise OperationalError(f"the server is silent for {seconds:g} s")
            wanted = steps.send(ready)
    except StopIteration as end:
        answer: T = end.value
        return answer
