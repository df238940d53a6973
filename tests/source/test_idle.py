"""The stream whose idle cost is measured: it can be made for every broker, and asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.idle import IdleStream
from tests.brokers import SERVERS, url_of


@pytest.mark.parametrize("broker", ["sqlite", *SERVERS])
def test_an_idle_stream_looks_and_stops(broker: str, request: Any, tmp_path: Path) -> None:
    stream = IdleStream(url_of(broker, request, tmp_path), tmp_path)
    stream.trigger()
    stream.stop()
