"""The Protocols of the stores of processing: claims on files, texts, passages, and removals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from mnemesh_files.model.files import Content, FilePassage, Job, ParsedText


class IngestionStore(Protocol):
    """The claims of workers on files, and what they write.

    A claim lasts until its lease ends; writing does not extend it, `renew` does. Every method with a job raises
    LeaseLost if another claim came later, or the file was deleted or replaced.
    """

    async def claim(self, after: str, until: datetime, max_bytes: int | None = None) -> Job | None:
        """Claims the file that is due longest in the next organization after `after`, in a circle.

        Args:
            after: the organization that was served last.
            until: the end of the lease.
            max_bytes: only files up to this size, whose content is stored.

        Returns:
            The job; None if no file is due.
        """

    async def waiting(self) -> int:
        """Returns the number of files that are due and that no worker has claimed."""

    async def expire_leases(self) -> int:
        """Ends all leases, whose workers are known to be gone; returns their number."""

    async def renew(self, job: Job, until: datetime) -> None:
        """Extends the lease."""

    async def fetched(self, job: Job, content: Content, media_type: str) -> None:
        """Stores the downloaded content of a file, and ends the claim: the file is due to be parsed.

        An equal content that is parsed completes the file.
        """

    async def add_text(self, job: Job, text: ParsedText, passages: Sequence[FilePassage]) -> None:
        """Stores a text and its passages, and makes it the next text of the file.

        If the file has no text, views show it from now on. Written in several transactions; the last one publishes.
        """

    async def text(self, job: Job, text_id: str) -> tuple[str, ...]:
        """Returns the lines of a text."""

    async def passages(self, job: Job) -> Mapping[str, Sequence[FilePassage]]:
        """Returns the passages of all texts of the file, by text, in order."""

    async def embedded(self, job: Job, text_id: str, positions: Sequence[int], until: datetime) -> None:
        """Records that the archive has these passages, and extends the lease."""

    async def complete(self, job: Job, text_id: str) -> None:
        """Makes a text, whose passages are all in the archive, the text of the file.

        Earlier texts are deleted, and the removal of passages that are not part of this one is recorded.
        """

    async def fail(self, job: Job, message: str) -> None:
        """Sets the status ERROR with a message for the owner of the file."""

    async def postpone(self, job: Job, due_at: datetime) -> None:
        """Ends the claim. The file is due again at that time, and the claim does not count as a failure."""


@dataclass(frozen=True, slots=True)
class Removal:
    """The claim of a worker on something that is deleted and has traces left."""

    organization_id: str
    kind: str
    """A RemovalKind of `store.sql.removal_rows`."""
    id: str
    details: Mapping[str, Any]


class RemovalStore(Protocol):
    """What is deleted and still has traces. Removals are idempotent: two workers may do the same one."""

    async def claim(self, until: datetime, limit: int) -> list[Removal]:
        """Returns removals that are due; they are due again at `until` unless `done` or `postpone` is called."""

    async def archive_of(self, organization_id: str, folder_id: str) -> str | None:
        """Returns the archive of a folder; None if the folder is deleted, and the archive with it."""

    async def delete_texts(self, organization_id: str, file_id: str) -> None:
        """Deletes the texts and the records of passages of a file."""

    async def done(self, removal: Removal) -> None:
        """Ends a removal."""

    async def postpone(self, removal: Removal, due_at: datetime) -> None:
        """Makes a removal due at another time."""
