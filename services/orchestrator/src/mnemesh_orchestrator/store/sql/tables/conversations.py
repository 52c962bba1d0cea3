"""The tables of conversations, of what waits for them, and of approvals."""

import sqlalchemy as sa
from mnemesh_kit.sql import UtcDateTime

from mnemesh_orchestrator.store.sql.tables.declaration import metadata, partial_index

# A conversation belongs to an agent. That of a group has no window: it is the queue of the runs of the group.
conversations = sa.Table(
    "conversations",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("organization_id", sa.Text, nullable=False),
    sa.Column("agent_id", sa.Text, sa.ForeignKey("agents.id", ondelete="CASCADE")),
    sa.Column("group_id", sa.Text, sa.ForeignKey("groups.id", ondelete="CASCADE")),
    sa.Column("is_default", sa.Boolean, nullable=False),
    sa.Column("state", sa.Text, nullable=False, server_default="active"),
    sa.Column("archived", sa.Boolean, nullable=False),
    sa.Column("summary", sa.Text),
    # The client's name for the conversation. NULL once it is being deleted, so that the name can be used again.
    sa.Column("client_key", sa.Text),
    sa.Column("document", sa.LargeBinary, nullable=False),
    # The creation request of a CREATING conversation, so that any process can finish it.
    sa.Column("creation", sa.LargeBinary),
    sa.Column("last_message_at", UtcDateTime),
    sa.Column("created_at", UtcDateTime, nullable=False),
    sa.Column("updated_at", UtcDateTime, nullable=False),
    # The lease: its holder, its run or other work, and its expiry.
    sa.Column("epoch", sa.BigInteger, nullable=False),
    # By how much the epochs of writes to recall are above those of leases: recall may know higher ones than this
    # database, which was restored from a backup.
    sa.Column("epoch_lead", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("lease_owner", sa.Text),
    sa.Column("lease_run_id", sa.Text),
    sa.Column("lease_expires_at", UtcDateTime),
    sa.Column("next_queue_number", sa.BigInteger, nullable=False),
    sa.Index("conversations_by_agent", "agent_id"),
    sa.Index("conversations_by_client_key", "agent_id", "client_key", unique=True),
    partial_index("conversations_by_group", "group_id", where="group_id IS NOT NULL"),
    sa.Index("conversations_by_creation", "organization_id", "created_at", "id"),
    partial_index("conversations_unfinished", "created_at", where="state <> 'active'"),
)

# Work other than runs that waits for the lease of a conversation. A position that is not extended expires.
slot_waits = sa.Table(
    "slot_waits",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("conversation_id", sa.Text, sa.ForeignKey("conversations.id", ondelete="CASCADE"), nullable=False),
    sa.Column("queue_number", sa.BigInteger, nullable=False),
    sa.Column("owner", sa.Text, nullable=False),
    sa.Column("expires_at", UtcDateTime, nullable=False),
    sa.Index("slot_waits_by_conversation", "conversation_id", "queue_number"),
)

approvals = sa.Table(
    "approvals",
    metadata,
    # The id of the stored message that requests the approval.
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("organization_id", sa.Text, nullable=False),
    sa.Column("agent_id", sa.Text, nullable=False),
    sa.Column("conversation_id", sa.Text, sa.ForeignKey("conversations.id", ondelete="CASCADE"), nullable=False),
    sa.Column("run_id", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    # The sorted ids of the calls, separated by blanks, for answers that name no approval.
    sa.Column("call_ids", sa.Text, nullable=False),
    sa.Column("document", sa.LargeBinary, nullable=False),
    sa.Column("decisions", sa.LargeBinary),
    sa.Column("decided_by_run_id", sa.Text),
    # The time at which a pending approval is denied; NULL follows the server's setting.
    sa.Column("expires_at", UtcDateTime),
    sa.Column("created_at", UtcDateTime, nullable=False),
    sa.Column("decided_at", UtcDateTime),
    sa.Index("approvals_by_conversation", "conversation_id", "created_at"),
    sa.Index("approvals_by_agent", "agent_id"),
    partial_index("approvals_one_pending", "conversation_id", where="state = 'pending'", unique=True),
    partial_index("approvals_pending", "created_at", where="state = 'pending'"),
)
