"""Renames the built-in embedders from `engram/…` to `mnemesh/…` in archives, changes of embedders and open operations.

Their collections in the vector index keep the name under which they were created (see VectorPassageStore).
"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

MODELS = ("wordllama-256", "hashing-256")


def upgrade() -> None:
    _rename("engram", "mnemesh")


def downgrade() -> None:
    _rename("mnemesh", "engram")


def _rename(old: str, new: str) -> None:
    conn = op.get_bind()
    for name in ("archives", "reembeddings"):
        table = sa.table(name, sa.column("embedder", sa.Text))
        for model in MODELS:
            renamed = table.update().where(table.c.embedder == f"{old}/{model}").values(embedder=f"{new}/{model}")
            conn.execute(renamed)
    operations = sa.table("operations", sa.column("id", sa.Text), sa.column("body", sa.Text))
    for model in MODELS:
        # A quote inside a JSON string is escaped: bare quotes match the key and its value only.
        before, after = f'"embedder":"{old}/{model}"', f'"embedder":"{new}/{model}"'
        affected = operations.c.body.contains(before, autoescape=True)
        renamed = operations.update().where(affected).values(body=sa.func.replace(operations.c.body, before, after))
        conn.execute(renamed)
        # The id of an operation that drops an archive from a collection ends in the embedder; its body contains the id.
        conn.execute(
            operations.update()
            .where(operations.c.id.like(f"vacate-%/{old}/{model}"))
            .values(
                id=sa.func.replace(operations.c.id, f"/{old}/{model}", f"/{new}/{model}"),
                body=sa.func.replace(operations.c.body, f"/{old}/{model}", f"/{new}/{model}"),
            )
        )
