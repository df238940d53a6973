"""Read what is exposed, as Prometheus does."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

Samples = Mapping[tuple[str, frozenset[tuple[str, str]]], float]


class Scrape:
    """The samples of a text, and the text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._samples: Samples = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def value(self, name: str, **labels: str) -> float | None:
        """The value of one series; None where it is absent."""
        return self._samples.get((name, frozenset(labels.items())))

    def all(self, name: str) -> dict[tuple[tuple[str, str], ...], float]:
        """The series of a metric, by their labels in the order of names."""
        return {
            tuple(sorted(labels)): value for (found, labels), value in self._samples.items() if found == name
        }


def scrape(address: str) -> Scrape:
    """What a port answers."""
    with urlopen(address, timeout=30) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain")
        return Scrape(answer.read().decode())
