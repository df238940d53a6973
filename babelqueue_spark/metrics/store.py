"""The values of all metrics, in a registry of prometheus_client, with labels that are bounded."""

import re
from collections import defaultdict
from contextlib import suppress
from threading import Lock
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from babelqueue_spark.metrics import families
from babelqueue_spark.metrics.families import Family

OTHER = "other"
"""The value of a label in place of what is too long, is no name, or comes after the first `MOST_VALUES`."""
MOST_VALUES = 100
_NAMES = {"urn": re.compile(r"[\w.:/+-]{1,200}", re.ASCII), "reason": re.compile(r"[\w.:-]{1,64}", re.ASCII)}
"""What messages and handlers choose is shown only where it looks like a name: it might be anything."""
_BUCKETS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class Metrics:
    """Counts and sets metrics by their family; from any thread."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._found: dict[str, Any] = {each.name: _made(each, registry) for each in families.FAMILIES}
        self._labels = _Labels()

    def add(self, family: Family, amount: float, *labels: str | None) -> None:
        """Add to a counter; a negative amount, as of a counter that was reset, is ignored."""
        if amount >= 0:
            self._of(family, labels).inc(amount)

    def set(self, family: Family, value: float, *labels: str | None) -> None:
        self._of(family, labels).set(value)

    def observe(self, family: Family, value: float, *labels: str | None) -> None:
        self._of(family, labels).observe(value)

    def forget(self, family: Family, *labels: str) -> None:
        """Let a series be absent until it is set again."""
        with suppress(KeyError):  # of older versions, where it is absent already
            self._found[family.name].remove(*self._bounded(family, labels))

    def _of(self, family: Family, labels: tuple[str | None, ...]) -> Any:
        return self._found[family.name].labels(*self._bounded(family, labels))

    def _bounded(self, family: Family, labels: tuple[str | None, ...]) -> list[str]:
        return [self._labels.value(name, label) for name, label in zip(family.labels, labels, strict=True)]


class _Labels:
    """Knows the first values of each label."""

    def __init__(self) -> None:
        self._known: defaultdict[str, set[str]] = defaultdict(set)
        self._lock = Lock()

    def value(self, name: str, value: str | None) -> str:
        if value is None:
            return ""
        if name == "queue":  # as many as are configured, and two must not share a gauge
            return value
        if name in _NAMES and not _NAMES[name].fullmatch(value):
            return OTHER
        with self._lock:
            known = self._known[name]
            if value not in known and len(known) >= MOST_VALUES:
                return OTHER
            known.add(value)
        return value


def _made(family: Family, registry: CollectorRegistry) -> Counter | Gauge | Histogram:
    if family.kind == "histogram":
        return Histogram(family.name, family.doc, family.labels, registry=registry, buckets=_BUCKETS)
    kind = Counter if family.kind == "counter" else Gauge
    return kind(family.name, family.doc, family.labels, registry=registry)
