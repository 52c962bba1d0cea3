"""The tables of the blocks service, and the conversion of their rows."""

from typing import Any, Final

import sqlalchemy as sa
from mnemesh_kit.audit import audit_table
from mnemesh_kit.idempotency import ledger_table
from mnemesh_kit.sql import Database, UtcDateTime
from mnemesh_kit.sql.owners import Owners
from mnemesh_kit.sql.rows import Rows
from mnemesh_types.blocks import AgentAuthor, Block, BlockRevision, OwnerAuthor

from mnemesh_blocks.model.blocks import diff_of

metadata = sa.MetaData()

blocks: Final = sa.Table(
    "blocks",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("organization_id", sa.Text, nullable=False),
    sa.Column("label", sa.Text, nullable=False),
    sa.Column("value", sa.Text, nullable=False),
    sa.Column("char_limit", sa.Integer, nullable=False),
    sa.Column("description", sa.Text),
    sa.Column("read_only", sa.Boolean, nullable=False),
    sa.Column("revision", sa.BigInteger, nullable=False),
    sa.Column("content_revision", sa.BigInteger, nullable=False),
    sa.Column("name", sa.Text),
    # JSON lists. The tables block_tags and block_identities index their elements for filters.
    sa.Column("tags", sa.Text, nullable=False),
    sa.Column("identity_ids", sa.Text, nullable=False),
    sa.Column("metadata", sa.Text),
    sa.Column("hidden", sa.Boolean, nullable=False),
    sa.Column("is_template", sa.Boolean, nullable=False),
    sa.Column("template_name", sa.Text),
    sa.Column("preserve_on_migration", sa.Boolean, nullable=False),
    sa.Column("created_for_agent_id", sa.Text),
    sa.Column("created_at", UtcDateTime, nullable=False),
    sa.Column("updated_at", UtcDateTime, nullable=False),
    sa.Column("created_by_id", sa.Text, nullable=False),
    sa.Column("last_updated_by_id", sa.Text, nullable=False),
    sa.Column("project_id", sa.Text),
    sa.Column("template_id", sa.Text),
    sa.Column("base_template_id", sa.Text),
    sa.Column("deployment_id", sa.Text),
    sa.Column("entity_id", sa.Text),
    sa.Index("blocks_by_create_time", "organization_id", "created_at", "id"),
    sa.Index("blocks_by_update_time", "organization_id", "updated_at", "id"),
    sa.Index("blocks_by_label", "organization_id", "label", "id"),
)

block_tags: Final = sa.Table(
    "block_tags",
    metadata,
    sa.Column("block_id", sa.Text, sa.ForeignKey("blocks.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("tag", sa.Text, primary_key=True, index=True),
)

block_identities: Final = sa.Table(
    "block_identities",
    metadata,
    sa.Column("block_id", sa.Text, sa.ForeignKey("blocks.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("identity_id", sa.Text, primary_key=True, index=True),
)

block_revisions: Final = sa.Table(
    "block_revisions",
    metadata,
    sa.Column("block_id", sa.Text, sa.ForeignKey("blocks.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("revision", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("organization_id", sa.Text, nullable=False),
    sa.Column("operation", sa.Text, nullable=False),
    sa.Column("parent", sa.BigInteger),
    sa.Column("label", sa.Text, nullable=False),
    sa.Column("value", sa.Text, nullable=False),
    sa.Column("description", sa.Text),
    sa.Column("char_limit", sa.Integer, nullable=False),
    sa.Column("read_only", sa.Boolean, nullable=False),
    # Either agent_id (with tool_call_id and run_id) or subject_id is set.
    sa.Column("agent_id", sa.Text),
    sa.Column("tool_call_id", sa.Text),
    sa.Column("run_id", sa.Text),
    sa.Column("subject_id", sa.Text),
    sa.Column("created_at", UtcDateTime, nullable=False),
    sa.Index("block_revisions_by_parent", "block_id", "parent"),
)

# One row for each holder that ever held a block: the revision of its core memory, and its tombstone once it is erased.
# A holder is an agent, or a conversation that has blocks: its id is in `agent_id`, its agent's in `conversation_of`.
core_memories: Final = sa.Table(
    "core_memories",
    metadata,
    sa.Column("organization_id", sa.Text, primary_key=True),
    sa.Column("agent_id", sa.Text, primary_key=True),
    sa.Column("revision", sa.BigInteger, nullable=False),
    sa.Column("next_position", sa.BigInteger, nullable=False),
    sa.Column("updated_at", UtcDateTime, nullable=False),
    sa.Column("erased_at", UtcDateTime),
    sa.Column("conversation_of", sa.Text),
    # The set of agents whose attached blocks are kept equal.
    sa.Column("link_id", sa.Text),
    sa.Index(
        "core_memories_by_link",
        "organization_id",
        "link_id",
        sqlite_where=sa.text("link_id IS NOT NULL"),
        postgresql_where=sa.text("link_id IS NOT NULL"),
    ),
    sa.Index(
        "core_memories_of_conversations",
        "organization_id",
        "conversation_of",
        sqlite_where=sa.text("conversation_of IS NOT NULL"),
        postgresql_where=sa.text("conversation_of IS NOT NULL"),
    ),
)

holdings: Final = sa.Table(
    "holdings",
    metadata,
    sa.Column("organization_id", sa.Text, primary_key=True),
    sa.Column("agent_id", sa.Text, primary_key=True),
    sa.Column("block_id", sa.Text, sa.ForeignKey("blocks.id", ondelete="CASCADE"), primary_key=True, index=True),
    sa.Column("label", sa.Text, nullable=False),
    sa.Column("position", sa.BigInteger, nullable=False),
    sa.UniqueConstraint("organization_id", "agent_id", "label", name="holdings_label_is_unique"),
)

request_ledger: Final = ledger_table(metadata)
audit_entries: Final = audit_table(metadata)


BLOCK: Final = Rows(blocks, Block, inline=("provenance",), limit="char_limit")
_REVISION: Final = Rows(block_revisions, BlockRevision, limit="char_limit", parent_revision="parent")


def revision_from_row(row: sa.Row[Any]) -> BlockRevision:
    """Returns the change of a row of `block_revisions`."""
    is_owner = row.agent_id is None
    return _REVISION.from_row(
        row,
        author=OwnerAuthor(row.subject_id or "")
        if is_owner
        else AgentAuthor(row.agent_id, row.tool_call_id, row.run_id),
        diff=diff_of(row.revision, row.previous_value or "", row.value) if "previous_value" in row._fields else None,
    )


def revision_to_row(revision: BlockRevision, organization_id: str) -> dict[str, Any]:
    """Returns the column values of a change."""
    match revision.author or OwnerAuthor():
        case AgentAuthor(agent_id, tool_call_id, run_id):
            author = {"agent_id": agent_id, "tool_call_id": tool_call_id, "run_id": run_id, "subject_id": None}
        case OwnerAuthor(subject_id):
            author = {"agent_id": None, "tool_call_id": None, "run_id": None, "subject_id": subject_id}
    return _REVISION.to_row(revision, organization_id=organization_id, **author)


def owners(database: Database) -> Owners:
    """Returns what finds the agents to which blocks belong: those that hold them, also in conversations."""
    held, memory = holdings.c, core_memories.c
    holder = sa.and_(memory.organization_id == held.organization_id, memory.agent_id == held.agent_id)
    agent = sa.func.coalesce(memory.conversation_of, held.agent_id)
    # Blocks are found by id: SQLite would take an index that begins with the organization, and read all of its blocks.
    organization = sa.func.coalesce(blocks.c.organization_id, "")
    select = sa.select(organization, blocks.c.id, agent)
    joined = blocks.outerjoin(holdings, held.block_id == blocks.c.id).outerjoin(core_memories, holder)
    return Owners(database, block=select.select_from(joined))
