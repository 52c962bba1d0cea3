"""The tables of groups, their members and the settings of sleeptime runs."""

import sqlalchemy as sa
from mnemesh_kit.sql import UtcDateTime

from mnemesh_orchestrator.store.sql.tables.declaration import metadata, partial_index

groups = sa.Table(
    "groups",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("organization_id", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("manager_type", sa.Text, nullable=False),
    # The manager, also after it was deleted.
    sa.Column("manager_agent_id", sa.Text),
    sa.Column("hidden", sa.Boolean, nullable=False),
    sa.Column("project_id", sa.Text),
    sa.Column("template_id", sa.Text),
    sa.Column("base_template_id", sa.Text),
    sa.Column("deployment_id", sa.Text),
    sa.Column("document", sa.LargeBinary, nullable=False),
    # The creation or the change of members that is in progress, so that any process can finish it.
    sa.Column("change", sa.LargeBinary),
    # Sleeptime groups: completed turns of the manager, the newest sequence id of its messages, the one up to which
    # transcripts have them, and times of the last turn and the last sleeptime runs.
    sa.Column("turns_counter", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("seen_sequence_id", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("processed_sequence_id", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("last_processed_message_id", sa.Text),
    sa.Column("last_turn_at", UtcDateTime),
    sa.Column("last_sleeptime_at", UtcDateTime),
    # The time at which the interval or the inactivity of the group is to be checked.
    sa.Column("sleeptime_due_at", UtcDateTime),
    sa.Column("created_at", UtcDateTime, nullable=False),
    sa.Column("updated_at", UtcDateTime, nullable=False),
    sa.Index("groups_by_creation", "organization_id", "created_at", "id"),
    sa.Index("groups_by_update", "organization_id", "updated_at", "id"),
    sa.Index("groups_by_manager", "manager_agent_id"),
    partial_index("groups_unfinished", "created_at", where="state <> 'active'"),
    partial_index("groups_sleeptime_due", "sleeptime_due_at", where="sleeptime_due_at IS NOT NULL"),
)

# The members of groups, in order of their position, without the manager.
group_members = sa.Table(
    "group_members",
    metadata,
    sa.Column("group_id", sa.Text, sa.ForeignKey("groups.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("agent_id", sa.Text, sa.ForeignKey("agents.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("position", sa.Integer, nullable=False),
    sa.Index("group_members_by_agent", "agent_id"),
)

sleeptime_settings = sa.Table(
    "sleeptime_settings",
    metadata,
    sa.Column("organization_id", sa.Text, primary_key=True),
    sa.Column("max_concurrent_runs", sa.Integer),
    sa.Column("updated_at", UtcDateTime, nullable=False),
)
