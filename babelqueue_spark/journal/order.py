"""The order in which the segments of a batch were complete: what two of them hold, the first one yields.

    <journalLocation>/batches/0000000007/
      00000.order              the first segment: its partition, what it yields, what it leaves to others
      00001.order              the second

A broker that gives one message to two reader tasks at once has both journal it before either can see the
segment of the other. So each enters its segment into an order, after it was written and before its first row:
the storage creates a file of a number once. Who creates it has read all before it, and leaves out what they
yield. A repeated task finds the entry of its partition, and leaves out the same.
"""

from __future__ import annotations

import json

from babelqueue_spark.errors import JournalError
from babelqueue_spark.journal.segments import encode, folder_of
from babelqueue_spark.storage import Store


def left_to_others(store: Store, batch: int, partition: int, names: list[str]) -> set[str]:
    """Enter a segment that is written into the order of its batch, unless it is there already.

    Args:
        names: of its messages; a name is of one message for ever, and within the segment once.

    Returns:
        The names of messages that segments before it yield.

    Raises:
        JournalError: the storage cannot be used, or does not show a file that it refuses to create.
    """
    taken: set[str] = set()
    number = 0
    while True:
        file = f"{folder_of(batch)}/{number:05d}.order"
        entry = store.read(file)
        if entry is None:
            yields = [name for name in names if name not in taken]
            leaves = [name for name in names if name in taken]
            own = encode({"partition": partition, "yields": yields, "leaves": leaves})
            entry = own if store.create(file, own) else store.read(file)
        if entry is None:
            raise JournalError(
                f"journal {store.location}: {file} is being written by another task and cannot be read yet; "
                "the task is to be repeated"
            )
        found = json.loads(entry)
        if found["partition"] == partition:
            return set(found["leaves"])
        taken.update(found["yields"])
        number += 1
