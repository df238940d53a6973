"""Record what the demo prints, as a picture of a terminal; the tables after the first are left out."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.text import Text

RECORDED = Path(__file__).parent.parent / "docs/assets/demo.svg"
WIDTH = 97
FIRST_TABLE_ENDS = "only showing top 2 rows\n"


def run() -> str:
    """Run the demo in a folder of its own; what it prints."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "babelqueue_spark.jobs", "demo", "--folder", f"{folder}/demo"]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout  # noqa: S603


def shortened(output: str) -> str:
    """Return the output up to the end of the first table of rows, and its last line."""
    head, end, rest = output.partition(FIRST_TABLE_ENDS)
    return f"{head}{end}…\n\n{rest.rstrip().splitlines()[-1]}\n"


def styled(output: str) -> Text:
    """Return the output with the headlines and numbers of a terminal."""
    shown = Text(f"$ babelqueue-spark demo\n{output}")
    shown.highlight_regex(r"(?m)^(\$|\d\.) .*$", "bold")
    shown.highlight_regex(r"(?<=[ =])\d[\d,.]*(?= )", "cyan")
    shown.highlight_regex(r"the sum is right", "bold green")
    return shown


def drawn(output: str) -> str:
    """Return the output as SVG, in fonts that every machine has."""
    console = Console(record=True, width=WIDTH, file=StringIO())
    console.print(styled(output), soft_wrap=True)
    picture = console.export_svg(title="babelqueue-spark demo", unique_id="demo")
    picture = re.sub(r"\s*@font-face \{.*?\}", "", picture, flags=re.S)
    return re.sub(r"[ \t]+$", "", picture.replace("Fira Code, ", ""), flags=re.M)


def main() -> None:
    """Run the demo, and keep what it prints."""
    RECORDED.write_text(drawn(shortened(run())))


if __name__ == "__main__":
    main()
