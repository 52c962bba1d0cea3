"""Time limits of tests, which a slow machine can extend."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

VARIABLE: Final = "TESTKIT_TIMEOUT_FACTOR"
"""The environment variable that multiplies every time limit of a test."""
FACTOR: Final = float(os.environ.get(VARIABLE) or 1)


def scaled(seconds: float) -> float:
    """Returns a time limit for this machine. Limits end tests that hang; no test asserts how long something takes."""
    return seconds * FACTOR


def growing(first: float) -> Iterator[float]:
    """Yields longer and longer limits: for a test whose limit must end something that has begun, on any machine.

    Raises:
        AssertionError: A limit of a minute was too short.
    """
    limit = first
    while limit < scaled(60):
        yield limit
        limit *= 4
    raise AssertionError(f"nothing began within {limit / 4:g} seconds")
