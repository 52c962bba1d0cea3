"""Marks the archives that the first insert of an agent created; they are deleted with the agent."""

import sqlalchemy as sa
from alembic import op
from mnemesh_kit.ids import derive_id

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("archives", sa.Column("created_for_agent_id", sa.Text(), nullable=True))
    conn = op.get_bind()
    text = sa.Text
    archives = sa.table(
        "archives", sa.column("organization_id", text), sa.column("id", text), sa.column("created_for_agent_id", text)
    )
    held = sa.table(
        "archive_agents",
        sa.column("organization_id", text),
        sa.column("archive_id", text),
        sa.column("agent_id", text),
    )
    known = {(row.organization_id, row.id) for row in conn.execute(sa.select(archives))}
    for row in conn.execute(sa.select(held)).all():
        # The ids of such archives derive from the agent and the first unused number.
        number = 0
        while (row.organization_id, derived := _derived(row.organization_id, row.agent_id, number)) in known:
            if derived == row.archive_id:
                of_archive = sa.and_(archives.c.organization_id == row.organization_id, archives.c.id == derived)
                conn.execute(archives.update().where(of_archive).values(created_for_agent_id=row.agent_id))
            number += 1


def downgrade() -> None:
    op.drop_column("archives", "created_for_agent_id")


def _derived(organization_id: str, agent_id: str, number: int) -> str:
    return derive_id("archive", organization_id, agent_id, str(number))
