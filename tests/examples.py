"""How many examples hypothesis draws: a tenth in `make test`, all in `.ci/run` and at night."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import settings

_ALL = "EXAMPLES" in os.environ


def examples(count: int, **more: Any) -> settings:
    """Return settings that draw `count` examples where the variable EXAMPLES is set, else a tenth of them."""
    return settings(max_examples=count if _ALL else max(count // 10, 10), deadline=None, **more)
