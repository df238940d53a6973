"""Metrics of a worker that cannot be written end no batch of it."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from babelqueue_spark.metrics import WorkerMetrics
from babelqueue_spark.worker.counts import Counts


@pytest.mark.parametrize("where", ["{}/missing/orders.prom", "env:A_VARIABLE_THAT_IS_NOT_SET"])
def test_a_place_that_is_not_there(tmp_path: Path, where: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        WorkerMetrics(where.format(tmp_path))(7, Counts())
    assert "metrics of batch 7 were not written" in caplog.text
