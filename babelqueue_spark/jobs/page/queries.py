"""Running queries, by the metrics that they export and by the journals that they keep."""

import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import Any

from babelqueue_spark.errors import JournalError, OptionError
from babelqueue_spark.jobs.page.series import Series
from babelqueue_spark.journal.glance import glance
from babelqueue_spark.packages import brought_by

_TIMEOUT = 3.0
_DIRECTLY = urllib.request.build_opener(urllib.request.ProxyHandler({}))
_MOST_BYTES = 4 << 20
_FIELDS = {
    "babelqueue_batch_duration_seconds_sum": "seconds",
    "babelqueue_batch_duration_seconds_count": "batches",
    "babelqueue_messages_total": "messages",
    "babelqueue_last_batch_timestamp_seconds": "last_batch",
    "babelqueue_query_active": "active",
}
"""Sample of a query → the field that it is."""
_PHASES = "babelqueue_batch_phase_seconds_total"


@dataclass
class _Sums:
    """What an endpoint says of one query: sums since its process began.

    Attributes:
        last_batch: seconds since 1970; None where nothing tells.
        active: 0 once the query has ended.
    """

    seconds: float = 0.0
    batches: float = 0.0
    messages: float = 0.0
    phases: dict[str, float] = field(default_factory=dict)
    last_batch: float | None = None
    active: float = 1.0


class _Query:
    """What was seen of one query."""

    def __init__(self) -> None:
        self._sums = _Sums()
        self._seconds = Series()
        self._messages = Series()
        self._phases: dict[str, float] = {}

    def add(self, now: _Sums) -> None:
        """Add what is new, and the mean time of the batches since the last poll."""
        former = self._sums if now.batches >= self._sums.batches else _Sums()  # its process was started again
        batches = now.batches - former.batches
        if batches > 0:
            self._seconds.add((now.seconds - former.seconds) / batches)
            self._phases = {
                phase: (seconds - former.phases.get(phase, 0.0)) / batches
                for phase, seconds in now.phases.items()
            }
        self._messages.add(now.messages)
        self._sums = now

    def as_dict(self, name: str) -> dict[str, Any]:
        values, rate = self._seconds.values, self._messages.rate
        return {
            "name": name,
            "seconds": values[-1] if values else None,
            "points": values,
            "phases": self._phases,
            "batches": self._sums.batches,
            "rate": None if rate is None or rate < 0 else rate,
            "last_batch": self._sums.last_batch,
            "has_ended": not self._sums.active,
        }


class MetricsWatch:
    """The queries of one process, as its endpoint of Prometheus metrics tells."""

    def __init__(self, url: str) -> None:
        with brought_by("metrics", "--metrics", "prometheus_client"):
            from prometheus_client.parser import text_string_to_metric_families
        self._parse = text_string_to_metric_families
        self._url = url
        self._queries: dict[str, _Query] = {}

    def poll(self) -> dict[str, Any]:
        """Read the endpoint once; one that is away is an error in what comes back, and nothing is raised."""
        error = None
        try:
            found = self._read()
        except (OSError, ValueError, HTTPException) as failure:
            error = f"{self._url} gives no metrics: {' '.join(str(failure).split())[:200]}"
        else:
            self._queries = {name: self._queries.get(name, _Query()) for name in sorted(found)}
            for name, query in self._queries.items():
                query.add(found[name])
        queries = [query.as_dict(name) for name, query in self._queries.items()]
        return {"source": self._url, "error": error, "queries": queries}

    def _read(self) -> dict[str, _Sums]:
        with _DIRECTLY.open(self._url, timeout=_TIMEOUT) as answer:
            text = answer.read(_MOST_BYTES).decode()
        found: dict[str, _Sums] = {}
        for family in self._parse(text):
            for name, labels, value, *_ in family.samples:
                if name in _FIELDS:
                    setattr(found.setdefault(labels.get("query", ""), _Sums()), _FIELDS[name], value)
                elif name == _PHASES:
                    sums = found.setdefault(labels.get("query", ""), _Sums())
                    sums.phases[labels.get("phase", "")] = value
        return found


class JournalWatch:
    """The query of one journal."""

    def __init__(self, location: str, config: Mapping[str, str]) -> None:
        self._location, self._config = location, config

    def poll(self) -> dict[str, Any]:
        """Look at the journal once; one that cannot be read is an error in what comes back."""
        try:
            seen = glance(self._location, self._config)
        except (JournalError, OptionError) as failure:
            return {"location": self._location, "error": str(failure)}
        last = max(seen.planned, default=seen.committed)
        return {
            "location": self._location,
            "error": None,
            "host": seen.host,
            "process": seen.process,
            "batch": last,
            "committed": seen.committed,
            "planned_at": seen.planned.get(last),
            "segments": seen.segments,
            "bytes": seen.bytes,
        }
