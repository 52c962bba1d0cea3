"""The conformance suite of `mnemesh.recall.v1.MessageService`."""

from mnemesh_testkit.suites.recall.messages import Messages, Steps, UnansweredCalls, Windows
from mnemesh_testkit.suites.recall.search import Asking, Ranking, Searching

__all__ = ["RecallSuite"]


class RecallSuite(Steps, Windows, UnansweredCalls, Messages, Searching, Ranking, Asking):
    """All cases of messages and windows; a subclass brings the `channel` (see `ServiceSuite`)."""
