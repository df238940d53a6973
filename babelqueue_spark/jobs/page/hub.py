"""What is known now, who keeps it fresh, and who waits for news."""

import threading
from collections.abc import Callable
from typing import Any

Poll = Callable[[], Any]


class Hub:
    """The state of the page: named parts, each of which one thread replaces, until it is `closed`."""

    def __init__(self) -> None:
        self._news = threading.Condition()
        self._parts: dict[str, Any] = {}
        self._versions: dict[str, int] = {}
        self._version = 0
        self.closed = False
        self._threads: list[threading.Thread] = []

    def put(self, part: str, value: Any) -> None:
        """Replace a part, and wake all who wait; one that is equal is no news."""
        with self._news:
            if part in self._parts and self._parts[part] == value:
                return
            self._version += 1
            self._parts[part], self._versions[part] = value, self._version
            self._news.notify_all()

    def wait(self, version: int, timeout: float) -> tuple[int, dict[str, Any]]:
        """Return the version, and the parts that are newer than `version`, as soon as there are some.

        There are none where the time in seconds is over.
        """
        with self._news:
            self._news.wait_for(lambda: self.closed or self._version != version, timeout)
            newer = (part for part, its in self._versions.items() if its > version)
            return self._version, {part: self._parts[part] for part in newer}

    def watch(self, part: str, poll: Poll, every: float) -> None:
        """Poll in a thread of its own, `every` some seconds, so that what hangs holds up nothing else."""
        thread = threading.Thread(target=self._watch, args=(part, poll, every), name=part, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _watch(self, part: str, poll: Poll, every: float) -> None:
        while not self.closed:
            try:
                value = poll()
            except Exception as error:  # noqa: BLE001 (the next poll may succeed, and the page must say so)
                said = f"the poll ended with {type(error).__name__}"
                value = {**(self._parts.get(part) or {}), "error": said}
            self.put(part, value)
            with self._news:
                self._news.wait_for(lambda: self.closed, every)

    def close(self, patience: float = 2.0) -> None:
        """Wake all who wait, and end the polls; one that hangs ends with the process."""
        with self._news:
            self.closed = True
            self._news.notify_all()
        for thread in self._threads:
            thread.join(patience)
