"""Embedding models as they are listed. Recall and archival use them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingModel:
    """An embedding model.

    `dimension` is the length of its vectors; `batch_size` the texts per request, 0 for no limit.
    """

    handle: str
    provider_type: str
    dimension: int
    batch_size: int
    is_offline: bool
    is_default: bool
    endpoint: str | None = None
    provider_id: str | None = None
