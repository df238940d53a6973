"""What errors about options advise."""

from __future__ import annotations

import difflib

from babelqueue_spark.bindings import brokers, known_schemes

_OF_SPARKS_KAFKA = {"subscribe": "queue", "topic": "queue", "maxoffsetspertrigger": "maxMessagesPerTrigger"}
"""Option of Spark's own Kafka connector → ours."""


def no_broker(url: str) -> str:
    """Say what a URL lacks, and show nothing of it but its scheme."""
    scheme, colon, _ = url.partition("://")
    if not colon:
        return "option 'url' has no scheme: begin it with that of its broker, as in redis://host:6379"
    nearest = difflib.get_close_matches(scheme.lower(), known_schemes(), n=1)
    hint = f"did you mean {nearest[0]}://?" if nearest else ""
    advice = hint or f"set option 'broker' to one of {', '.join(brokers())}"
    return f"the scheme of 'url' names no broker: {advice}"


def unknown(key: str, broker: str, names: list[str]) -> str:
    """Say that an option is unknown, and which of `names` was meant."""
    nearest = _nearest(key, broker, names)
    hint = f": did you mean '{nearest}'?" if nearest else f": known are {', '.join(names)}"
    return f"option '{key}' is unknown{hint} (the client's own options are given as '{broker}.<name>')"


def _nearest(key: str, broker: str, names: list[str]) -> str | None:
    """Return the option that was meant; names with underscores are those of clients."""
    spelt = {name.lower(): name for name in names}
    plain = key.replace("_", "")
    if key in _OF_SPARKS_KAFKA or plain in spelt:
        return _OF_SPARKS_KAFKA.get(key) or spelt[plain]
    if "_" in key and "." not in key:
        return f"{broker}.{key}"
    nearest = difflib.get_close_matches(key, spelt, n=1, cutoff=0.5)
    return spelt[nearest[0]] if nearest else None
