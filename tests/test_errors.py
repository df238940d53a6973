"""The tree of errors: what programs catch, and what the troubleshooting page is ordered by."""

from __future__ import annotations

import inspect
import pickle
import re
from pathlib import Path

import pytest

from babelqueue_spark import errors

PAGE = Path(__file__).parent.parent / "docs/troubleshooting.md"
CLASSES = [kind for _, kind in inspect.getmembers(errors, inspect.isclass)]


@pytest.mark.parametrize("kind", CLASSES)
def test_an_error_begins_with_its_condition(kind: type[errors.BabelQueueError]) -> None:
    error = kind("what to do")
    assert str(error) == f"[{kind.condition}] what to do"
    assert error.text == "what to do"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_only_the_end_of_a_log_shares_the_condition_of_its_base() -> None:
    shared = [kind for kind in CLASSES if "condition" not in vars(kind)]
    assert shared == [errors.LogEndedError]
    conditions = [kind.condition for kind in CLASSES if kind not in shared]
    assert len(set(conditions)) == len(conditions)


def test_the_troubleshooting_page_has_each_condition_and_its_class() -> None:
    sections = re.findall(r"^## (BABELQUEUE_\w+)\n\n`(\w+)`", PAGE.read_text(), re.M)
    assert dict(sections) == {kind.condition: kind.__name__ for kind in CLASSES if "condition" in vars(kind)}


def test_the_tree_in_the_docstring_is_the_tree_of_the_classes() -> None:
    assert errors.__doc__ is not None
    drawn = re.findall(r"^ {4}([│├└─ ]*)(\w+Error)", errors.__doc__, re.M)
    assert {name for _, name in drawn} == {kind.__name__ for kind in CLASSES}
    above: dict[int, str] = {}
    for lines, name in drawn:
        depth = len(lines) // 4
        above[depth] = name
        if depth:
            assert getattr(errors, name).__bases__[0].__name__ == above[depth - 1]
