"""The metrics of an outbox and its index."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mnemesh_kit.metrics import Gauge, Metric

from mnemesh_retrieval.indexing.collections import Collections


def index_metrics(collections: Collections, rows: Callable[[], float], lag: Callable[[], float]) -> Sequence[Metric]:
    """Returns the metrics.

    Args:
        collections: the collections of the index.
        rows: returns the number of changes in the outbox.
        lag: returns the age of the oldest change that is not in the index, in seconds.
    """
    return (
        Gauge("mnemesh_index_outbox_rows", "Changes that the index has not flushed.", rows),
        Gauge("mnemesh_index_outbox_lag_seconds", "Age of the oldest change not in the index.", lag),
        Gauge(
            "mnemesh_index_rebuild_remaining_records",
            "Records that running rebuilds of the index have not reached.",
            collections.remaining,
        ),
        Gauge(
            "mnemesh_index_complete",
            "1 if the index has every record except those of the newest changes, else 0.",
            lambda: float(all(each.available and each.complete for each in collections.all())),
        ),
        collections.rebuilds,
    )
