"""The Protocol of the archival service, as far as the files service needs it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


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
