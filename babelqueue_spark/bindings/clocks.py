"""The clock of a broker's server, as a process sees it: hosts' own clocks differ, and step."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

logger = logging.getLogger(__name__)

LARGEST_SKEW = 5.0
"""Seconds by which this host's clock may differ from a server's before a warning says so."""

_warned: set[str] = set()
"""Addresses of servers that this process has warned about: it warns once, though each task connects again."""


class ServerClock:
    """Read once a connection, then reckoned by the monotonic clock.

    Args:
        address: what the warning calls the server.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._offset = 0.0

    def read(self, ask: Callable[[], float]) -> None:
        """Take the server's time from `ask`, in seconds since 1970; warn if this host's is far from it."""
        started, host = time.monotonic(), time.time()
        server = ask()
        half = (time.monotonic() - started) / 2
        self._offset = server - (started + half)
        self._compare(host + half - server, uncertain=half)

    def now(self) -> float:
        """Seconds since 1970, by the server's clock."""
        return self._offset + time.monotonic()

    def _compare(self, ahead: float, *, uncertain: float) -> None:
        if abs(ahead) - uncertain <= LARGEST_SKEW or self._address in _warned:
            return
        _warned.add(self._address)
        logger.warning(
            "%s: this host's clock is %.0f s %s the server's: set both by NTP; claims and delays go by the "
            "server's clock, but programs that go by their hosts' may deliver a message twice, or late",
            self._address,
            abs(ahead),
            "ahead of" if ahead > 0 else "behind",
        )
