"""Protocols of the services that the files service calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class AgentsPort(Protocol):
    """The agents of the orchestrator. Calls act for the current principal."""

    async def record_folders(self, agent_id: str, revision: int, *, holds_folders: bool) -> None:
        """Tells the orchestrator whether an agent holds folders, as of a revision of its directories.

        A lower revision than that of an earlier call changes nothing.

        Raises:
            NotFound: there is no such agent.
            FailedPrecondition: the agent is being created.
            Unavailable, DeadlineExceeded: the orchestrator does not answer.
        """
        ...


@dataclass(frozen=True, slots=True)
class FolderArchive:
    """The archive of a folder."""

    id: str
    embedder: str
    """The handle of its embedder, as "provider/model"."""


@dataclass(frozen=True, slots=True)
class NewPassage:
    """A passage to be stored."""

    id: str
    text: str
    position: int
    """The position in the file, from 0."""


class ArchivalPort(Protocol):
    """The archives of folders and the passages of files. All calls act for the current principal.

    Every mutation is idempotent: a repeated call with the same request id has the same result. All methods raise
    Unavailable and DeadlineExceeded.
    """

    async def create_archive(self, request_id: str, name: str, embedder: str) -> FolderArchive:
        """Creates an archive. An empty embedder selects the default. Raises EmbedderUnknown."""

    async def delete_archive(self, request_id: str, archive_id: str) -> None:
        """Deletes an archive with its passages. One that does not exist is not an error."""

    async def delete_passages_of_file(self, archive_id: str, file_id: str) -> int:
        """Deletes all passages of a file; returns their number. Raises ArchiveGone."""

    async def delete_passages(self, archive_id: str, passage_ids: Sequence[str]) -> None:
        """Deletes at most 1000 passages; those that do not exist are ignored. Raises ArchiveGone."""

    async def insert_passages(
        self, request_id: str, archive_id: str, folder_id: str, file: tuple[str, str], passages: Sequence[NewPassage]
    ) -> None:
        """Stores at most 1000 passages of one file, consecutive parts of its text.

        A passage that was stored before by the same request, or is known under its id, is not stored again.

        Args:
            request_id: of this batch.
            archive_id: the archive of the folder.
            folder_id: the folder.
            file: the id and the name of the file.
            passages: the passages.

        Raises:
            ArchiveGone: the archive does not exist.
        """


@dataclass(frozen=True, slots=True)
class FoundPassage:
    """A passage that a search found."""

    id: str
    file_id: str
    text: str
    score: float


@dataclass(frozen=True, slots=True)
class FoundPassages:
    """The result of a search, best first."""

    passages: tuple[FoundPassage, ...] = ()
    degraded: bool = False
    """True if only words were searched, because the embedder did not answer."""


class PassageSearchPort(Protocol):
    """Searches of the passages of files."""

    async def search(
        self, query: str, archive_ids: Sequence[str], file_ids: Sequence[str], limit: int
    ) -> FoundPassages:
        """Returns passages of archives by similarity and words. File ids restrict the search; none search all files.

        Raises:
            Unavailable, DeadlineExceeded: archival does not answer.
        """
        ...


class PictureUnreadable(Exception):
    """The model returned no text for a picture. The message states the cause, as the end of a sentence."""


class PictureReader(Protocol):
    """Turns pictures into text."""

    async def read(self, picture: bytes, media_type: str) -> str:
        """Returns the text in a picture and what it shows, as Markdown.

        Args:
            picture: The file of the picture.
            media_type: Its type: image/png, image/jpeg, image/gif or image/webp.

        Raises:
            PictureUnreadable: The model cannot be reached, refuses the picture, or answers without text.
        """
        ...

    async def close(self) -> None:
        """Closes its connections."""
        ...
