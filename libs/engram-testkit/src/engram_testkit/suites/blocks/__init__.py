"""What every server of `engram.blocks.v1.BlockService` must do."""

from __future__ import annotations

from engram_testkit.suites.blocks.conversations import Conversations
from engram_testkit.suites.blocks.history import History
from engram_testkit.suites.blocks.holding import Holding
from engram_testkit.suites.blocks.listing import Listing
from engram_testkit.suites.blocks.writing import Writing

__all__ = ["BlocksSuite"]


class BlocksSuite(Writing, History, Holding, Listing, Conversations):
    """All cases of core memory; a subclass brings the `channel` (see `TierSuite`)."""
