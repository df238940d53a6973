"""What was measured, where and with what, as JSON: `docs/bench.json` has the figures of record."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench.table import Row

ROOT = Path(__file__).parent.parent
OF_RECORD = ROOT / "docs" / "bench.json"
RUNS = ROOT / "build" / "bench"

LIBRARIES = ["pyspark", "pyarrow", "numpy", "msgspec", "babelqueue"]
#: The client of each module's broker, and its server: a Debian package, or a pom of tests/servers/poms.
CLIENTS = {
    "redis": ["redis", "hiredis"],
    "tables": ["redis", "hiredis"],
    "worker": ["redis", "hiredis", "pika"],
    "memory": ["redis", "hiredis"],
    "kafka": ["confluent-kafka", "redis", "hiredis"],
    "rabbitmq": ["pika"],
    "sql": ["sqlalchemy", "psycopg", "pymysql"],
    "schedule": ["sqlalchemy", "psycopg", "pymysql"],
    "sqs": ["boto3"],
    "pulsar": ["pulsar-client"],
    "artemis": ["python-qpid-proton"],
    "servicebus": ["azure-servicebus"],
}
SERVERS = {
    "redis": ["redis-server"],
    "tables": ["redis-server"],
    "worker": ["redis-server", "rabbitmq-server"],
    "memory": ["redis-server"],
    "kafka": ["kafka", "spark-kafka", "redis-server"],
    "rabbitmq": ["rabbitmq-server"],
    "sql": ["postgresql", "mariadb-server"],
    "schedule": ["postgresql", "mariadb-server"],
    "sqs": ["elasticmq"],
    "pulsar": ["pulsar"],
    "artemis": ["artemis"],
}


def keep(module: str, rows: list[Row], seconds: float) -> list[Path]:
    """Write a module's rows into the figures of record and into those of this commit; others stay.

    Returns:
        The two files.
    """
    entry = {
        "measured": datetime.now(UTC).date().isoformat(),
        "commit": commit(),
        "seconds": round(seconds),
        "machine": machine(),
        "versions": versions(module),
        "rows": [rounded(each) for each in rows],
    }
    files = [OF_RECORD, RUNS / f"{entry['commit']}.json"]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        found = {**recorded(file), module: entry}
        file.write_text(json.dumps(dict(sorted(found.items())), indent=1, ensure_ascii=False) + "\n")
    return files


def recorded(file: Path = OF_RECORD) -> dict[str, Any]:
    """What a file has, by module."""
    found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    return found


def rounded(row: Row) -> dict[str, Any]:
    """A row of figures with four digits that count: the others are noise."""
    return {key: _rounded(value) for key, value in row.items()}


def _rounded(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_rounded(each) for each in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def commit() -> str:
    """The commit that is measured, `-dirty` where the code differs from it."""
    name = _git("rev-parse", "--short", "HEAD")
    changed = _git("status", "--porcelain", "--", "babelqueue_spark", "bench")
    return f"{name}-dirty" if changed else name or "unknown"


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def machine() -> dict[str, Any]:
    """Cores, processor and memory; nothing that names the host."""
    model = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.M)
    gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {"cores": os.cpu_count(), "cpu": model[1] if model else platform.machine(), "gib": round(gib, 1)}


def versions(module: str) -> dict[str, str]:
    """Python, Java, the libraries that each module uses, and its broker's client and server."""
    libraries = [*LIBRARIES, *CLIENTS.get(module, [])]
    return {
        "python": platform.python_version(),
        "java": _java(),
        **{name: version(name) for name in libraries},
        **{f"server {name}": _server(name) for name in SERVERS.get(module, [])},
    }


def _java() -> str:
    told = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "([^"]+)"', told)
    return found[1] if found else "unknown"


def _server(name: str) -> str:
    pom = ROOT / "tests" / "servers" / "poms" / f"{name}.xml"
    if pom.exists():
        return re.findall(r"<dependency>.*?<version>([^<]+)<", pom.read_text(), re.S)[0]
    if not shutil.which("dpkg-query"):
        return "unknown"
    query = ["dpkg-query", "-W", "-f", "${Version}", name]
    return subprocess.run(query, capture_output=True, text=True, check=False).stdout or "unknown"
