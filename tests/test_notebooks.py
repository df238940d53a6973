"""The notebooks run from top to bottom, on a queue in a file, and show what they show as committed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest

from scripts.run_notebooks import NOTEBOOKS, run

PATHS = sorted(NOTEBOOKS.glob("*.ipynb"))
NOTEBOOK_PARAMS = [
    path if path.stem == "1-quickstart" else pytest.param(path, marks=pytest.mark.nightly, id=path.stem)
    for path in PATHS
]
"""The first always, the others at night."""
LARGEST = 200_000
"""Bytes of a notebook that a code host still shows at once."""

SAYS = {
    "1-quickstart": "left in the queue: 0",
    "2-dead-letters": "moved 360",
    "4-throughput": "5 batches of {4000} messages",
    "5-databricks": "100 rows",
    "6-exchange": "replayed {'articles': 3}",
    "7-catalog": "urn_babel_orders_created: 398 rows",
}
"""Texts that depend on nothing."""

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("default::DeprecationWarning")]


def kinds(notebook: Any) -> list[list[str]]:
    """Of each cell, what kinds of output it has."""
    cells = (cell for cell in notebook.cells if cell.cell_type == "code")
    return [
        sorted({kind for each in cell.outputs for kind in each.get("data", {"text": 0})}) for cell in cells
    ]


def shown(notebook: Any) -> str:
    """The texts that it shows."""
    outputs = [each for cell in notebook.cells if cell.cell_type == "code" for each in cell.outputs]
    return "".join(each.get("text", "") or each.get("data", {}).get("text/plain", "") for each in outputs)


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOK_PARAMS, ids=lambda path: path.stem)
def test_a_notebook(path: Path) -> None:
    committed = nbformat.read(path, as_version=4)
    found = run(path)
    assert kinds(found) == kinds(committed)
    assert SAYS.get(path.stem, "") in shown(found)
    assert SAYS.get(path.stem, "") in shown(committed)
    assert path.stat().st_size < LARGEST


def test_databricks_lets_no_table_lie_in_a_volume() -> None:
    notebook = nbformat.read(NOTEBOOKS / "5-databricks.ipynb", as_version=4)
    writes = [cell.source for cell in notebook.cells if ".toTable(" in cell.source]
    assert writes
    assert not any('"path"' in source for source in writes)
