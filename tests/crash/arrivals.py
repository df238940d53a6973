"""What a program of the crash tests is to read, and what it leaves of what has arrived."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

from tests.streams import left, short_claims

SECONDS = 300
"""How long a program waits for the last message."""


class Arrivals:
    """The messages that arrived from the queues of one reading.

    Each batch becomes `<folder>/out/<batch>.json` ([queue, body] of each row), written whole, so that a replay
    replaces it; each attempt is also kept under `<folder>/attempts/`.
    """

    def __init__(self, url: str, folder: str, expected: int, queues: list[str], journal: str = "") -> None:
        self.url = url
        self.folder = Path(folder)
        self.journal = journal or f"{folder}/journal"
        self.queues = queues
        self._expected = expected
        self._complete = False
        for name in ("out", "attempts"):
            (self.folder / name).mkdir(exist_ok=True)
        out = (self.folder / "out").glob("*.json")
        self._arrived = {int(path.stem): len(json.loads(path.read_text())) for path in out}

    def options(self, partitions: str) -> dict[str, str]:
        """Options of a stream over the queues, with so many partitions of each queue a batch."""
        return {
            "url": self.url,
            "queue": ",".join(self.queues),
            "journalLocation": self.journal,
            "numPartitions": str(int(partitions) * len(self.queues)),
            "maxMessagesPerTrigger": str(2000 * len(self.queues)),
            **short_claims(self.url),
        }

    def keep(self, number: int, rows: list[list[str]]) -> None:
        """An attempt at a batch has given these rows."""
        text = json.dumps(rows)
        self.keep_attempt(number, text)
        temporary = self.folder / f"{number}.tmp"
        temporary.write_text(text)
        temporary.replace(self.folder / "out" / f"{number}.json")
        self._arrived[number] = len(rows)

    def keep_attempt(self, number: int, text: str) -> None:
        (self.folder / "attempts" / f"{number}-{uuid.uuid4().hex}.json").write_text(text)

    def complete(self) -> bool:
        """Whether all messages have arrived, and the broker has none left."""
        self._complete = self._complete or (
            sum(self._arrived.values()) >= self._expected
            and not any(left(self.url, queue, **short_claims(self.url)) for queue in self.queues)
        )
        return self._complete


def readings_in(text: str) -> list[Arrivals]:
    """From JSON: a list of objects with `url`, `folder`, `expected` (messages in all), `queues`, and `journal` (its
    location, where it is not in the folder).
    """
    return [Arrivals(**reading) for reading in json.loads(text)]
