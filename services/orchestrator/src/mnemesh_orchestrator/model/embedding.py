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


@dataclass(frozen=True, slots=True)
class EmbedderFilter:
    """The conditions of a list of embedding models; a model must meet all that are set."""

    providers: tuple[str, ...] = ()
    handle: str = ""

    def matches(self, model: EmbeddingModel) -> bool:
        """Returns whether a model meets the conditions."""
        provider = model.handle.partition("/")[0]
        return (not self.providers or provider in self.providers) and self.handle in ("", model.handle)
