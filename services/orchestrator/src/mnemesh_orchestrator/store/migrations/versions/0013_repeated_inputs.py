"""Repeated inputs: hashes of sent messages, retries by their first run, one operation for SendMessage and StartRun."""

import msgspec
import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

PAGE = 500
MARK = b'"takes_up":["'

_runs = sa.table(
    "runs",
    sa.column("id", sa.Text),
    sa.column("organization_id", sa.Text),
    sa.column("request_method", sa.Text),
    sa.column("request_id", sa.Text),
    sa.column("first_run_id", sa.Text),
    sa.column("document", sa.LargeBinary),
)


def upgrade() -> None:
    op.add_column("run_otids", sa.Column("message_hash", sa.Text))
    op.add_column("run_otids", sa.Column("input_hash", sa.Text))
    op.add_column("runs", sa.Column("first_run_id", sa.Text))
    _fill_first_runs()
    where = sa.text("first_run_id IS NOT NULL")
    op.create_index(
        "runs_retries", "runs", ["first_run_id", "queue_number"], sqlite_where=where, postgresql_where=where
    )
    _rename_operation()


def _fill_first_runs() -> None:
    conn, last = op.get_bind(), ""
    page = sa.select(_runs.c.id, _runs.c.document).order_by(_runs.c.id).limit(PAGE)
    while rows := conn.execute(page.where(_runs.c.id > last)).all():
        for run_id, document in rows:
            if MARK in bytes(document):
                retried = msgspec.json.decode(bytes(document))["takes_up"]
                conn.execute(_runs.update().where(_runs.c.id == run_id).values(first_run_id=retried[-1]))
        last = rows[-1].id


def _rename_operation() -> None:
    """Two runs may have one id, because each method counted on its own. The second keeps its method."""
    other = _runs.alias()
    taken = sa.exists().where(
        other.c.organization_id == _runs.c.organization_id,
        other.c.request_id == _runs.c.request_id,
        other.c.request_method == "SendMessage",
    )
    renamed = _runs.update().where(_runs.c.request_method == "StartRun", ~taken).values(request_method="SendMessage")
    op.get_bind().execute(renamed)


def downgrade() -> None:
    op.drop_index("runs_retries", "runs")
    for table, column in (("runs", "first_run_id"), ("run_otids", "input_hash"), ("run_otids", "message_hash")):
        with op.batch_alter_table(table) as batch:
            batch.drop_column(column)
