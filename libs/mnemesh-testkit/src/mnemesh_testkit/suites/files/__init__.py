"""The conformance suite of the files service."""

from mnemesh_testkit.suites.files.agent_files import AgentFolders, FileSearches, Openings, Windows
from mnemesh_testkit.suites.files.uploads import Duplicates, Folders, Processing, Resuming, Uploads

__all__ = ["AgentFilesSuite", "FilesSuite"]


class FilesSuite(Folders, Uploads, Duplicates, Processing, Resuming):
    """All cases of the files service; a subclass brings the `channel` (see `ServiceSuite`)."""


class AgentFilesSuite(AgentFolders, Windows, Openings, FileSearches):
    """All cases of agents; a subclass also brings the fixture `parsed` (see `suites.files.agent_calls`)."""
