"""The conformance suite of `mnemesh.blocks.v1.BlockService`."""

from __future__ import annotations

from mnemesh_testkit.suites.blocks.conversations import Conversations
from mnemesh_testkit.suites.blocks.history import History
from mnemesh_testkit.suites.blocks.holding import Holding
from mnemesh_testkit.suites.blocks.linking import Linking
from mnemesh_testkit.suites.blocks.listing import Listing
from mnemesh_testkit.suites.blocks.writing import Writing

__all__ = ["BlocksSuite"]


class BlocksSuite(Writing, History, Holding, Linking, Listing, Conversations):
    """All cases of core memory; a subclass brings the `channel` (see `ServiceSuite`)."""
