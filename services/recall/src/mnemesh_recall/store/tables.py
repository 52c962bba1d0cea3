"""The tables of recall on SQLite and PostgreSQL, and lists of values as one parameter.

`message_terms` differs by engine. Tables with the info `derived` are made again from the others: a backup does not have
their rows.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import sqlalchemy as sa
from mnemesh_kit.audit import audit_table
from mnemesh_kit.idempotency import ledger_table
from mnemesh_kit.sql import Database, UtcDateTime
from mnemesh_kit.sql.owners import Owners
from mnemesh_retrieval.indexing.outbox import outbox_tables
from sqlalchemy.dialects.postgresql import ARRAY

metadata = sa.MetaData()

Number = sa.BigInteger().with_variant(sa.Integer, "sqlite")
"""A 64-bit number that SQLite can use as its row id."""

agents = sa.Table(
    "agents",
    metadata,
    sa.Column("agent_id", sa.Text, primary_key=True),
    sa.Column("organization_id", sa.Text, nullable=False),
    # The update of this row serializes the writers of one agent.
    sa.Column("last_sequence_id", sa.BigInteger, nullable=False),
    sa.Column("message_count", sa.BigInteger, nullable=False),
    sa.Column("created_at", UtcDateTime, nullable=False),
    sa.Column("erased_at", UtcDateTime),
    # The index of the last turn. It never decreases.
    sa.Column("last_turn_index", sa.BigInteger, nullable=False, server_default="0"),
    sa.Index("ix_agents_organization", "organization_id"),
)

word_analysis = sa.Table(
    "word_analysis", metadata, sa.Column("version", sa.Text, primary_key=True), info={"derived": True}
)
"""One row: the version of the analysis of all stored words, except those in `word_rebuilds`."""

word_languages = sa.Table(
    "word_languages",
    metadata,
    sa.Column("organization_id", sa.Text, primary_key=True),
    sa.Column("language", sa.Text, primary_key=True),
    info={"derived": True},
)
"""The languages of an organization's indexed texts other than English."""

AGENT: Final = "agent"
MEMORIES: Final = "memories"
"""The kinds of subjects in `word_rebuilds`: an agent, whose messages are to be analysed again; a table of memories."""
word_rebuilds = sa.Table(
    "word_rebuilds",
    metadata,
    sa.Column("kind", sa.Text, primary_key=True),
    sa.Column("subject", sa.Text, primary_key=True),
    # The sequence id or row id up to which that is done.
    sa.Column("position", sa.BigInteger, nullable=False),
    info={"derived": True},
)

# The agents with messages that are not in the word index yet, because the commit of a step leaves that to later.
unindexed_agents = sa.Table(
    "unindexed_agents",
    metadata,
    sa.Column("agent_id", sa.Text, primary_key=True),
    sa.Column("organization_id", sa.Text, nullable=False),
    # The sequence id up to which the messages are indexed.
    sa.Column("position", sa.BigInteger, nullable=False),
    # The time of the first commit whose messages are not indexed.
    sa.Column("since", UtcDateTime, nullable=False),
    info={"derived": True},
)

contexts = sa.Table(
    "contexts",
    metadata,
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
    # The number of times that messages were removed from the window, and the time of the last removal.
    sa.Column("resets", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("reset_at", UtcDateTime),
    sa.Index("ix_contexts_agent", "agent_id"),
)

context_entries = sa.Table(
    "context_entries",
    metadata,
    sa.Column("conversation_id", sa.Text, primary_key=True),
    sa.Column("position", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("message_id", sa.Text, nullable=False),
    sa.Index("ix_context_entries_message", "message_id"),
    sqlite_with_rowid=False,
)

messages = sa.Table(
    "messages",
    metadata,
    # In order of insertion, and so, within an agent, in order of sequence_id.
    sa.Column("row_id", Number, primary_key=True, autoincrement=True),
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
    # What the provider put into its message and the other columns do not hold, as JSON text.
    sa.Column("carried", sa.Text),
    sa.Column("approval_request_id", sa.Text),
    sa.Column("created_at", UtcDateTime, nullable=False),
    sa.Column("updated_at", UtcDateTime),
    # JSON text, NULL for an empty list.
    sa.Column("content", sa.Text),
    sa.Column("tool_calls", sa.Text),
    sa.Column("tool_returns", sa.Text),
    sa.Column("approval_decisions", sa.Text),
    # The searchable text (model/searchable_text.py), case-folded; NULL if the message must not be found.
    sa.Column("search_text", sa.Text),
    # The speaker of a searchable message, case-folded: its name, or the one at the beginning of its text.
    sa.Column("speaker", sa.Text),
    sa.Index("ux_messages_id", "id", unique=True),
    sa.Index("ux_messages_sequence", "agent_id", "sequence_id", unique=True),
    sa.Index("ix_messages_conversation", "conversation_id", "sequence_id"),
    sa.Index("ix_messages_organization", "organization_id", "row_id"),
    sa.Index("ix_messages_created", "created_at"),
)

# For counts and lists of the messages that the vector index has; without it they would read all rows.
sa.Index(
    "ix_messages_searchable",
    messages.c.row_id,
    sqlite_where=messages.c.search_text.is_not(None),
    postgresql_where=messages.c.search_text.is_not(None),
)

DIALOGUE = "search_text IS NOT NULL AND role IN ('user', 'assistant')"
"""The condition for messages of a dialogue, as text: a partial index serves only exactly its own condition."""

sa.Index(
    "ix_messages_spoken",
    messages.c.agent_id,
    messages.c.conversation_id,
    messages.c.sequence_id,
    sqlite_where=sa.text(DIALOGUE),
    postgresql_where=sa.text(DIALOGUE),
)
# The id of a turn is unique only within its agent.
sa.Index(
    "ix_messages_turn_id",
    messages.c.turn_id,
    messages.c.agent_id,
    messages.c.sequence_id,
    sqlite_where=messages.c.turn_id.is_not(None),
    postgresql_where=messages.c.turn_id.is_not(None),
)
for _name in ("run_id", "step_id", "group_id", "otid", "sender_id"):
    sa.Index(
        f"ix_messages_{_name}",
        messages.c[_name],
        messages.c.row_id,
        sqlite_where=messages.c[_name].is_not(None),
        postgresql_where=messages.c[_name].is_not(None),
    )

# What the ranking of a search reads: the analysed words of a message, and those of the messages beside it.
message_words = sa.Table(
    "message_words",
    metadata,
    sa.Column("row_id", Number, primary_key=True, autoincrement=False),
    # Equal for texts that are equal when normalized.
    sa.Column("fingerprint", sa.Text, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
    sa.Column("asked", sa.Text, nullable=False),
    sa.Column("beside", sa.Text, nullable=False),
    sa.Column("around", sa.Text, nullable=False),
    sa.Column("about", sa.Text, nullable=False),
    sa.Column("before_id", sa.Text),
    sa.Column("after_id", sa.Text),
    sa.Column("ends_in_question", sa.Boolean, nullable=False),
    info={"derived": True},
)

# The terms of messages are keys without text; see store/fulltext/words.py. FTS5 has neither the text nor positions. On
# PostgreSQL, the words of a message are in its row instead of a TOAST table, because the ranking reads hundreds of
# them. The pending list is short, because every search reads it to its end.
for _engine, _statement in (
    (
        "sqlite",
        "CREATE VIRTUAL TABLE message_terms USING fts5(terms, content = '', detail = none, tokenize = \"ascii\")",
    ),
    ("postgresql", "ALTER TABLE message_words SET (toast_tuple_target = 8160)"),
    ("postgresql", "CREATE TABLE message_terms (row_id BIGINT PRIMARY KEY, terms BIGINT[] NOT NULL)"),
    (
        "postgresql",
        "CREATE INDEX ix_message_terms ON message_terms USING gin (terms) WITH (gin_pending_list_limit = 512)",
    ),
):
    _ddl: sa.DDL = sa.DDL(_statement)  # type: ignore[no-untyped-call]
    sa.event.listen(message_words, "after_create", _ddl.execute_if(dialect=_engine))

# The turns of agents. Messages name their turn in `turn_id`.
turns = sa.Table(
    "turns",
    metadata,
    sa.Column("agent_id", sa.Text, primary_key=True),
    sa.Column("turn_index", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("turn_id", sa.Text, nullable=False),
    sa.Column("organization_id", sa.Text, nullable=False),
    sa.Column("conversation_id", sa.Text),
    sa.Column("started_at", UtcDateTime, nullable=False),
    # The id in the file that the turn was imported from, if it differs.
    sa.Column("imported_id", sa.Text),
    sa.Index("ux_turns_id", "agent_id", "turn_id", unique=True),
    sa.Index("ix_turns_conversation", "agent_id", "conversation_id", "turn_index"),
    sqlite_with_rowid=False,
)

# The parts of imported trace lines that their messages do not express.
trace_lines = sa.Table(
    "trace_lines",
    metadata,
    sa.Column("message_id", sa.Text, primary_key=True),
    sa.Column("ordinal", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("agent_id", sa.Text, nullable=False),
    sa.Column("trace_id", sa.Text, nullable=False),
    sa.Column("seq", sa.Integer, nullable=False),
    sa.Column("differing", sa.Text, nullable=False),
    sa.Index("ux_trace_lines_id", "agent_id", "trace_id", unique=True),
    sqlite_with_rowid=False,
)

# The messages with a tool call, its return, or a decision on it.
tool_call_rows = sa.Table(
    "tool_call_rows",
    metadata,
    sa.Column("tool_call_id", sa.Text, primary_key=True),
    sa.Column("message_id", sa.Text, primary_key=True),
    sa.Index("ix_tool_call_rows_message", "message_id"),
    sqlite_with_rowid=False,
)

step_commits = sa.Table(
    "step_commits",
    metadata,
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
    sa.Index("ix_step_commits_request", "organization_id", "request_id"),
    sa.Index("ix_step_commits_agent", "agent_id"),
    sa.Index("ix_step_commits_conversation", "conversation_id"),
    sa.Index("ix_step_commits_created", "created_at"),
    sqlite_with_rowid=False,
)

# The outbox of the vector index.
index_tables = outbox_tables(metadata)

request_ledger = ledger_table(metadata)
audit_entries = audit_table(metadata)


def _shared() -> tuple[sa.Column[Any], ...]:
    return (
        sa.Column("row_id", Number, primary_key=True, autoincrement=True),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("organization_id", sa.Text, nullable=False),
        sa.Column("scope_kind", sa.Text, nullable=False),
        sa.Column("scope_id", sa.Text, nullable=False),
        # The agent whose erasure deletes the row: that of the scope, or of the scope's conversation.
        sa.Column("owner_agent_id", sa.Text),
        # Its id in the trace file that it was imported from.
        sa.Column("imported_id", sa.Text),
        sa.Column("tags", sa.Text, nullable=False),
        sa.Column("salience", sa.Double),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("metadata", sa.Text),
        sa.Column("extra", sa.Text),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.Column("updated_at", UtcDateTime, nullable=False),
    )


episodes = sa.Table(
    "episodes",
    metadata,
    *_shared(),
    sa.Column("summary", sa.Text, nullable=False),
    sa.Column("turn_ids", sa.Text, nullable=False),
    sa.Column("started_at", UtcDateTime),
    sa.Column("ended_at", UtcDateTime),
    sa.Index("ux_episodes_id", "id", unique=True),
    sa.Index("ix_episodes_scope", "organization_id", "scope_kind", "scope_id", "created_at"),
    sa.Index("ix_episodes_owner", "owner_agent_id"),
)

facts = sa.Table(
    "facts",
    metadata,
    *_shared(),
    sa.Column("text", sa.Text, nullable=False),
    # Equal for texts that differ only in case and white space.
    sa.Column("text_key", sa.Text, nullable=False),
    sa.Column("confidence", sa.Double),
    sa.Column("valid_from", UtcDateTime),
    sa.Column("invalid_at", UtcDateTime),
    # The end of the fact before it was closed.
    sa.Column("first_invalid_at", UtcDateTime),
    sa.Column("closed_at", UtcDateTime),
    sa.Column("superseded_by_id", sa.Text),
    sa.Column("supersedes_id", sa.Text),
    sa.Column("invalid_reason", sa.Text),
    sa.Column("invalid_source", sa.Text),
    # The first of the facts that superseded one another.
    sa.Column("chain_id", sa.Text, nullable=False),
    sa.Index("ux_facts_id", "id", unique=True),
    sa.Index("ix_facts_scope", "organization_id", "scope_kind", "scope_id", "created_at"),
    sa.Index("ix_facts_text", "organization_id", "scope_kind", "scope_id", "text_key"),
    sa.Index("ix_facts_chain", "chain_id"),
    sa.Index("ix_facts_owner", "owner_agent_id"),
)

# The links by which filters find a memory: tags, messages, turns ("agent/turn") and, for facts, episodes.
memory_links = sa.Table(
    "memory_links",
    metadata,
    sa.Column("memory_id", sa.Text, primary_key=True),
    sa.Column("kind", sa.Text, primary_key=True),
    sa.Column("value", sa.Text, primary_key=True),
    sa.Index("ix_memory_links_value", "kind", "value"),
    sqlite_with_rowid=False,
)

# The terms of episodes and facts, analysed like those of messages.
memory_terms = sa.Table(
    "memory_terms",
    metadata,
    sa.Column("organization_id", sa.Text, primary_key=True),
    sa.Column("kind", sa.Text, primary_key=True),
    sa.Column("term", sa.Text, primary_key=True),
    sa.Column("scope_key", sa.Text, primary_key=True),
    sa.Column("memory_id", sa.Text, primary_key=True),
    sa.Index("ix_memory_terms_memory", "memory_id"),
    sqlite_with_rowid=False,
    info={"derived": True},
)


Condition = sa.ColumnElement[bool]
_LISTED: Final = "listed"


def among(column: sa.Column[Any]) -> Mapping[str, Condition]:
    """Returns, by SQL dialect, the condition that a column has one of the values that `listed` passes."""
    value = sa.func.json_each(sa.bindparam(_LISTED, type_=sa.Text)).table_valued("value").c.value
    return {
        "sqlite": column.in_(sa.select(value)),
        "postgresql": column == sa.any_(sa.bindparam(_LISTED, type_=ARRAY(column.type))),
    }


def listed(conn: sa.Connection, values: Sequence[Any]) -> dict[str, Any]:
    """Returns the parameter for the condition of `among`."""
    return {_LISTED: json.dumps(values) if conn.dialect.name == "sqlite" else list(values)}


def owners(database: Database) -> Owners:
    """Returns what finds the agents to which things belong. Memories of a scope without an agent belong to none."""
    return Owners(
        database,
        conv=sa.select(contexts.c.organization_id, contexts.c.conversation_id, contexts.c.agent_id),
        message=sa.select(messages.c.organization_id, messages.c.id, messages.c.agent_id),
        episode=sa.select(episodes.c.organization_id, episodes.c.id, episodes.c.owner_agent_id),
        fact=sa.select(facts.c.organization_id, facts.c.id, facts.c.owner_agent_id),
    )
