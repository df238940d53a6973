"""Run the notebooks from top to bottom, one after the other in one kernel, and keep what they show."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import nbformat
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parent.parent / "notebooks"
SECONDS = 240
"""That a cell may take."""


@contextmanager
def kernel() -> Iterator[KernelManager]:
    """A Python kernel; its Spark session serves all notebooks."""
    manager = KernelManager(kernel_name="python3")
    try:
        yield manager
    finally:
        if manager.has_kernel:
            manager.shutdown_kernel(now=True)


def run(path: Path, manager: KernelManager) -> nbformat.NotebookNode:
    """A notebook with its outputs, from an empty namespace; `CellExecutionError` where a cell fails."""
    notebook = nbformat.read(path, as_version=4)
    forget = nbformat.v4.new_code_cell("%reset -f")
    notebook.cells.insert(0, forget)
    NotebookClient(notebook, km=manager, timeout=SECONDS).execute()
    notebook.cells.remove(forget)
    for number, cell in enumerate((cell for cell in notebook.cells if cell.cell_type == "code"), 1):
        cell.execution_count = number
        cell.metadata.pop("execution", None)
        cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
        for output in cell.outputs:
            if "execution_count" in output:
                output.execution_count = number
    return notebook


def main() -> None:
    """Run all, and save them."""
    with kernel() as manager:
        for path in sorted(NOTEBOOKS.glob("*.ipynb")):
            nbformat.write(run(path, manager), path)
            print(path.name)


if __name__ == "__main__":
    main()
