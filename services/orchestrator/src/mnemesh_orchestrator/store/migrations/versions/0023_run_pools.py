"""Adds the pools of runs, and an index of their unfinished runs instead of that of sleeptime runs."""

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None

_UNFINISHED = "status IN ('created', 'running')"


def upgrade() -> None:
    op.add_column("runs", sa.Column("pool", sa.Text))
    runs = sa.table("runs", *map(sa.column, ("pool", "batch_id", "origin", "status")))
    unfinished = runs.update().where(sa.text(_UNFINISHED))  # others need no pool
    op.execute(unfinished.where(runs.c.batch_id.is_not(None)).values(pool="batch"))
    op.execute(unfinished.where(runs.c.origin == "sleeptime").values(pool="sleeptime"))
    op.drop_index("runs_sleeptime", "runs")
    _create_index("runs_pools", ["organization_id", "pool", "status", "creation_number"], "pool IS NOT NULL")


def _create_index(name: str, columns: list[str], condition: str) -> None:
    where = sa.text(f"{condition} AND {_UNFINISHED}")
    op.create_index(name, "runs", columns, sqlite_where=where, postgresql_where=where)


def downgrade() -> None:
    op.drop_index("runs_pools", "runs")
    _create_index("runs_sleeptime", ["organization_id", "creation_number"], "origin = 'sleeptime'")
    with op.batch_alter_table("runs") as batch:
        batch.drop_column("pool")
