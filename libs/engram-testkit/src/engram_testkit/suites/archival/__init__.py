"""What every server of `engram.archival.v1` must do."""

from __future__ import annotations

from engram_testkit.suites.archival.archives import Archives
from engram_testkit.suites.archival.finding import Finding
from engram_testkit.suites.archival.passages import Passages
from engram_testkit.suites.archival.reembedding import Reembedding

__all__ = ["ArchivalSuite"]


class ArchivalSuite(Archives, Passages, Finding, Reembedding):
    """All cases of archives and passages; a subclass brings the `channel` (see `TierSuite`).

    The server's default embedder is `engram/hashing-256`, and it knows `engram/wordllama-256`.
    """
