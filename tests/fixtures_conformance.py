"""The conformance suite as a fixture, for the sections that concern a binding."""

from __future__ import annotations

from typing import Any

import pytest

from tests.envelope.conformance import fixture, manifest


class Conformance:
    """Sections of the manifest, and the files they name."""

    def section(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = manifest()[name]
        return found

    def file(self, relative: str) -> bytes:
        return fixture(relative)


@pytest.fixture(scope="session")
def conformance() -> Conformance:
    return Conformance()
