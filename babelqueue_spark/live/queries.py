"""Running queries, by the metrics that they export and by the journals that they keep."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import Any

from babelqueue_spark.errors import JournalError, OptionError
from babelqueue_spark.journal.glance import glance
from babelqueue_spark.live.series import Series
from babelqueue_spark.packages import brought_by

_TIMEOUT = 3.0
_DIRECTLY = urllib.request.build_opener(urllib.request.ProxyHandler({}))
_MOST_BYTES = 4 << 20
DURATION = "babelqueue_batch_duration_seconds"
MESSAGES = "babelqueue_messages_total"
_WHOLE = "triggerExecution"
"""The phase that has all others within it."""

Sums = dict[str, dict[str, tuple[float, float]]]
"""Query → phase → seconds and batches so far."""


@dataclass
class _Query:
    """What was seen of one query."""

    seconds: Series = field(default_factory=Series)
    messages: Series = field(default_factory=Series)
    batches: float = 0.0
    phases: dict[str, float] = field(default_factory=dict)
    at: float | None = None


class MetricsWatch:
    """The queries of one process, as its endpoint of Prometheus metrics tells.

    Args:
        url: of the endpoint.
    """

    def __init__(self, url: str) -> None:
        with brought_by("serve", "--metrics", "prometheus_client"):
            from prometheus_client.parser import text_string_to_metric_families
        self._parse = text_string_to_metric_families
        self._url = url
        self._former: Sums = {}
        self._queries: dict[str, _Query] = {}

    def poll(self) -> dict[str, Any]:
        """Read the endpoint once; one that is away is an error in what comes back, and nothing is raised."""
        error = None
        try:
            self._read()
        except (OSError, ValueError, HTTPException) as failure:
            error = f"{self._url} gives no metrics: {' '.join(str(failure).split())[:200]}"
        queries = [_as_dict(name, query) for name, query in sorted(self._queries.items())]
        return {"source": self._url, "error": error, "queries": queries}

    def _read(self) -> None:
        with _DIRECTLY.open(self._url, timeout=_TIMEOUT) as answer:
            text = answer.read(_MOST_BYTES).decode()
        sums: Sums = {}
        messages: dict[str, float] = {}
        for name, labels, value in self._samples(text):
            query = labels.get("query", "")
            if name in (f"{DURATION}_sum", f"{DURATION}_count"):
                seconds, batches = sums.setdefault(query, {}).get(labels.get("phase", _WHOLE), (0.0, 0.0))
                at_sum = name.endswith("_sum")
                sums[query][labels.get("phase", _WHOLE)] = (value, batches) if at_sum else (seconds, value)
            elif name == MESSAGES:
                messages[query] = messages.get(query, 0.0) + value
        for query in {*sums, *messages}:
            its = self._queries.setdefault(query, _Query())
            if query in messages:
                its.messages.add(messages[query])
            self._add_batches(its, sums.get(query, {}), self._former.get(query, {}))
        self._former = sums

    def _samples(self, text: str) -> Iterator[tuple[str, Mapping[str, str], float]]:
        for family in self._parse(text):
            if family.name in (DURATION, MESSAGES.removesuffix("_total")):
                for sample in family.samples:
                    yield sample.name, sample.labels, sample.value

    @staticmethod
    def _add_batches(
        query: _Query, now: Mapping[str, tuple[float, float]], former: Mapping[str, tuple[float, float]]
    ) -> None:
        """Add the mean of the batches that ended since the last poll."""
        phases = {}
        for phase, (seconds, batches) in now.items():
            before = former.get(phase, (0.0, 0.0))
            if batches < before[1]:  # the process was started again
                before = (0.0, 0.0)
            if batches > before[1]:
                phases[phase] = (seconds - before[0]) / (batches - before[1])
        if phases:
            whole = phases.pop(_WHOLE, None)
            query.seconds.add(sum(phases.values()) if whole is None else whole)
            query.phases, query.at = phases, time.time()
            query.batches = max(batches for _, batches in now.values())


def _as_dict(name: str, query: _Query) -> dict[str, Any]:
    values, rate = query.seconds.values, query.messages.rate
    return {
        "name": name,
        "seconds": values[-1] if values else None,
        "points": values,
        "phases": query.phases,
        "batches": query.batches,
        "rate": None if rate is None or rate < 0 else rate,
        "at": query.at,
    }


class JournalWatch:
    """The query of one journal.

    Args:
        location: of the journal.
        config: of its object store, if it is one.
    """

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
