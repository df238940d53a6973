"""Alert rules and the dashboard ask for what is exported, and names follow Prometheus's conventions."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest

from babelqueue_spark.metrics.families import FAMILIES
from babelqueue_spark.metrics.store import Metrics

ROOT = Path(__file__).parents[2]
PROMETHEUS = ROOT / "docker" / "prometheus"
ALERTS = [
    rule
    for group in yaml.safe_load((PROMETHEUS / "alerts.yml").read_text())["groups"]
    for rule in group["rules"]
]
DASHBOARD = json.loads((ROOT / "docker" / "grafana" / "dashboard.json").read_text())
EXPORTED = {each.name for each in FAMILIES if each.kind != "histogram"} | {
    f"{each.name}_{part}"
    for each in FAMILIES
    if each.kind == "histogram"
    for part in ("bucket", "count", "sum")
}
NAME = re.compile(r"\bbabelqueue_\w+")


def promtool(*arguments: str, given: bytes = b"") -> None:
    """Run Prometheus's own checker."""
    done = subprocess.run(
        ["promtool", *arguments], input=given, capture_output=True, check=False, cwd=PROMETHEUS
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.server
def test_prometheus_takes_the_rules_and_they_fire_when_they_should() -> None:
    promtool("check", "config", "prometheus.yml")
    promtool("test", "rules", "alerts_test.yml")


@pytest.mark.server
def test_prometheus_finds_no_fault_with_the_names() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    for family in FAMILIES:
        labels = [f"a {name}" for name in family.labels]
        {"counter": metrics.add, "gauge": metrics.set, "histogram": metrics.observe}[family.kind](
            family, 1, *labels
        )
    text = re.sub(
        rb"(?m)^.*_created\b.*\n", b"", generate_latest(registry)
    )  # of the client, for each counter
    assert text.count(b"# TYPE ") == len(FAMILIES)
    promtool("check", "metrics", given=text)


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_an_alert_asks_for_what_is_exported_and_is_tested(rule: dict[str, Any]) -> None:
    assert set(NAME.findall(rule["expr"])) <= EXPORTED
    assert NAME.search(rule["expr"])
    assert rule["alert"] in (PROMETHEUS / "alerts_test.yml").read_text()
    assert {"summary", "description"} == rule["annotations"].keys()


def test_the_dashboard_shows_each_metric_but_the_failed_polls() -> None:
    asked = {
        name
        for panel in DASHBOARD["panels"]
        for target in panel.get("targets", ())
        for name in NAME.findall(target["expr"])
    }
    assert asked <= EXPORTED
    shown = {name.removesuffix("_bucket") for name in asked}
    assert {each.name for each in FAMILIES} - shown == {"babelqueue_poll_failures_total"}


def test_panels_of_the_dashboard_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
