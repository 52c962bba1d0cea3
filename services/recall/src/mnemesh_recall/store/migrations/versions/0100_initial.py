"""Creates the tables of messages, windows, turns, episodes, facts, and the word and vector indexes."""

import sqlalchemy as sa
from alembic import op
from mnemesh_kit.sql import UtcDateTime

revision = "0100"
down_revision = None

# The terms of messages are keys without text; see store/fulltext/words.py. FTS5 has neither the text nor positions.
_TERMS_SQLITE = """
    CREATE VIRTUAL TABLE message_terms USING fts5(terms, content = '', detail = none, tokenize = "ascii")
"""
# The words of a message are in its row instead of a TOAST table, because the ranking reads hundreds of them. The
# pending list is short, because every search reads it to its end.
_TERMS_POSTGRESQL = (
    "ALTER TABLE message_words SET (toast_tuple_target = 8160)",
    "CREATE TABLE message_terms (row_id BIGINT PRIMARY KEY, terms BIGINT[] NOT NULL)",
    "CREATE INDEX ix_message_terms ON message_terms USING gin (terms) WITH (gin_pending_list_limit = 512)",
)
_NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    _create_agents()
    _create_context_entries()
    _create_contexts()
    _create_episodes()
    _create_facts()
    _create_index_holders()
    _create_index_outbox()
    _create_memory_links()
    _create_memory_terms()
    _create_messages()
    _create_audit_entries()
    _create_request_ledger()
    _create_step_commits()
    _create_tool_call_rows()
    _create_trace_lines()
    _create_turns()
    _create_unindexed_agents()
    _create_word_analysis()
    _create_word_languages()
    _create_word_rebuilds()
    _create_message_words()


def _create_agents() -> None:
    op.create_table(
        "agents",
        sa.Column("agent_id", sa.Text, primary_key=True),
        sa.Column("organization_id", sa.Text, nullable=False),
        sa.Column("last_sequence_id", sa.BigInteger, nullable=False),
        sa.Column("message_count", sa.BigInteger, nullable=False),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.Column("erased_at", UtcDateTime),
        sa.Column("last_turn_index", sa.BigInteger, nullable=False, server_default="0"),
    )
    op.create_index("ix_agents_organization", "agents", ["organization_id"])


def _create_context_entries() -> None:
    op.create_table(
        "context_entries",
        sa.Column("conversation_id", sa.Text, primary_key=True),
        sa.Column("position", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("message_id", sa.Text, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_context_entries_message", "context_entries", ["message_id"])


def _create_contexts() -> None:
    op.create_table(
        "contexts",
        sa.Column("conversation_id", sa.Text, primary_key=True),
        sa.Column("organization_id", sa.Text, nullable=False),
        sa.Column("agent_id", sa.Text, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("system_message_id", sa.Text, nullable=False),
        sa.Column("next_position", sa.BigInteger, nullable=False),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.Column("updated_at", UtcDateTime, nullable=False),
        sa.Column("last_message_at", UtcDateTime),
        sa.Column("resets", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("reset_at", UtcDateTime),
    )
    op.create_index("ix_contexts_agent", "contexts", ["agent_id"])


def _create_episodes() -> None:
    op.create_table(
        "episodes",
        sa.Column("row_id", _NUMBER, primary_key=True, autoincrement=True),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("organization_id", sa.Text, nullable=False),
        sa.Column("scope_kind", sa.Text, nullable=False),
        sa.Column("scope_id", sa.Text, nullable=False),
        sa.Column("owner_agent_id", sa.Text),
        sa.Column("imported_id", sa.Text),
        sa.Column("tags", sa.Text, nullable=False),
        sa.Column("salience", sa.Double),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("metadata", sa.Text),
        sa.Column("extra", sa.Text),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.Column("updated_at", UtcDateTime, nullable=False),
        sa.Column("summary", sa.Text, nullable=False),
        sa.Column("turn_ids", sa.Text, nullable=False),
        sa.Column("started_at", UtcDateTime),
        sa.Column("ended_at", UtcDateTime),
    )
    op.create_index("ix_episodes_owner", "episodes", ["owner_agent_id"])
    op.create_index("ix_episodes_scope", "episodes", ["organization_id", "scope_kind", "scope_id", "created_at"])
    op.create_index("ux_episodes_id", "episodes", ["id"], unique=True)


def _create_facts() -> None:
    op.create_table(
        "facts",
        sa.Column("row_id", _NUMBER, primary_key=True, autoincrement=True),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("organization_id", sa.Text, nullable=False),
        sa.Column("scope_kind", sa.Text, nullable=False),
        sa.Column("scope_id", sa.Text, nullable=False),
        sa.Column("owner_agent_id", sa.Text),
        sa.Column("imported_id", sa.Text),
        sa.Column("tags", sa.Text, nullable=False),
        sa.Column("salience", sa.Double),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("metadata", sa.Text),
        sa.Column("extra", sa.Text),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.Column("updated_at", UtcDateTime, nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("text_key", sa.Text, nullable=False),
        sa.Column("confidence", sa.Double),
        sa.Column("valid_from", UtcDateTime),
        sa.Column("invalid_at", UtcDateTime),
        sa.Column("first_invalid_at", UtcDateTime),
        sa.Column("closed_at", UtcDateTime),
        sa.Column("superseded_by_id", sa.Text),
        sa.Column("supersedes_id", sa.Text),
        sa.Column("invalid_reason", sa.Text),
        sa.Column("invalid_source", sa.Text),
        sa.Column("chain_id", sa.Text, nullable=False),
    )
    op.create_index("ix_facts_chain", "facts", ["chain_id"])
    op.create_index("ix_facts_owner", "facts", ["owner_agent_id"])
    op.create_index("ix_facts_scope", "facts", ["organization_id", "scope_kind", "scope_id", "created_at"])
    op.create_index("ix_facts_text", "facts", ["organization_id", "scope_kind", "scope_id", "text_key"])
    op.create_index("ux_facts_id", "facts", ["id"], unique=True)


def _create_index_holders() -> None:
    op.create_table(
        "index_holders",
        sa.Column("collection", sa.Text, primary_key=True),
        sa.Column("holder", sa.Text, nullable=False),
        sa.Column("expires_at", UtcDateTime, nullable=False),
    )


def _create_index_outbox() -> None:
    op.create_table(
        "index_outbox",
        sa.Column("row_id", _NUMBER, primary_key=True, autoincrement=True),
        sa.Column("collection", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("subject_id", sa.Text, nullable=False),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.Column("claimed_by", sa.Text),
        sa.Column("claimed_until", UtcDateTime),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_index_outbox_subject", "index_outbox", ["subject_id"])


def _create_memory_links() -> None:
    op.create_table(
        "memory_links",
        sa.Column("memory_id", sa.Text, primary_key=True),
        sa.Column("kind", sa.Text, primary_key=True),
        sa.Column("value", sa.Text, primary_key=True),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_memory_links_value", "memory_links", ["kind", "value"])


def _create_memory_terms() -> None:
    op.create_table(
        "memory_terms",
        sa.Column("organization_id", sa.Text, primary_key=True),
        sa.Column("kind", sa.Text, primary_key=True),
        sa.Column("term", sa.Text, primary_key=True),
        sa.Column("scope_key", sa.Text, primary_key=True),
        sa.Column("memory_id", sa.Text, primary_key=True),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_memory_terms_memory", "memory_terms", ["memory_id"])


def _create_messages() -> None:
    op.create_table(
        "messages",
        sa.Column("row_id", _NUMBER, primary_key=True, autoincrement=True),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("organization_id", sa.Text, nullable=False),
        sa.Column("agent_id", sa.Text, nullable=False),
        sa.Column("sequence_id", sa.BigInteger, nullable=False),
        sa.Column("conversation_id", sa.Text),
        sa.Column("role", sa.Text, nullable=False),
        sa.Column("name", sa.Text),
        sa.Column("otid", sa.Text),
        sa.Column("sender_id", sa.Text),
        sa.Column("group_id", sa.Text),
        sa.Column("model", sa.Text),
        sa.Column("step_id", sa.Text),
        sa.Column("run_id", sa.Text),
        sa.Column("turn_id", sa.Text),
        sa.Column("is_err", sa.Boolean),
        sa.Column("is_event", sa.Boolean),
        sa.Column("carried", sa.Text),
        sa.Column("approval_request_id", sa.Text),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.Column("updated_at", UtcDateTime),
        sa.Column("content", sa.Text),
        sa.Column("tool_calls", sa.Text),
        sa.Column("tool_returns", sa.Text),
        sa.Column("approval_decisions", sa.Text),
        sa.Column("search_text", sa.Text),
        sa.Column("speaker", sa.Text),
    )
    op.create_index("ix_messages_conversation", "messages", ["conversation_id", "sequence_id"])
    op.create_index("ix_messages_created", "messages", ["created_at"])
    _create_partial_index("ix_messages_group_id", "messages", ["group_id", "row_id"], "group_id IS NOT NULL")
    op.create_index("ix_messages_organization", "messages", ["organization_id", "row_id"])
    _create_partial_index("ix_messages_otid", "messages", ["otid", "row_id"], "otid IS NOT NULL")
    _create_partial_index("ix_messages_run_id", "messages", ["run_id", "row_id"], "run_id IS NOT NULL")
    _create_partial_index("ix_messages_searchable", "messages", ["row_id"], "search_text IS NOT NULL")
    _create_partial_index("ix_messages_sender_id", "messages", ["sender_id", "row_id"], "sender_id IS NOT NULL")
    _create_partial_index(
        "ix_messages_spoken",
        "messages",
        ["agent_id", "conversation_id", "sequence_id"],
        "search_text IS NOT NULL AND role IN ('user', 'assistant')",
    )
    _create_partial_index("ix_messages_step_id", "messages", ["step_id", "row_id"], "step_id IS NOT NULL")
    _create_partial_index(
        "ix_messages_turn_id", "messages", ["turn_id", "agent_id", "sequence_id"], "turn_id IS NOT NULL"
    )
    op.create_index("ux_messages_id", "messages", ["id"], unique=True)
    op.create_index("ux_messages_sequence", "messages", ["agent_id", "sequence_id"], unique=True)


def _create_audit_entries() -> None:
    op.create_table(
        "audit_entries",
        sa.Column("organization_id", sa.Text, primary_key=True),
        sa.Column("created_at", UtcDateTime, primary_key=True),
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("subject_id", sa.Text, nullable=False),
        sa.Column("role", sa.Text, nullable=False),
        sa.Column("method", sa.Text, nullable=False),
        sa.Column("resource_ids", sa.Text, nullable=False),
        sa.Column("correlation_id", sa.Text, nullable=False),
        sa.Column("request_id", sa.Text, nullable=False),
    )
    op.create_index("ix_audit_entries_created_at", "audit_entries", ["created_at"])


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


def _create_step_commits() -> None:
    op.create_table(
        "step_commits",
        sa.Column("organization_id", sa.Text, primary_key=True),
        sa.Column("step_id", sa.Text, primary_key=True),
        sa.Column("request_id", sa.Text, nullable=False),
        sa.Column("agent_id", sa.Text, nullable=False),
        sa.Column("conversation_id", sa.Text, nullable=False),
        sa.Column("fingerprint", sa.Text, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("rebased", sa.Boolean, nullable=False),
        sa.Column("sequence_ids", sa.Text, nullable=False),
        sa.Column("message_count", sa.BigInteger, nullable=False),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_step_commits_agent", "step_commits", ["agent_id"])
    op.create_index("ix_step_commits_conversation", "step_commits", ["conversation_id"])
    op.create_index("ix_step_commits_created", "step_commits", ["created_at"])
    op.create_index("ix_step_commits_request", "step_commits", ["organization_id", "request_id"])


def _create_tool_call_rows() -> None:
    op.create_table(
        "tool_call_rows",
        sa.Column("tool_call_id", sa.Text, primary_key=True),
        sa.Column("message_id", sa.Text, primary_key=True),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_tool_call_rows_message", "tool_call_rows", ["message_id"])


def _create_trace_lines() -> None:
    op.create_table(
        "trace_lines",
        sa.Column("message_id", sa.Text, primary_key=True),
        sa.Column("ordinal", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("agent_id", sa.Text, nullable=False),
        sa.Column("trace_id", sa.Text, nullable=False),
        sa.Column("seq", sa.Integer, nullable=False),
        sa.Column("differing", sa.Text, nullable=False),
        sqlite_with_rowid=False,
    )
    op.create_index("ux_trace_lines_id", "trace_lines", ["agent_id", "trace_id"], unique=True)


def _create_turns() -> None:
    op.create_table(
        "turns",
        sa.Column("agent_id", sa.Text, primary_key=True),
        sa.Column("turn_index", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("turn_id", sa.Text, nullable=False),
        sa.Column("organization_id", sa.Text, nullable=False),
        sa.Column("conversation_id", sa.Text),
        sa.Column("started_at", UtcDateTime, nullable=False),
        sa.Column("imported_id", sa.Text),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_turns_conversation", "turns", ["agent_id", "conversation_id", "turn_index"])
    op.create_index("ux_turns_id", "turns", ["agent_id", "turn_id"], unique=True)


def _create_unindexed_agents() -> None:
    op.create_table(
        "unindexed_agents",
        sa.Column("agent_id", sa.Text, primary_key=True),
        sa.Column("organization_id", sa.Text, nullable=False),
        sa.Column("position", sa.BigInteger, nullable=False),
        sa.Column("since", UtcDateTime, nullable=False),
    )


def _create_word_analysis() -> None:
    op.create_table(
        "word_analysis",
        sa.Column("version", sa.Text, primary_key=True),
    )


def _create_word_languages() -> None:
    op.create_table(
        "word_languages",
        sa.Column("organization_id", sa.Text, primary_key=True),
        sa.Column("language", sa.Text, primary_key=True),
    )


def _create_word_rebuilds() -> None:
    op.create_table(
        "word_rebuilds",
        sa.Column("kind", sa.Text, primary_key=True),
        sa.Column("subject", sa.Text, primary_key=True),
        sa.Column("position", sa.BigInteger, nullable=False),
    )


def _create_message_words() -> None:
    op.create_table(
        "message_words",
        sa.Column("row_id", _NUMBER, primary_key=True, autoincrement=False),
        sa.Column("fingerprint", sa.Text, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("asked", sa.Text, nullable=False),
        sa.Column("beside", sa.Text, nullable=False),
        sa.Column("around", sa.Text, nullable=False),
        sa.Column("about", sa.Text, nullable=False),
        sa.Column("before_id", sa.Text),
        sa.Column("after_id", sa.Text),
        sa.Column("ends_in_question", sa.Boolean, nullable=False),
    )
    if op.get_bind().dialect.name == "sqlite":
        op.execute(_TERMS_SQLITE)
        return
    for statement in _TERMS_POSTGRESQL:
        op.execute(statement)


def _create_partial_index(name: str, table: str, columns: list[str], where: str, *, unique: bool = False) -> None:
    condition = sa.text(where)
    op.create_index(name, table, columns, unique=unique, sqlite_where=condition, postgresql_where=condition)
