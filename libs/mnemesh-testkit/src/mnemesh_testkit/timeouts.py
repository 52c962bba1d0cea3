"""Time limits of tests, which a slow machine can extend."""

from __future__ import annotations

import os
from typing import Final

VARIABLE: Final = "TESTKIT_TIMEOUT_FACTOR"
"""The environment variable that multiplies every time limit of a test."""
FACTOR: Final = float(os.environ.get(VARIABLE) or 1)


def scaled(seconds: float) -> float:
    """Returns a time limit for this machine. Limits end tests that hang; no test asserts how long something takes."""
    return seconds * FACTOR
