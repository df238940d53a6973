"""The recipes of docs/lakehouse.md, run as they stand there, with queues and folders of a test."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.servers.jars import LAKEHOUSE, jars
from tests.test_docs import REDIS, ROOT, SKIPPED

NEEDS = "needs Delta Lake and Iceberg"
_PAGE = (ROOT / "docs/lakehouse.md").read_text()
_SESSION, *_RECIPES = [block for reason, block in SKIPPED.findall(_PAGE) if reason == NEEDS]
RECIPES: Mapping[str, str] = {
    re.findall(r"/mnt/streams/(\w+)/journal", block)[0]: block for block in _RECIPES
}
"""By the name of the journal's folder: delta, iceberg, tables, merged."""

SUBMITTED = [
    *("--master", "local[2,4]"),
    *("--conf", "spark.ui.enabled=false"),
    *("--conf", "spark.sql.shuffle.partitions=1"),
    *("--conf", "spark.databricks.delta.snapshotPartitions=1"),
]
"""What a test adds to the session, as arguments of spark-submit."""


def session(folder: Path) -> Any:
    """The page's session, with its jars and its folders under `folder`."""
    own = ",".join(map(str, jars(LAKEHOUSE).glob("*.jar")))
    named = "".join(re.findall(r'"(/opt/jars/.*)"', _SESSION))
    block = re.sub(r'"/opt/jars/.*,"\n\s+', "", _SESSION)
    assert named.count(".jar") == own.count(".jar"), "the page names other jars than the pom"
    return _run(re.sub(r"/opt/jars/[^\"]*", own, block), folder)["spark"]


def start(recipe: str, spark: Any, url: str, queues: Sequence[str], folder: Path, **options: str) -> Any:
    """Start the query of a recipe, with further options of its read."""
    given = {"queue": ",".join(queues), **options}
    named = "".join(f'.option("{name}", "{value}")' for name, value in given.items())
    block = RECIPES[recipe].replace(REDIS, url).replace('.option("queue", "orders")', named)
    return _run(block, folder, spark=spark)["query"]


def _run(block: str, folder: Path, **names: Any) -> dict[str, Any]:
    exec(compile(block.replace("/mnt/", f"{folder}/"), "lakehouse.md", "exec"), names)
    return names
