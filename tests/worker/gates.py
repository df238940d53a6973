"""The cases of the conformance suite about a schema version that a property beside the body names."""

from __future__ import annotations

from typing import Any

from tests.envelope.conformance import manifest

STRATEGIES = (None, "fail", "release", "dead_letter")
DROPPED = {"delete-dlq-on-acks", "delete-dlq-off-acks"}
"""The cases that drop a message of a newer version; the connector keeps it."""


def gate_cases(section: str, strategy: str | None) -> list[dict[str, Any]]:
    """Without those of a consumer whose dead letters are off, which ours never are."""
    return [
        case
        for case in manifest()[section]["cases"]
        if case.get("on_unknown_urn") == strategy
        and (case["dead_letter"] == "on" or strategy in ("dead_letter", "delete"))
    ]
