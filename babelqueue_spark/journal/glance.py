"""Read how far the query of a journal is, from beside it: nothing is written, and nothing is taken over."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from babelqueue_spark.errors import JournalError, JournalMissingError
from babelqueue_spark.journal.segments import folder_of
from babelqueue_spark.storage import Store, open_store


@dataclass(frozen=True)
class Glance:
    """What the files of a journal tell.

    Attributes:
        host, process: of the query that owns it; None before the first.
        committed: last batch that Spark is known to have finished.
        planned: number of each batch whose plan is still there → seconds since 1970 by the broker's clock.
        segments, bytes: of claimed messages that are still kept.
    """

    host: str | None
    process: int | None
    committed: int
    planned: dict[int, float] = field(default_factory=dict)
    segments: int = 0
    bytes: int = 0


def glance(location: str, config: Mapping[str, str] | None = None) -> Glance:
    """Look at a journal; the arguments are those of `open_store`.

    Raises:
        JournalMissingError: there is no journal.
        JournalError: its storage cannot be read.
    """
    store = open_store(location, config=config)
    if store.read("journal.json") is None:
        raise JournalMissingError(
            f"journal {store.location} is not there: name the journalLocation of a query"
        )
    owner = _document(store, "owner.json") or {}
    commits = [int(name) for name in store.names("commits") if name.isdigit()]
    planned, segments = {}, []
    for name in filter(str.isdigit, store.names("batches")):
        folder = folder_of(int(name))
        segments += [size for file, size in store.sizes(folder).items() if file.endswith(".arrow")]
        plan = _document(store, f"{folder}/plan.json")
        if plan is not None:
            planned[int(name)] = float(plan.get("planned_at", 0))
    return Glance(
        owner.get("host"), owner.get("pid"), max(commits, default=0), planned, len(segments), sum(segments)
    )


def _document(store: Store, name: str) -> dict[str, Any] | None:
    content = store.read(name)
    try:
        return None if content is None else json.loads(content)
    except ValueError:
        raise JournalError(
            f"journal {store.location}: {name} is no JSON: its storage has damaged it"
        ) from None
