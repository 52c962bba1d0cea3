"""The conformance suite of `mnemesh.archival.v1`."""

from mnemesh_testkit.suites.archival.archives import Archives, Reembedding
from mnemesh_testkit.suites.archival.passages import GivenVectors, Passages
from mnemesh_testkit.suites.archival.search import Asking, Embedding, Finding

__all__ = ["ArchivalSuite"]


class ArchivalSuite(Archives, Passages, Finding, Reembedding, Embedding, GivenVectors, Asking):
    """All cases of archives, passages and vectors of texts; a subclass brings the `channel` (see `ServiceSuite`).

    The server's default embedder is `mnemesh/hashing-256`, and it knows `mnemesh/wordllama-256`.
    """
