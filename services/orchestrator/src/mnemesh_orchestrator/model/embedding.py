"""Embedders as they are listed; recall and archival are who uses them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingModel:
    """A model that turns texts into vectors of `dimension` numbers; `batch_size` texts at once, 0 where any number."""

    handle: str
    provider_type: str
    dimension: int
    batch_size: int
    is_offline: bool
    is_default: bool
    endpoint: str | None = None
    provider_id: str | None = None
