"""What every server of `engram.recall.v1.MessageService` must do."""

from __future__ import annotations

from engram_testkit.suites.recall.messages import Messages
from engram_testkit.suites.recall.orphans import Orphans
from engram_testkit.suites.recall.searching import Searching
from engram_testkit.suites.recall.steps import Steps
from engram_testkit.suites.recall.windows import Windows

__all__ = ["RecallSuite"]


class RecallSuite(Steps, Windows, Orphans, Messages, Searching):
    """All cases of messages and windows; a subclass brings the `channel` (see `TierSuite`)."""
