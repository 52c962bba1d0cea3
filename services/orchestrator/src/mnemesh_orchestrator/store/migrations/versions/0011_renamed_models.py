"""Renames the built-in model and embedders from `engram/…` to `mnemesh/…` where a stored handle selects a model later.

Completed runs, steps, events and messages keep the name under which they were produced.
"""

import re

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

OLD = "engram"
NEW = "mnemesh"
PAGE = 500
# A quote inside a JSON string is escaped, so a pattern with bare quotes matches keys and values only, never text.
HANDLE = rb'"(%s)":"%s/(rehearsal|wordllama-256|hashing-256)"'
# Table, column, and the keys that hold a handle.
DOCUMENTS = (
    ("agents", "document", b"model|embedder"),
    ("agents", "creation", b"model|embedder"),
    ("agents", "corrections", b"model"),
    ("conversations", "document", b"model"),
    ("runs", "document", b"override_model"),
    ("approvals", "document", b"override_model"),
)
# A failed run can be retried with its own config; a completed one is read only.
CONDITIONS = {"runs": sa.column("status") != "completed", "approvals": sa.column("state") == "pending"}


def upgrade() -> None:
    _rename(OLD, NEW)


def downgrade() -> None:
    _rename(NEW, OLD)


def _rename(old: str, new: str) -> None:
    conn = op.get_bind()
    # An organization's own provider of that name has precedence over the built-in one: its handles stay.
    providers = sa.table("providers", sa.column("organization_id", sa.Text), sa.column("name", sa.Text))
    own = set(conn.execute(sa.select(providers.c.organization_id).where(providers.c.name == old)).scalars())
    for table, column, keys in DOCUMENTS:
        _rename_in_documents(conn, table, column, re.compile(HANDLE % (keys, old.encode())), old, new, own)
    _rename_overrides(conn, old, new, own)


def _rename_in_documents(
    conn: sa.Connection, name: str, column: str, pattern: re.Pattern[bytes], old: str, new: str, own: set[str]
) -> None:
    table = sa.table(
        name, sa.column("id", sa.Text), sa.column("organization_id", sa.Text), sa.column(column, sa.LargeBinary)
    )
    document = table.c[column]
    part = sa.literal(f'"{old}/'.encode(), sa.LargeBinary)
    found = (
        sa.func.instr(document, part) if conn.dialect.name == "sqlite" else sa.func.position(part.op("IN")(document))
    )
    page = sa.select(table).where(found > 0, CONDITIONS.get(name, sa.true())).order_by(table.c.id).limit(PAGE)
    after = ""
    while rows := conn.execute(page.where(table.c.id > after)).all():
        after = rows[-1].id
        for row_id, organization_id, before in rows:
            renamed = pattern.sub(rb'"\1":"%s/\2"' % new.encode(), bytes(before))
            if renamed != bytes(before) and organization_id not in own:
                conn.execute(table.update().where(table.c.id == row_id).values({column: renamed}))


def _rename_overrides(conn: sa.Connection, old: str, new: str, own: set[str]) -> None:
    overrides = sa.table(
        "model_overrides",
        sa.column("organization_id", sa.Text),
        sa.column("handle", sa.Text),
        sa.column("document", sa.LargeBinary),
    )
    before, after = f"{old}/rehearsal", f"{new}/rehearsal"
    known = set(conn.execute(sa.select(overrides.c.organization_id).where(overrides.c.handle == after)).scalars())
    rows = conn.execute(
        sa.select(overrides.c.organization_id, overrides.c.document).where(overrides.c.handle == before)
    ).all()
    for organization_id, document in rows:
        if organization_id not in own | known:
            renamed = bytes(document).replace(f'"handle":"{before}"'.encode(), f'"handle":"{after}"'.encode())
            conn.execute(
                overrides.update()
                .where(overrides.c.organization_id == organization_id, overrides.c.handle == before)
                .values(handle=after, document=renamed)
            )
