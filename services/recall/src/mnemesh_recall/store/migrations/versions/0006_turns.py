"""Adds turns, imported trace lines, and the resets of windows."""

import json

import sqlalchemy as sa
from alembic import op
from mnemesh_kit.sql import UtcDateTime

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

EVENTS = ("heartbeat", "login", "system_alert")


def upgrade() -> None:
    op.create_table(
        "turns",
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("turn_index", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("turn_id", sa.Text(), nullable=False),
        sa.Column("organization_id", sa.Text(), nullable=False),
        sa.Column("conversation_id", sa.Text(), nullable=True),
        sa.Column("started_at", UtcDateTime, nullable=False),
        sa.PrimaryKeyConstraint("agent_id", "turn_index"),
        sqlite_with_rowid=False,
    )
    op.create_index("ux_turns_id", "turns", ["agent_id", "turn_id"], unique=True)
    op.create_index("ix_turns_conversation", "turns", ["agent_id", "conversation_id", "turn_index"])
    op.create_table(
        "trace_lines",
        sa.Column("message_id", sa.Text(), nullable=False),
        sa.Column("ordinal", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("trace_id", sa.Text(), nullable=False),
        sa.Column("seq", sa.Integer(), nullable=False),
        sa.Column("differing", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("message_id", "ordinal"),
        sqlite_with_rowid=False,
    )
    op.create_index("ux_trace_lines_id", "trace_lines", ["agent_id", "trace_id"], unique=True)
    op.add_column("agents", sa.Column("last_turn_index", sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("contexts", sa.Column("resets", sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("contexts", sa.Column("reset_at", UtcDateTime, nullable=True))
    op.drop_index("ix_messages_turn_id", "messages")
    given = sa.text("turn_id IS NOT NULL")
    op.create_index(
        "ix_messages_turn_id",
        "messages",
        ["turn_id", "agent_id", "sequence_id"],
        sqlite_where=given,
        postgresql_where=given,
    )
    conn = op.get_bind()
    for agent in conn.execute(sa.text("SELECT agent_id, organization_id FROM agents")).all():
        _place(conn, agent.agent_id, agent.organization_id)


def downgrade() -> None:
    op.drop_index("ix_messages_turn_id", "messages")
    given = sa.text("turn_id IS NOT NULL")
    op.create_index(
        "ix_messages_turn_id", "messages", ["turn_id", "row_id"], sqlite_where=given, postgresql_where=given
    )
    for table, column in (("contexts", "reset_at"), ("contexts", "resets"), ("agents", "last_turn_index")):
        op.drop_column(table, column)
    for table in ("trace_lines", "turns"):
        op.drop_table(table)


def _place(conn: sa.Connection, agent_id: str, organization_id: str) -> None:
    """Assigns the messages of an agent to turns, as if turns existed when they were stored."""
    m = sa.table(
        "messages",
        *(sa.column(name) for name in ("row_id", "agent_id", "sequence_id", "conversation_id", "role", "content")),
        *(sa.column(name) for name in ("tool_calls", "tool_returns", "approval_decisions", "turn_id")),
        sa.column("created_at", UtcDateTime),
    )
    rows = conn.execute(sa.select(m).where(m.c.agent_id == agent_id).order_by(m.c.sequence_id)).all()
    current, calls, turns, places = {}, {}, {}, []
    for row in rows:
        turn = row.turn_id
        if turn is None and row.role not in ("system", "summary"):
            answered = [
                item["tool_call_id"]
                for items in (row.tool_returns, row.approval_decisions)
                for item in json.loads(items or "[]")
            ]
            turn = next((calls[id_] for id_ in answered if id_ in calls), None)
            if turn is None:
                if row.conversation_id not in current or (row.role == "user" and not _is_event(row.content)):
                    current[row.conversation_id] = f"turn_{len(turns) + 1:04d}"
                turn = current[row.conversation_id]
            places.append({"row": row.row_id, "turn": turn})
        if turn is not None:
            turns.setdefault(turn, (row.conversation_id, row.created_at))
            calls.update((call["id"], turn) for call in json.loads(row.tool_calls or "[]"))
    if places:
        conn.execute(sa.text("UPDATE messages SET turn_id = :turn WHERE row_id = :row"), places)
    if turns:
        table = sa.table(
            "turns",
            *(sa.column(name) for name in ("agent_id", "turn_index", "turn_id", "organization_id", "conversation_id")),
            sa.column("started_at", UtcDateTime),
        )
        conn.execute(
            sa.insert(table),
            [
                {
                    "agent_id": agent_id,
                    "turn_index": index,
                    "turn_id": turn,
                    "organization_id": organization_id,
                    "conversation_id": conversation_id,
                    "started_at": started_at,
                }
                for index, (turn, (conversation_id, started_at)) in enumerate(turns.items(), start=1)
            ],
        )
        conn.execute(
            sa.text("UPDATE agents SET last_turn_index = :last WHERE agent_id = :agent"),
            {"last": len(turns), "agent": agent_id},
        )


def _is_event(content: str | None) -> bool:
    texts = [part.get("text", "") for part in json.loads(content or "[]") if part.get("type") == "text"]
    try:
        packed = json.loads("\n".join(texts))
    except ValueError:
        return False
    return isinstance(packed, dict) and packed.get("type") in EVENTS
