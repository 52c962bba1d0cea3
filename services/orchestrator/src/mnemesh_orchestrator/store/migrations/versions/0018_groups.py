"""Groups, the queues of their runs, and the relations between runs."""

import sqlalchemy as sa
from alembic import op
from mnemesh_kit.sql import UtcDateTime

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

# Tables that refer to conversations, and conversations itself, in the order in which SQLite can drop them.
REBUILT = ("slot_waits", "approvals", "conversations")


def upgrade() -> None:
    _create_groups()
    if op.get_bind().dialect.name == "sqlite":
        _rebuild_conversations()
    else:
        op.alter_column("conversations", "agent_id", nullable=True)
        op.add_column("conversations", sa.Column("group_id", sa.Text, sa.ForeignKey("groups.id", ondelete="CASCADE")))
    _create_index("conversations_by_group", "conversations", ["group_id"], "group_id IS NOT NULL")
    op.add_column("runs", sa.Column("group_id", sa.Text))
    op.add_column("runs", sa.Column("parent_run_id", sa.Text))
    op.add_column("runs", sa.Column("origin", sa.Text, nullable=False, server_default="client"))
    _create_index("runs_by_group", "runs", ["group_id", "creation_number"], "group_id IS NOT NULL")
    _create_index("runs_by_parent", "runs", ["parent_run_id", "creation_number"], "parent_run_id IS NOT NULL")
    _create_index(
        "runs_sleeptime",
        "runs",
        ["organization_id", "creation_number"],
        "origin = 'sleeptime' AND status IN ('created', 'running')",
    )


def _create_index(name: str, table: str, columns: list[str], where: str) -> None:
    op.create_index(name, table, columns, sqlite_where=sa.text(where), postgresql_where=sa.text(where))


def _create_groups() -> None:
    op.create_table(
        "groups",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("organization_id", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("manager_type", sa.Text, nullable=False),
        sa.Column("manager_agent_id", sa.Text),
        sa.Column("hidden", sa.Boolean, nullable=False),
        sa.Column("project_id", sa.Text),
        sa.Column("template_id", sa.Text),
        sa.Column("base_template_id", sa.Text),
        sa.Column("deployment_id", sa.Text),
        sa.Column("document", sa.LargeBinary, nullable=False),
        sa.Column("change", sa.LargeBinary),
        sa.Column("turns_counter", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("seen_sequence_id", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("processed_sequence_id", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("last_processed_message_id", sa.Text),
        sa.Column("last_turn_at", UtcDateTime),
        sa.Column("last_sleeptime_at", UtcDateTime),
        sa.Column("sleeptime_due_at", UtcDateTime),
        sa.Column("created_at", UtcDateTime, nullable=False),
        sa.Column("updated_at", UtcDateTime, nullable=False),
    )
    op.create_index("groups_by_creation", "groups", ["organization_id", "created_at", "id"])
    op.create_index("groups_by_update", "groups", ["organization_id", "updated_at", "id"])
    op.create_index("groups_by_manager", "groups", ["manager_agent_id"])
    _create_index("groups_unfinished", "groups", ["created_at"], "state <> 'active'")
    _create_index("groups_sleeptime_due", "groups", ["sleeptime_due_at"], "sleeptime_due_at IS NOT NULL")
    op.create_table(
        "group_members",
        sa.Column("group_id", sa.Text, sa.ForeignKey("groups.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("agent_id", sa.Text, sa.ForeignKey("agents.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("position", sa.Integer, nullable=False),
    )
    op.create_index("group_members_by_agent", "group_members", ["agent_id"])
    op.create_table(
        "sleeptime_settings",
        sa.Column("organization_id", sa.Text, primary_key=True),
        sa.Column("max_concurrent_runs", sa.Integer),
        sa.Column("updated_at", UtcDateTime, nullable=False),
    )


def _rebuild_conversations() -> None:
    """Makes agent_id nullable. SQLite can only copy the table, and to drop the old one would delete what refers to it.

    So the tables that refer to it are copied first, and refer to the copy.
    """
    conn = op.get_bind()
    reflected = sa.MetaData()
    for name in REBUILT:
        sa.Table(name, reflected, autoload_with=conn)
    indexes = {name: list(reflected.tables[name].indexes) for name in REBUILT}
    for name in reversed(REBUILT):
        _copy(conn, reflected.tables[name])
    for name in REBUILT:
        op.drop_table(name)
    for name in reversed(REBUILT):
        op.rename_table(f"new_{name}", name)
    for name in REBUILT:
        for index in indexes[name]:
            index.create(conn)


def _copy(conn: sa.Connection, table: sa.Table) -> None:
    """Creates a copy of a table that refers to the copy of conversations, without indexes."""
    names = {"conversations": "new_conversations"}
    copy = sa.Table(f"new_{table.name}", sa.MetaData())
    for referred in {"agents", "groups", "new_conversations"} - {copy.name}:
        sa.Table(referred, copy.metadata, sa.Column("id", sa.Text, primary_key=True))
    for column in table.columns:
        keys = [
            sa.ForeignKey(f"{names.get(key.column.table.name, key.column.table.name)}.id", ondelete=key.ondelete)
            for key in column.foreign_keys
        ]
        nullable = column.nullable or (table.name == "conversations" and column.name == "agent_id")
        copied = sa.Column(
            column.name,
            column.type,
            *keys,
            primary_key=column.primary_key,
            nullable=nullable,
            server_default=column.server_default,
        )
        copy.append_column(copied)
    if table.name == "conversations":
        copy.append_column(sa.Column("group_id", sa.Text, sa.ForeignKey("groups.id", ondelete="CASCADE")))
    conn.execute(sa.schema.CreateTable(copy))
    columns = [column.name for column in table.columns]
    conn.execute(copy.insert().from_select(columns, sa.select(*table.columns)))


def downgrade() -> None:
    raise RuntimeError("A downgrade would delete the groups. Restore a backup instead.")
