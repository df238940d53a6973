"""Compute how long a message waits before its retry."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc


@dataclass(frozen=True)
class Backoff:
    """Exponential backoff, as the SDKs compute it: base * multiplier^(n-1) before the n-th retry.

    Attributes:
        base: seconds before the first retry; 0 = no wait.
        multiplier: factor from one wait to the next.
        longest: upper limit of a wait in seconds; 0 = no limit.
        jitter: `full` = a random part of the wait, `none` = all of it.
    """

    base: float = 0.0
    multiplier: float = 1.0
    longest: float = 0.0
    jitter: Literal["none", "full"] = "none"
    random: random.Random = field(default_factory=random.Random, repr=False, compare=False)

    def delays(self, retries: pa.Array) -> pa.DoubleArray:
        """Compute the seconds to wait before each retry.

        `retries`: an integer array, 1 for a message that has failed once.
        """
        exponents = pc.subtract(retries.cast(pa.float64()), 1.0)
        waits = pc.multiply(pc.power(pa.scalar(float(self.multiplier)), exponents), float(self.base))
        if self.longest:
            waits = pc.min_element_wise(waits, float(self.longest))
        if self.jitter == "full":
            waits = pc.multiply(waits, pa.array([self.random.random() for _ in range(len(waits))]))
        return waits
