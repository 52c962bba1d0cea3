"""Messages, windows, steps, the ledger of requests, the outbox of the vector index, and the word index."""

import sqlalchemy as sa
from alembic import op
from mnemesh_kit.sql import UtcDateTime

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

WORDS_SQLITE = (
    """CREATE VIRTUAL TABLE message_words
    USING fts5(scope, body, context, tokenize = "porter unicode61 remove_diacritics 2")""",
)
# A configuration of our own: the English stemmer without its stop words, for words of every script.
WORDS_POSTGRESQL = (
    "CREATE TEXT SEARCH DICTIONARY engram_stem (TEMPLATE = snowball, LANGUAGE = 'english')",
    "CREATE TEXT SEARCH CONFIGURATION engram_words (COPY = simple)",
    "ALTER TEXT SEARCH CONFIGURATION engram_words ALTER MAPPING FOR asciiword, word, numword WITH engram_stem",
    "CREATE TABLE message_words (row_id BIGINT PRIMARY KEY, words TSVECTOR NOT NULL)",
    "CREATE INDEX ix_message_words ON message_words USING gin (words)",
)


def upgrade() -> None:
    _create_agents()
    _create_contexts()
    _create_context_entries()
    _create_messages()
    _create_tool_call_rows()
    _create_step_commits()
    _create_index_outbox()
    _create_request_ledger()
    for statement in WORDS_SQLITE if op.get_bind().dialect.name == "sqlite" else WORDS_POSTGRESQL:
        op.execute(statement)


def downgrade() -> None:
    op.execute("DROP TABLE message_words")
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP TEXT SEARCH CONFIGURATION engram_words")
        op.execute("DROP TEXT SEARCH DICTIONARY engram_stem")
    for table in (
        "tool_call_rows",
        "step_commits",
        "request_ledger",
        "messages",
        "index_outbox",
        "contexts",
        "context_entries",
        "agents",
    ):
        op.drop_table(table)


def _create_agents() -> None:
    op.create_table(
        "agents",
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("organization_id", sa.Text(), nullable=False),
        sa.Column("last_sequence_id", sa.BigInteger(), nullable=False),
        sa.Column("message_count", sa.BigInteger(), nullable=False),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.Column("erased_at", UtcDateTime, nullable=True),
        sa.PrimaryKeyConstraint("agent_id"),
    )
    op.create_index("ix_agents_organization", "agents", ["organization_id"])


def _create_context_entries() -> None:
    op.create_table(
        "context_entries",
        sa.Column("conversation_id", sa.Text(), nullable=False),
        sa.Column("position", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("message_id", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("conversation_id", "position"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_context_entries_message", "context_entries", ["message_id"])


def _create_contexts() -> None:
    op.create_table(
        "contexts",
        sa.Column("conversation_id", sa.Text(), nullable=False),
        sa.Column("organization_id", sa.Text(), nullable=False),
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("system_message_id", sa.Text(), nullable=False),
        sa.Column("next_position", sa.BigInteger(), nullable=False),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.Column("updated_at", UtcDateTime, nullable=False),
        sa.Column("last_message_at", UtcDateTime, nullable=True),
        sa.PrimaryKeyConstraint("conversation_id"),
    )
    op.create_index("ix_contexts_agent", "contexts", ["agent_id"])


def _create_index_outbox() -> None:
    op.create_table(
        "index_outbox",
        sa.Column("row_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("subject_id", sa.Text(), nullable=False),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.PrimaryKeyConstraint("row_id"),
    )


def _create_messages() -> None:
    op.create_table(
        "messages",
        sa.Column("row_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("organization_id", sa.Text(), nullable=False),
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("sequence_id", sa.BigInteger(), nullable=False),
        sa.Column("conversation_id", sa.Text(), nullable=True),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=True),
        sa.Column("otid", sa.Text(), nullable=True),
        sa.Column("sender_id", sa.Text(), nullable=True),
        sa.Column("group_id", sa.Text(), nullable=True),
        sa.Column("model", sa.Text(), nullable=True),
        sa.Column("step_id", sa.Text(), nullable=True),
        sa.Column("run_id", sa.Text(), nullable=True),
        sa.Column("turn_id", sa.Text(), nullable=True),
        sa.Column("is_err", sa.Boolean(), nullable=True),
        sa.Column("approval_request_id", sa.Text(), nullable=True),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.Column("updated_at", UtcDateTime, nullable=True),
        sa.Column("content", sa.Text(), nullable=True),
        sa.Column("tool_calls", sa.Text(), nullable=True),
        sa.Column("tool_returns", sa.Text(), nullable=True),
        sa.Column("approval_decisions", sa.Text(), nullable=True),
        sa.Column("search_text", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("row_id"),
    )
    op.create_index("ix_messages_conversation", "messages", ["conversation_id", "sequence_id"])
    op.create_index(
        "ix_messages_group_id",
        "messages",
        ["group_id", "row_id"],
        sqlite_where=sa.text("group_id IS NOT NULL"),
        postgresql_where=sa.text("group_id IS NOT NULL"),
    )
    op.create_index("ix_messages_organization", "messages", ["organization_id", "row_id"])
    op.create_index(
        "ix_messages_otid",
        "messages",
        ["otid", "row_id"],
        sqlite_where=sa.text("otid IS NOT NULL"),
        postgresql_where=sa.text("otid IS NOT NULL"),
    )
    op.create_index(
        "ix_messages_run_id",
        "messages",
        ["run_id", "row_id"],
        sqlite_where=sa.text("run_id IS NOT NULL"),
        postgresql_where=sa.text("run_id IS NOT NULL"),
    )
    op.create_index(
        "ix_messages_spoken",
        "messages",
        ["agent_id", "conversation_id", "sequence_id"],
        sqlite_where=sa.text("search_text IS NOT NULL AND role IN ('user', 'assistant')"),
        postgresql_where=sa.text("search_text IS NOT NULL AND role IN ('user', 'assistant')"),
    )
    op.create_index(
        "ix_messages_step_id",
        "messages",
        ["step_id", "row_id"],
        sqlite_where=sa.text("step_id IS NOT NULL"),
        postgresql_where=sa.text("step_id IS NOT NULL"),
    )
    op.create_index(
        "ix_messages_turn_id",
        "messages",
        ["turn_id", "row_id"],
        sqlite_where=sa.text("turn_id IS NOT NULL"),
        postgresql_where=sa.text("turn_id IS NOT NULL"),
    )
    op.create_index("ux_messages_id", "messages", ["id"], unique=True)
    op.create_index("ux_messages_sequence", "messages", ["agent_id", "sequence_id"], unique=True)


def _create_request_ledger() -> None:
    op.create_table(
        "request_ledger",
        sa.Column("organization_id", sa.Text(), nullable=False),
        sa.Column("method", sa.Text(), nullable=False),
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("result_ids", sa.Text(), nullable=False),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.PrimaryKeyConstraint("organization_id", "method", "request_id"),
    )
    op.create_index("ix_request_ledger_created_at", "request_ledger", ["created_at"])


def _create_step_commits() -> None:
    op.create_table(
        "step_commits",
        sa.Column("organization_id", sa.Text(), nullable=False),
        sa.Column("step_id", sa.Text(), nullable=False),
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("conversation_id", sa.Text(), nullable=False),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("rebased", sa.Boolean(), nullable=False),
        sa.Column("sequence_ids", sa.Text(), nullable=False),
        sa.Column("message_count", sa.BigInteger(), nullable=False),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.PrimaryKeyConstraint("organization_id", "step_id"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_step_commits_agent", "step_commits", ["agent_id"])
    op.create_index("ix_step_commits_conversation", "step_commits", ["conversation_id"])
    op.create_index("ix_step_commits_request", "step_commits", ["organization_id", "request_id"])


def _create_tool_call_rows() -> None:
    op.create_table(
        "tool_call_rows",
        sa.Column("tool_call_id", sa.Text(), nullable=False),
        sa.Column("message_id", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("tool_call_id", "message_id"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_tool_call_rows_message", "tool_call_rows", ["message_id"])
