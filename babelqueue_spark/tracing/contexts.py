"""The trace context that a message without `traceparent` has by the rule of the SDKs, and those made here."""

import hashlib

TRACEPARENT = "traceparent"

_SAMPLED = "01"


def derived(trace_id: str) -> str:
    """Return the `traceparent` of the parent that each SDK derives from an envelope's `trace_id`."""
    return f"00-{trace_id_of(trace_id):032x}-{span_id_of(trace_id):016x}-{_SAMPLED}"


def trace_id_of(trace_id: str) -> int:
    """Return the 128 bits of a UUID, a digest of any other text; never 0."""
    digits = trace_id.replace("-", "")
    if len(digits) == 32:
        try:
            number = int.from_bytes(bytes.fromhex(digits), "big")
        except ValueError:
            number = 0
        if number:
            return number
    return _digest(trace_id, 16)


def span_id_of(trace_id: str) -> int:
    """Return the 64 bits of the span that stands for whoever began the trace; never 0."""
    return _digest(f"babelqueue-span:{trace_id}", 8)


def sent(parent: str, queue: str, message_id: str) -> str:
    """Return the `traceparent` of a message below its `parent`: the same each time that it is published."""
    version, trace_id, _, flags = parent.split("-")
    span_id = _digest(f"babelqueue-send:{queue}:{message_id}", 8)
    return f"{version}-{trace_id}-{span_id:016x}-{flags}"


def _digest(text: str, size: int) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:size], "big") or 1
