"""Shows the returns of failed tools, which earlier releases marked as failed steps (is_err) and hid.

The orchestrator set the mark on tool messages of which every return was an error. The message's text becomes
searchable; the service fills the full-text index when it starts. The content of the steps changes with the mark, so
their fingerprints become unknown.

Revision ID: 0009
Revises: 0008
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any, Final

import sqlalchemy as sa
from alembic import op
from mnemesh_kit.sql import UtcDateTime

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

BATCH: Final = 500
REPEATING_TOOLS: Final = frozenset({"send_message", "conversation_search", "search_memory", "episodic_memory_search"})
"""The tools whose results are not searchable."""

_NAMES = ("row_id", "id", "organization_id", "step_id", "role", "is_err", "tool_returns", "search_text")
messages = sa.table("messages", *(sa.column(name) for name in _NAMES))
outbox = sa.table("index_outbox", sa.column("kind"), sa.column("subject_id"), sa.column("created_at", UtcDateTime))
_m = messages.c


def upgrade() -> None:
    conn = op.get_bind()
    last, is_searchable = 0, False
    while rows := conn.execute(_marked(last)).all():
        last = rows[-1].row_id
        failed = [row for row in rows if _is_error(json.loads(row.tool_returns))]
        for row in failed:
            text = _text(json.loads(row.tool_returns)).casefold() or None
            conn.execute(sa.update(messages).where(_m.row_id == row.row_id).values(is_err=None, search_text=text))
            if text is not None:
                is_searchable = True
                added = {"kind": "message", "subject_id": row.id, "created_at": datetime.now(UTC)}
                conn.execute(sa.insert(outbox), added)
        for row in failed:
            conn.execute(
                sa.text(
                    "UPDATE step_commits SET fingerprint = '' WHERE organization_id = :organization AND step_id = :step"
                ),
                {"organization": row.organization_id, "step": row.step_id},
            )
    if is_searchable:
        conn.execute(sa.text("DELETE FROM message_words"))


def downgrade() -> None:
    """The mark is not restored. An earlier release shows the messages, too."""


def _marked(after: int) -> sa.Select[Any]:
    is_marked = sa.and_(_m.role == "tool", _m.is_err.is_(sa.true()), _m.tool_returns.is_not(None))
    return sa.select(messages).where(is_marked, _m.row_id > after).order_by(_m.row_id).limit(BATCH)


def _is_error(returns: list[dict[str, Any]]) -> bool:
    return all(item.get("status") == "error" for item in returns)


def _text(returns: list[dict[str, Any]]) -> str:
    texts = (_result(item) for item in returns if item.get("name") not in REPEATING_TOOLS)
    return "\n".join(text for text in texts if text).replace("\0", " ").strip()


def _result(item: dict[str, Any]) -> str:
    parts = item.get("content", ())
    text = "\n".join(part["text"] for part in parts if part.get("type") == "text" and part.get("text"))
    try:
        packed = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if not isinstance(packed, dict) or "status" not in packed or "message" not in packed:
        return text
    inner = packed["message"]
    return inner if isinstance(inner, str) else json.dumps(inner, ensure_ascii=False, separators=(",", ":"))
