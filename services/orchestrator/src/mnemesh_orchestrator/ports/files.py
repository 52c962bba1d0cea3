"""The files service, as the orchestrator calls it."""

from collections.abc import Sequence
from typing import Protocol

from mnemesh_orchestrator.model.files import (
    Directories,
    FileHits,
    FileLimits,
    FileMatches,
    ImageFile,
    Opening,
    WindowRequest,
)


class FilesPort(Protocol):
    """The folders of agents and the windows into their files."""

    async def directories(self, agent_id: str, if_revision: int | None = None) -> Directories | None:
        """Returns the folders and files of an agent, or None if `if_revision` is the current revision."""
        ...

    async def create_folder(self, request_id: str, name: str, embedder: str | None = None) -> str:
        """Creates a folder, and returns its id. None is the default embedder of archival."""
        ...

    async def attach(self, request_id: str, agent_id: str, folder_id: str, *, opens_files: bool = False) -> int:
        """Attaches a folder, which opens its files if `opens_files`. Returns the revision of the directories."""
        ...

    async def open(
        self, request_id: str, agent_id: str, windows: Sequence[WindowRequest], *, close_others: bool = False
    ) -> Opening:
        """Opens windows, all or none. The least recently used files beyond the limit are closed."""
        ...

    async def image(self, file_id: str) -> ImageFile | None:
        """Returns the content of an image, or None if models cannot be shown it, by its type or size.

        Raises:
            NotFound: the file was deleted, or replaced by one that is no image.
        """
        ...

    async def grep(
        self, agent_id: str, pattern: str, include: str | None = None, *, context_lines: int = 1, offset: int = 0
    ) -> FileMatches:
        """Returns a page of the lines that match a regular expression in all files of the agent, ignoring case."""
        ...

    async def search(self, agent_id: str, query: str, limit: int) -> FileHits:
        """Searches all files of the agent by meaning and words."""
        ...

    async def set_limits(self, request_id: str, agent_id: str, limits: FileLimits) -> None:
        """Sets the limits of an agent. The least recently used files beyond them are closed."""
        ...

    async def erase_agent(self, request_id: str, agent_id: str) -> None:
        """Erases the agent: detaches its folders, and refuses later writes for it."""
        ...
