"""Times of repeated calls."""

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from benchmarks.measurement import percentiles


async def timed(call: Callable[[], Awaitable[Any]]) -> float:
    """Returns the duration of a call in milliseconds."""
    began = time.perf_counter()
    await call()
    return (time.perf_counter() - began) * 1000


def figures(milliseconds: Sequence[float]) -> dict[str, float]:
    """Returns the median and the 95th percentile."""
    p50, p95 = percentiles(milliseconds)
    return {"p50_ms": round(p50, 2), "p95_ms": round(p95, 2)}
