"""The errors of embedders, rerankers, vector indexes and the ranking. Services map them to their own errors.

RetrievalError
├── EmbedderError
│   ├── EmbedderUnavailable
│   ├── EmbedderRejected
│   └── EmbedderMisconfigured
├── RerankerError
│   ├── RerankerUnavailable
│   ├── RerankerRejected
│   └── RerankerMisconfigured
└── VectorIndexError
    ├── IndexLocked
    ├── IndexClosed
    ├── IndexUnavailable
    ├── IndexFull
    ├── IndexDamaged
    ├── CollectionMissing
    ├── CollectionMismatch
    └── PointInvalid
"""


class RetrievalError(Exception):
    """The base of the errors of this library."""


class EmbedderError(RetrievalError):
    """Embedding failed."""


class EmbedderUnavailable(EmbedderError):
    """The embedder cannot be reached, is overloaded or timed out; the same call may succeed later."""


class EmbedderRejected(EmbedderError):
    """The embedder refused the input or the key; the same call would fail again."""


class EmbedderMisconfigured(EmbedderError):
    """The handle and the settings do not allow to build an embedder."""


class RerankerError(RetrievalError):
    """Reranking failed."""


class RerankerUnavailable(RerankerError):
    """The reranker cannot be reached, is overloaded or timed out; the same call may succeed later."""


class RerankerRejected(RerankerError):
    """The reranker refused the input or the key; the same call would fail again."""


class RerankerMisconfigured(RerankerError):
    """The handle and the settings do not allow to build a reranker, or its files cannot be loaded."""


class VectorIndexError(RetrievalError):
    """The vector index refused or failed an operation."""


class IndexLocked(VectorIndexError):
    """Another process uses the index directory."""


class IndexClosed(VectorIndexError):
    """The index is closed, or belongs to the parent of this forked process."""


class CollectionMissing(VectorIndexError):
    """The collection is not open: `ensure_collection` was not called for it."""


class CollectionMismatch(VectorIndexError):
    """The stored collection has another vector dimension than the requested one."""


class PointInvalid(VectorIndexError):
    """A point cannot be stored: wrong dimension, a number that is not finite, or text that is not Unicode."""


class IndexUnavailable(VectorIndexError):
    """The server of the vector index cannot be reached or is too slow; the same call may succeed later."""


class IndexFull(VectorIndexError):
    """The disk of the index has less free space than the configured reserve; the same write may succeed later."""


class IndexDamaged(VectorIndexError):
    """Stored files of the index are missing, truncated or altered. `set_aside` moves them out of the way."""
