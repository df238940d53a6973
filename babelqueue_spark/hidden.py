"""Values that came by reference (`env:NAME`, `file:/path`): errors show the reference instead."""

from __future__ import annotations

import re
from urllib.parse import unquote, urlsplit

_SHORTEST = 4
_HARMLESS = re.compile(r"[\d.,\s]{0,7}(ms|s|m|min|h|d|[kmgt]i?b?)?|true|false|none|null", re.IGNORECASE)

_hidden: dict[str, str] = {}


def hide(value: str, reference: str) -> None:
    """Show `reference` in place of a value from now on, and of the password in it if it is a URL.

    Short numbers, times, sizes and texts of less than four characters stay: they tell nothing.
    """
    for part in (value, *_passwords(value)):
        if len(part) >= _SHORTEST and not _HARMLESS.fullmatch(part):
            _hidden[part] = reference


def without_hidden(text: str) -> str:
    """The text with references in place of what is hidden."""
    for value in sorted(_hidden, key=len, reverse=True):
        text = text.replace(value, _hidden[value])
    return text


def _passwords(value: str) -> list[str]:
    try:
        password = urlsplit(value).password or ""
    except ValueError:
        return []
    return [password, unquote(password)]
