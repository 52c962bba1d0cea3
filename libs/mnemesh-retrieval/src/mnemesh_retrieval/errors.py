"""The errors of embedders and vector indexes; services map them to their own at their edge."""


class RetrievalError(Exception):
    """Anything that an embedder or a vector index refuses or cannot do."""


class EmbedderError(RetrievalError):
    """Embedding failed."""


class EmbedderUnavailable(EmbedderError):
    """The embedder is away, overloaded or timed out; the same call may work later."""


class EmbedderRejected(EmbedderError):
    """The embedder refused this input or this key; the same call fails again."""


class EmbedderMisconfigured(EmbedderError):
    """The handle names no embedder that can be built from the given settings."""


class VectorIndexError(RetrievalError):
    """The vector index refused or failed an operation."""


class IndexLocked(VectorIndexError):
    """Another process holds the index directory."""


class IndexClosed(VectorIndexError):
    """The index was closed, or belongs to the parent of this forked process."""


class CollectionMissing(VectorIndexError):
    """No such collection: `ensure_collection` was not called for it."""


class CollectionMismatch(VectorIndexError):
    """The stored collection has another vector dimension than the one asked for."""


class PointInvalid(VectorIndexError):
    """A point that cannot be stored: wrong dimension, a number that is not finite, text that is not Unicode."""


class IndexUnavailable(VectorIndexError):
    """The server of the vector index is away or too slow; the same call may work later."""
