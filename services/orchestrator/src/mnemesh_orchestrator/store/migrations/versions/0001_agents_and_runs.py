"""Agents, conversations, runs with their journal and events, and the ledger of requests."""

import sqlalchemy as sa
from alembic import op
from mnemesh_kit.sql import UtcDateTime

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    _create_agents()
    _create_request_ledger()
    _create_runs()
    _create_agent_tags()
    _create_conversations()
    _create_events()
    _create_journal()
    _create_run_otids()
    _create_steps()


def downgrade() -> None:
    for table in (
        "steps",
        "run_otids",
        "journal",
        "events",
        "conversations",
        "agent_tags",
        "runs",
        "request_ledger",
        "agents",
    ):
        op.drop_table(table)


def _create_agents() -> None:
    op.create_table(
        "agents",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("organization_id", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("type", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("hidden", sa.Boolean, nullable=False),
        sa.Column("document", sa.LargeBinary, nullable=False),
        sa.Column("creation", sa.LargeBinary),
        sa.Column("last_stop_reason", sa.Text),
        sa.Column("last_run_completed_at", UtcDateTime),
        sa.Column("last_run_ms", sa.Integer),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.Column("updated_at", UtcDateTime, nullable=False),
    )
    op.create_index("agents_by_creation", "agents", ["organization_id", "created_at", "id"])
    op.create_index("agents_by_state", "agents", ["state"])


def _create_request_ledger() -> None:
    op.create_table(
        "request_ledger",
        sa.Column("organization_id", sa.Text, primary_key=True),
        sa.Column("method", sa.Text, primary_key=True),
        sa.Column("request_id", sa.Text, primary_key=True),
        sa.Column("fingerprint", sa.Text, nullable=False),
        sa.Column("result_ids", sa.Text, nullable=False),
        sa.Column("created_at", UtcDateTime, nullable=False),
    )
    op.create_index("ix_request_ledger_created_at", "request_ledger", ["created_at"])


def _create_runs() -> None:
    op.create_table(
        "runs",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("organization_id", sa.Text, nullable=False),
        sa.Column("subject_id", sa.Text, nullable=False),
        sa.Column("agent_id", sa.Text, nullable=False),
        sa.Column("conversation_id", sa.Text, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("stop_reason", sa.Text),
        sa.Column("background", sa.Boolean, nullable=False),
        sa.Column("queue_number", sa.BigInteger, nullable=False),
        sa.Column("request_method", sa.Text),
        sa.Column("request_id", sa.Text),
        sa.Column("request_fingerprint", sa.Text),
        sa.Column("document", sa.LargeBinary, nullable=False),
        sa.Column("outcome", sa.LargeBinary),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.Column("updated_at", UtcDateTime, nullable=False),
    )
    op.create_index("runs_by_agent", "runs", ["agent_id", "created_at", "id"])
    op.create_index("runs_by_creation", "runs", ["organization_id", "created_at", "id"])
    op.create_index("runs_by_request", "runs", ["organization_id", "request_method", "request_id"], unique=True)
    op.create_index(
        "runs_one_running",
        "runs",
        ["conversation_id"],
        unique=True,
        sqlite_where=sa.text("status = 'running'"),
        postgresql_where=sa.text("status = 'running'"),
    )
    op.create_index(
        "runs_unfinished",
        "runs",
        ["conversation_id", "queue_number"],
        sqlite_where=sa.text("status IN ('created', 'running')"),
        postgresql_where=sa.text("status IN ('created', 'running')"),
    )


def _create_agent_tags() -> None:
    op.create_table(
        "agent_tags",
        sa.Column("organization_id", sa.Text, primary_key=True),
        sa.Column("tag", sa.Text, primary_key=True),
        sa.Column("agent_id", sa.Text, sa.ForeignKey("agents.id", ondelete="CASCADE"), primary_key=True),
    )
    op.create_index("agent_tags_by_agent", "agent_tags", ["agent_id"])


def _create_conversations() -> None:
    op.create_table(
        "conversations",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("organization_id", sa.Text, nullable=False),
        sa.Column("agent_id", sa.Text, sa.ForeignKey("agents.id", ondelete="CASCADE"), nullable=False),
        sa.Column("is_default", sa.Boolean, nullable=False),
        sa.Column("archived", sa.Boolean, nullable=False),
        sa.Column("document", sa.LargeBinary, nullable=False),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.Column("updated_at", UtcDateTime, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("lease_owner", sa.Text),
        sa.Column("lease_run_id", sa.Text),
        sa.Column("lease_expires_at", UtcDateTime),
        sa.Column("next_queue_number", sa.BigInteger, nullable=False),
    )
    op.create_index("conversations_by_agent", "conversations", ["agent_id"])


def _create_events() -> None:
    op.create_table(
        "events",
        sa.Column("run_id", sa.Text, sa.ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("sequence", sa.Integer, primary_key=True),
        sa.Column("step_id", sa.Text),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.Column("created_at", UtcDateTime, nullable=False),
    )


def _create_journal() -> None:
    op.create_table(
        "journal",
        sa.Column("run_id", sa.Text, sa.ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("step_id", sa.Text, primary_key=True),
        sa.Column("kind", sa.Text, primary_key=True),
        sa.Column("ordinal", sa.Integer, primary_key=True),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("entry", sa.LargeBinary, nullable=False),
    )


def _create_run_otids() -> None:
    op.create_table(
        "run_otids",
        sa.Column("conversation_id", sa.Text, primary_key=True),
        sa.Column("otid", sa.Text, primary_key=True),
        sa.Column("run_id", sa.Text, sa.ForeignKey("runs.id", ondelete="CASCADE"), nullable=False),
    )
    op.create_index("run_otids_by_run", "run_otids", ["run_id"])


def _create_steps() -> None:
    op.create_table(
        "steps",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("organization_id", sa.Text, nullable=False),
        sa.Column("run_id", sa.Text, sa.ForeignKey("runs.id", ondelete="CASCADE"), nullable=False),
        sa.Column("agent_id", sa.Text, nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("document", sa.LargeBinary, nullable=False),
        sa.Column("created_at", UtcDateTime, nullable=False),
    )
    op.create_index("steps_by_creation", "steps", ["organization_id", "created_at", "id"])
    op.create_index("steps_by_run", "steps", ["run_id", "number"])
