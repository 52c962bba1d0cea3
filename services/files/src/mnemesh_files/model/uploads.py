"""Unfinished uploads."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from mnemesh_files.model.files import FileHeader

LIFETIME: Final = timedelta(days=1)
"""How long the data of an upload is kept after the last write."""


@dataclass(frozen=True, slots=True)
class Upload:
    """An upload that can be continued."""

    id: str
    header: FileHeader
    received_bytes: int
    created_at: datetime
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class UploadPart:
    """Data of an upload, in the blob store."""

    blob_id: str
    offset: int
    size_bytes: int
