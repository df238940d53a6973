"""The notebooks run from top to bottom, on a queue in a file, and show what they show as committed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyter_client.manager import KernelManager

from scripts.run_notebooks import NOTEBOOKS, kernel, run

PATHS = sorted(NOTEBOOKS.glob("*.ipynb"))
LARGEST = 200_000
"""Bytes of a notebook that a code host still shows at once."""

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("default::DeprecationWarning")]


@pytest.fixture(scope="module")
def manager() -> Iterator[KernelManager]:
    with kernel() as manager:
        yield manager


def kinds(notebook: Any) -> list[list[str]]:
    """Of each cell, what kinds of output it has."""
    cells = (cell for cell in notebook.cells if cell.cell_type == "code")
    return [
        sorted({kind for each in cell.outputs for kind in each.get("data", {"text": 0})}) for cell in cells
    ]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_notebook(path: Path, manager: KernelManager) -> None:
    committed = nbformat.read(path, as_version=4)
    assert kinds(run(path, manager)) == kinds(committed)
    assert path.stat().st_size < LARGEST


def test_texts_that_depend_on_nothing_are_as_committed() -> None:
    texts = "".join(path.read_text() for path in PATHS)
    for said in ("left in the queue: 0", "moved 360", "5 batches of {4000} messages", "100 rows"):
        assert said in texts
