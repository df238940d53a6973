"""The containers, as far as can be told without an engine: schema, health, versions, ports, what is copied."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from shutil import which
from typing import Any

import pytest
import yaml

from babelqueue_spark.bindings.registry import BINDINGS

DOCKER = Path(__file__).parent.parent / "docker"
FILES = sorted(DOCKER.glob("*.yaml"))
SERVICES = [
    pytest.param(service, id=name)
    for file in FILES
    for name, service in yaml.safe_load(file.read_text())["services"].items()
]
SERVERS = [each for each in SERVICES if "build" not in each.values[0]]


def knows_compose() -> bool:
    """Whether this machine's Docker client can read compose files, for which it needs no engine."""
    command = ["docker", "compose", "version"]
    return (
        which("docker") is not None
        and subprocess.run(command, capture_output=True, check=False).returncode == 0
    )


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_compose_reads_it(file: Path) -> None:
    """By its own client where there is one, by its schema elsewhere."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(file)]
    if knows_compose():
        command = ["docker", "compose", "--file", str(file), "config", "--quiet"]
    environment = os.environ | dict.fromkeys(re.findall(r"\$\{(\w+)", file.read_text()), "example")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("service", SERVERS)
def test_versions_are_pinned_and_ports_on_the_loopback_interface(service: dict[str, Any]) -> None:
    assert re.fullmatch(r"v?\d+\.\d+\.?\d*(-management)?|2022-CU\d+-.+", service["image"].rpartition(":")[2])
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))


def test_no_port_is_taken_twice() -> None:
    ports = [port.split(":")[1] for each in SERVERS for port in each.values[0].get("ports", [])]
    assert len(ports) == len(set(ports))


def test_servers_have_health_checks() -> None:
    without = {each.id for each in SERVERS if "healthcheck" not in each.values[0]}
    assert without == {"servicebus"}  # its image has no shell and no client to ask with


def test_the_image_installs_extras_that_are_there() -> None:
    project = tomllib.loads((DOCKER.parent / "pyproject.toml").read_text())["project"]
    extras = (DOCKER / "Dockerfile").read_text().partition("/source[")[2].partition("]")[0].split(",")
    assert set(extras) <= set(project["optional-dependencies"])
    assert "all" in extras
    [everything] = project["optional-dependencies"]["all"]
    brought = everything.partition("[")[2].rstrip("]").split(",")
    assert {entry.extra for entry in BINDINGS.values()} - set(brought) == {"sql"}  # part of postgresql


def test_the_queues_of_the_emulator() -> None:
    [namespace] = json.loads((DOCKER / "servicebus.json").read_text())["UserConfig"]["Namespaces"]
    assert [queue["Name"] for queue in namespace["Queues"]] == ["orders", "orders.dlq"]
