"""The conformance suite of `mnemesh.blocks.v1.BlockService`."""

from mnemesh_testkit.suites.blocks.blocks import History, Listing, Writing
from mnemesh_testkit.suites.blocks.conversations import Conversations
from mnemesh_testkit.suites.blocks.core_memory import Holding, Linking

__all__ = ["BlocksSuite"]


class BlocksSuite(Writing, History, Holding, Linking, Listing, Conversations):
    """All cases of core memory; a subclass brings the `channel` (see `ServiceSuite`)."""
