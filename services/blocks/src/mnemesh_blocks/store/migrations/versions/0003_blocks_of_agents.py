"""Marks the blocks that were created for an agent; they are deleted with it.

The blocks of earlier creations are known only as long as their requests are recorded. The others outlive their agents.
"""

import msgspec
import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("blocks", sa.Column("created_for_agent_id", sa.Text))
    text = sa.Text
    blocks = sa.table("blocks", sa.column("id", text), sa.column("created_for_agent_id", text))
    requests = sa.table(
        "request_ledger", sa.column("method", text), sa.column("request_id", text), sa.column("result_ids", text)
    )
    conn = op.get_bind()
    # The orchestrator's request ids: {agent_id}/block/{number}.
    made = sa.select(requests).where(requests.c.method == "CreateBlock", requests.c.request_id.like("agent-%/block/%"))
    for row in conn.execute(made).all():
        agent_id = row.request_id.partition("/")[0]
        for block_id in msgspec.json.decode(row.result_ids, type=list[str]):
            conn.execute(blocks.update().where(blocks.c.id == block_id).values(created_for_agent_id=agent_id))


def downgrade() -> None:
    op.drop_column("blocks", "created_for_agent_id")
