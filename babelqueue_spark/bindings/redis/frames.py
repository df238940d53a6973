"""The frame in which the SDKs keep headers beside a body, in one element of a Redis list."""

from __future__ import annotations

import json
from collections.abc import Mapping

SENTINEL = b'"__bq_frame"'


def frame(body: bytes, headers: Mapping[str, str]) -> bytes:
    """Return the stored form of a body: itself, or a frame when a header has a name and a value."""
    kept = _usable(headers)
    if not kept:
        return body
    text = body.decode("utf-8", "surrogateescape")
    framed = json.dumps(
        {"__bq_frame": 1, "headers": kept, "body": text}, ensure_ascii=False, separators=(",", ":")
    )
    return framed.encode("utf-8", "surrogateescape")


def unframe(stored: bytes) -> tuple[bytes, dict[str, str]]:
    """Body and headers of a stored element; what is not a frame is a body as it stands."""
    bare: tuple[bytes, dict[str, str]] = stored, {}
    if not stored.startswith(b"{") or SENTINEL not in stored:
        return bare
    try:
        match json.loads(stored.decode("utf-8", "surrogateescape")):
            case {"__bq_frame": version, "body": str(body), **others} if version:
                headers = others.get("headers")
                usable = _usable(headers) if isinstance(headers, dict) else {}
                return body.encode("utf-8", "surrogateescape"), usable
    except (ValueError, RecursionError):
        pass
    return bare


def _usable(headers: Mapping[str, object]) -> dict[str, str]:
    return {_text(name): _text(value) for name, value in headers.items() if name and value not in (None, "")}


def _text(value: object) -> str:
    """Return a value as text that UTF-8 can carry."""
    return str(value).encode("utf-8", "backslashreplace").decode()
