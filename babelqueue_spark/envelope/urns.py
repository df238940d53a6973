"""Match URNs with patterns in which `*` stands for any text, the empty one too."""

from __future__ import annotations


def matches(pattern: str, urn: str) -> bool:
    """Tell whether a URN matches; each part of a pattern is looked for once, from left to right."""
    first, *parts = pattern.split("*")
    if not parts:
        return urn == pattern
    *middle, last = parts
    end = len(urn) - len(last)
    at = len(first)
    if at > end or not (urn.startswith(first) and urn.endswith(last)):
        return False
    for part in middle:
        found = urn.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True


def specificity(pattern: str) -> tuple[bool, int]:
    """Order patterns, best first: exact ones, then those with most characters besides `*`."""
    return "*" in pattern, -len(pattern.replace("*", ""))
