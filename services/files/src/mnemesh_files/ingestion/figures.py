"""The figures of processing."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from mnemesh_kit.metrics import Counter, Gauge, Histogram, Metric


@dataclass(slots=True)
class Measured:
    """One claim."""

    outcome: str = "error"


class IngestionFigures:
    """Counts the claims on files and their duration."""

    def __init__(self) -> None:
        self._running = 0
        self.waiting = 0
        """The number of files that are due, when the worker last looked."""
        self.processed = Counter("mnemesh_files_processed", "Claims on files that ended, by outcome.", ["outcome"])
        self.seconds = Histogram("mnemesh_files_processing_seconds", "Duration of the processing of files.")

    @contextmanager
    def measured(self) -> Iterator[Measured]:
        """Measures the block as one claim, whose outcome it sets."""
        measured, began = Measured(), time.monotonic()
        self._running += 1
        try:
            yield measured
        finally:
            self._running -= 1
            self.processed.inc(measured.outcome)
            self.seconds.observe(time.monotonic() - began)

    def metrics(self) -> Sequence[Metric]:
        """Returns the metrics."""
        running = Gauge("mnemesh_files_processing", "Files that are being processed.", lambda: float(self._running))
        waiting = Gauge("mnemesh_files_waiting", "Files that wait to be processed.", lambda: float(self.waiting))
        return [self.processed, self.seconds, running, waiting]
