"""Between imported lines and their rows."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

import msgspec
import sqlalchemy as sa

from mnemesh_recall.model.traces import Line, Media

_decode: Final = msgspec.json.Decoder(dict[str, Any]).decode


def line_row(line: Line, agent_id: str) -> dict[str, Any]:
    """The columns of a line."""
    return {
        "message_id": line.message_id,
        "ordinal": line.ordinal,
        "agent_id": agent_id,
        "trace_id": line.trace_id,
        "seq": line.seq,
        "differing": msgspec.json.encode(line.differing).decode(),
    }


def to_line(row: sa.Row[Any]) -> Line:
    """The line of a row that selects all columns."""
    differing = _decode(row.differing)
    if differing.get("media") is not None:
        differing["media"] = Media(**{name: tuple(urls) for name, urls in differing["media"].items()})
    if "tags" in differing:
        differing["tags"] = tuple(differing["tags"])
    if "created_at" in differing:
        differing["created_at"] = datetime.fromisoformat(differing["created_at"])
    return Line(row.message_id, row.ordinal, row.trace_id, row.seq, differing)
