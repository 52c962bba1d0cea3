"""The Protocol of the store of unfinished uploads."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from mnemesh_kit.idempotency import RequestKey

from mnemesh_files.model.files import Upload, UploadPart


class UploadStore(Protocol):
    """Unfinished uploads and their parts. Methods raise UploadNotFound for one that has ended or expired."""

    async def start(self, organization_id: str, upload: Upload, limit: int, key: RequestKey | None) -> str:
        """Starts an upload; returns its id. Raises TooManyUploads beyond `limit` of the organization."""

    async def get(self, organization_id: str, upload_id: str) -> Upload:
        """Returns an upload."""

    async def parts(self, organization_id: str, upload_id: str) -> Sequence[UploadPart]:
        """Returns the parts, in order."""

    async def append(self, organization_id: str, upload_id: str, part: UploadPart, expires_at: datetime) -> bool:
        """Adds a part that is stored. Returns False if another call has added data at its offset."""

    async def cancel(self, organization_id: str, upload_id: str, key: RequestKey | None) -> None:
        """Ends an upload and releases its parts. One that does not exist is not an error."""

    async def expire(self) -> int:
        """Ends the uploads that have expired; returns their number."""
