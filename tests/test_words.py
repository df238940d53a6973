"""The words of CONTRIBUTING, kept by a machine."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
WORDS = tomllib.loads((ROOT / "tests/words.toml").read_text())
TEXTS = [
    *ROOT.glob("babelqueue_spark/**/*.py"),
    *ROOT.glob("docs/**/*.md"),
    *(ROOT / name for name in ("README.md", "SECURITY.md")),
]


@cache
def prose() -> list[tuple[str, str]]:
    """Each line of what a person reads, with its place."""
    return [(f"{path.relative_to(ROOT)}:{line}", text) for path in TEXTS for line, text in lines(path)]


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """Number and text of each line of a page, or of texts of several words in code."""
    if path.suffix == ".md":
        yield from enumerate(path.read_text().splitlines(), 1)
        return
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield from enumerate(node.value.splitlines(), node.lineno)


@pytest.mark.parametrize(("word", "instead"), WORDS.items())
def test_a_word_is_not_used(word: str, instead: str) -> None:
    pattern = re.compile(word, re.IGNORECASE)
    assert [each for each in prose() if pattern.search(each[1])] == [], f"say {instead}"
