"""The conversion between imported lines and their rows."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

import msgspec
import sqlalchemy as sa

from mnemesh_recall.model.traces import ImportedLine, Media

_decode: Final = msgspec.json.Decoder(dict[str, Any]).decode


def line_to_row(line: ImportedLine, agent_id: str) -> dict[str, Any]:
    """Returns the columns of a line."""
    return {
        "message_id": line.message_id,
        "ordinal": line.ordinal,
        "agent_id": agent_id,
        "trace_id": line.trace_id,
        "seq": line.seq,
        "differing": msgspec.json.encode(line.overrides).decode(),
    }


def line_from_row(row: sa.Row[Any]) -> ImportedLine:
    """Returns the line of a row that selects all columns."""
    overrides = _decode(row.differing)
    if overrides.get("media") is not None:
        overrides["media"] = Media(**{name: tuple(urls) for name, urls in overrides["media"].items()})
    if "tags" in overrides:
        overrides["tags"] = tuple(overrides["tags"])
    if "created_at" in overrides:
        overrides["created_at"] = datetime.fromisoformat(overrides["created_at"])
    return ImportedLine(row.message_id, row.ordinal, row.trace_id, row.seq, overrides)
