"""The Protocol of the store of what agents hold: folders, windows into files, limits."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.paging import Page, PageQuery

from mnemesh_files.model.agent_files import (
    AgentFileFilter,
    AgentFileOrder,
    Announcement,
    Attachment,
    Directories,
    FileReference,
    FileRequest,
    HeldFile,
    Opening,
)
from mnemesh_files.model.folders import Folder
from mnemesh_files.model.windows import FileLimits


class AgentFileStore(Protocol):
    """The folders of agents and the windows into their files.

    An agent holds every file of its folders, present and future. The revision of its directories increases with every
    change that they show: of the agent, of its folders and of their files. Mutations are atomic, and take effect once
    per key; a repeat returns the first result. Mutations of an agent that was erased raise AgentErased.
    """

    async def attach(
        self, organization_id: str, agent_id: str, folder_id: str, key: RequestKey | None, *, opens_files: bool
    ) -> Attachment:
        """Attaches a folder, unless it is attached.

        With `opens_files`, its ready files are opened, and from now on each other file in the transaction that makes it
        ready. A file into which the agent has a window is not opened.

        Raises:
            FolderNotFound: the folder does not exist.
            ResourceExhausted: the agent holds as many folders as it can.
        """
        ...

    async def detach(self, organization_id: str, agent_id: str, folder_id: str, key: RequestKey | None) -> Attachment:
        """Detaches a folder, and forgets the windows into its files. Raises FolderNotHeld."""
        ...

    async def list_folders(
        self, organization_id: str, agent_id: str, page: PageQuery, *, by_name: bool
    ) -> Page[Folder]:
        """Returns a page of the folders of an agent, by time of attachment or by name."""
        ...

    async def list_files(
        self, organization_id: str, agent_id: str, filter_: AgentFileFilter, page: PageQuery, order: AgentFileOrder
    ) -> Page[HeldFile]:
        """Returns a page of the files of an agent. Files that were never used come last in the order of use."""
        ...

    async def all_files(self, organization_id: str, agent_id: str) -> list[HeldFile]:
        """Returns all files of an agent, by name."""
        ...

    async def held(self, organization_id: str, agent_id: str, file_ids: Sequence[str]) -> dict[str, HeldFile]:
        """Returns those of the files that the agent holds, by id."""
        ...

    async def archives(self, organization_id: str, agent_id: str, folder_ids: Collection[str]) -> list[str]:
        """Returns the ids of the archives of those of the folders that the agent holds."""
        ...

    async def open_files(
        self,
        organization_id: str,
        agent_id: str,
        requests: Sequence[FileRequest],
        key: RequestKey | None,
        *,
        close_others: bool,
    ) -> Opening:
        """Opens windows, all or none, and closes other files: all, or the least recently used beyond the limit.

        Raises:
            InvalidArgument: there are no requests, more than the limit, two for one file, or an invalid window.
            FileNotHeld: the agent does not hold a file, or several have the name.
            FileNotParsed: a file cannot be opened yet.
        """
        ...

    async def close_files(
        self, organization_id: str, agent_id: str, files: Sequence[FileReference] | None, key: RequestKey | None
    ) -> tuple[tuple[str, ...], int]:
        """Closes files; None closes all. Returns the names of those that were open, and the revision.

        Raises:
            FileNotHeld: the agent does not hold a file, or several have the name.
        """
        ...

    async def use(self, organization_id: str, agent_id: str, file_ids: Sequence[str]) -> None:
        """Records that files were used, the last one most recently. Files that the agent does not hold are ignored."""
        ...

    async def set_limits(
        self, organization_id: str, agent_id: str, limits: FileLimits | None, key: RequestKey | None
    ) -> tuple[FileLimits, tuple[str, ...], int]:
        """Sets or removes the limits of an agent.

        Returns the limits in effect, the names of the files that were closed, and the revision.
        """
        ...

    async def limits(self, organization_id: str, agent_id: str) -> FileLimits:
        """Returns the limits in effect."""
        ...

    async def directories(
        self, organization_id: str, agent_id: str, if_revision: int | None = None
    ) -> Directories | None:
        """Returns the folders and files of an agent as one consistent read; None at `if_revision`."""
        ...

    async def holders(self, organization_id: str, folder_id: str, page: PageQuery) -> Page[str]:
        """Returns a page of the ids of the agents that hold a folder. Raises FolderNotFound."""
        ...

    async def erase(self, organization_id: str, agent_id: str, key: RequestKey | None) -> tuple[int, int]:
        """Writes a tombstone, and detaches all folders. Returns the numbers of folders and files."""
        ...


class AnnouncementStore(Protocol):
    """What the orchestrator is to be told about agents: that they hold folders now, or hold none any more."""

    async def due_announcements(self, limit: int) -> list[Announcement]:
        """Returns what the orchestrator is to be told now, oldest first."""
        ...

    async def announcement(self, organization_id: str, agent_id: str) -> Announcement | None:
        """Returns what the orchestrator is to be told about an agent; None if it knows."""
        ...

    async def announced(self, announcement: Announcement, *, at: datetime | None) -> None:
        """Records that the orchestrator was told, with `at` None, or that it is to be told again then."""
        ...


@dataclass(frozen=True, slots=True)
class PassageLines:
    """The place of a passage in the text of its file."""

    file_id: str
    start_line: int
    end_line: int


class TextStore(Protocol):
    """The texts of files, in compressed segments of consecutive lines, and the places of their passages."""

    async def lines(
        self, organization_id: str, file_id: str, text_id: str, first: int, last: int, max_chars: int
    ) -> list[str] | None:
        """Returns lines from `first` to `last`, from 1, or as many of them as exceed `max_chars`; None without text."""
        ...

    async def compressed(
        self, organization_id: str, texts: Sequence[tuple[str, str]]
    ) -> dict[tuple[str, str], list[bytes]]:
        """Returns the compressed segments of texts by file id and text id, each in order."""
        ...

    async def passage_lines(self, organization_id: str, passage_ids: Sequence[str]) -> dict[str, PassageLines]:
        """Returns the places of passages in the texts that views show. Passages of other texts are left out."""
        ...
