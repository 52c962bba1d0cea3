"""Checks of stored points that the engine itself does not make."""

from __future__ import annotations

from typing import Final

import numpy as np
import qdrant_edge as qe

from mnemesh_retrieval.edge.schema import DENSE
from mnemesh_retrieval.errors import IndexDamaged

PARTS: Final = "_parts"
"""The payload field with the names of the vectors that a point was written with."""
NORM_TOLERANCE: Final = 0.001


def require_intact(record: qe.Record, tenant_field: str | None) -> None:
    """Raises IndexDamaged if a point has lost its payload or a vector, or if its vector has another length."""
    vectors = record.vector if isinstance(record.vector, dict) else {}
    parts = (record.payload or {}).get(PARTS)
    if parts is None and tenant_field not in (record.payload or {}) and tenant_field is not None:
        raise IndexDamaged(f"point {record.id} has lost its payload")
    if parts is not None and set(parts) - set(vectors):
        raise IndexDamaged(f"point {record.id} has lost a vector")
    dense = vectors.get(DENSE)
    if dense is not None and not abs(float(np.linalg.norm(np.asarray(dense, np.float32))) - 1) < NORM_TOLERANCE:
        raise IndexDamaged(f"the vector of point {record.id} has changed")
