"""The conformance suite of `mnemesh.archival.v1`."""

from __future__ import annotations

from mnemesh_testkit.suites.archival.archives import Archives
from mnemesh_testkit.suites.archival.asking import Asking
from mnemesh_testkit.suites.archival.embedding import Embedding
from mnemesh_testkit.suites.archival.finding import Finding
from mnemesh_testkit.suites.archival.given_vectors import GivenVectors
from mnemesh_testkit.suites.archival.passages import Passages
from mnemesh_testkit.suites.archival.reembedding import Reembedding

__all__ = ["ArchivalSuite"]


class ArchivalSuite(Archives, Passages, Finding, Reembedding, Embedding, GivenVectors, Asking):
    """All cases of archives, passages and vectors of texts; a subclass brings the `channel` (see `ServiceSuite`).

    The server's default embedder is `mnemesh/hashing-256`, and it knows `mnemesh/wordllama-256`.
    """
