"""Moves passages into SQL: columns for their content, and an outbox in place of operations on the index.

The content itself is copied from the vector index when the service starts (vectors/earlier_points.py). Until then, a
row has no `source`. Recorded operations become rows or entries of the outbox: inserts are complete passages; what an
unfinished update sets is in the row, which the copy leaves alone.
"""

import json
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from alembic import op
from mnemesh_kit.sql import UtcDateTime

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

SEPARATOR = "\x1f"
ENVELOPE_BYTES = 400
SOURCES = ("UNSPECIFIED", "AGENT", "FILE", "IMPORT", "OWNER")
LIVE, DEAD = sa.text("deleted_at IS NULL"), sa.text("deleted_at IS NOT NULL")
INDEXES: dict[str, tuple[tuple[str, ...], sa.TextClause | None]] = {
    "passages_by_time": (("organization_id", "archive_id", "created_at", "id"), LIVE),
    "passages_by_organization": (("organization_id", "created_at", "id"), LIVE),
    "passages_by_position": (
        ("organization_id", "archive_id", "position", "deleted_at", "point_id", "strand", "created_at"),
        None,
    ),
    "passages_by_content": (("organization_id", "archive_id", "content_hash"), LIVE),
    "passages_by_agent": (("organization_id", "agent_id"), sa.text("agent_id IS NOT NULL")),
    "passages_by_file": (("organization_id", "file_id", "created_at", "id"), sa.text("file_id IS NOT NULL")),
    "passages_by_deletion": (("deleted_at",), DEAD),
    "passages_uncopied": (("point_id",), sa.text("source IS NULL")),
}
COLUMNS = (
    ("source", sa.Text()),
    ("file_id", sa.Text()),
    ("folder_id", sa.Text()),
    ("file_name", sa.Text()),
    ("chunk_index", sa.Integer()),
    ("updated_at", UtcDateTime()),
)


def upgrade() -> None:
    for name, kind in COLUMNS:
        op.add_column("passages", sa.Column(name, kind, nullable=True))
    op.add_column("passages", sa.Column("size", sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("passages", sa.Column("metadata", sa.Text(), nullable=True))
    op.add_column("passages", sa.Column("text", sa.Text(), nullable=True))
    _create_outbox()
    op.create_table(
        "left_collections",
        sa.Column("organization_id", sa.Text(), nullable=False),
        sa.Column("archive_id", sa.Text(), nullable=False),
        sa.Column("embedder", sa.Text(), nullable=False),
        sa.Column("remove_after", UtcDateTime(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False, server_default="0"),
        sa.PrimaryKeyConstraint("organization_id", "archive_id", "embedder"),
    )
    op.create_index("ix_left_collections_remove_after", "left_collections", ["remove_after"])
    _convert(op.get_bind())
    for name in ("place", "generation", "content", "agent", "deletion"):
        op.drop_index(f"passages_by_{name}", table_name="passages")
    for name in ("state", "generation", "changes"):
        op.drop_column("passages", name)
    for name, (columns, where) in INDEXES.items():
        op.create_index(name, "passages", list(columns), sqlite_where=where, postgresql_where=where)
    op.drop_column("reembeddings", "writers_wait_until")
    for name in ("position", "last_position", "done"):
        op.add_column("reembeddings", sa.Column(name, sa.BigInteger(), nullable=False, server_default="0"))
    op.execute(
        "UPDATE reembeddings SET last_position = COALESCE((SELECT MAX(p.position) FROM passages AS p"
        " WHERE p.organization_id = reembeddings.organization_id AND p.archive_id = reembeddings.archive_id), 0)"
    )
    op.drop_index("operations_by_passage", table_name="operations")
    op.drop_index("ix_operations_claimed_until", table_name="operations")
    op.drop_table("operations")


def _create_outbox() -> None:
    row_id = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "index_outbox",
        sa.Column("row_id", row_id, autoincrement=True, nullable=False),
        sa.Column("collection", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("subject_id", sa.Text(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("claimed_by", sa.Text(), nullable=True),
        sa.Column("claimed_until", UtcDateTime(), nullable=True),
        sa.PrimaryKeyConstraint("row_id"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_index_outbox_subject", "index_outbox", ["subject_id"])
    op.create_table(
        "index_holders",
        sa.Column("collection", sa.Text(), nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("expires_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("collection"),
    )


def downgrade() -> None:
    raise NotImplementedError("Earlier versions store passages in the vector index. Restore a backup instead.")


def _table(name: str, *columns: str, **typed: Any) -> sa.TableClause:
    kinds = {**dict.fromkeys(columns, sa.Text), **typed}
    return sa.table(name, *(sa.column(column, kind) for column, kind in kinds.items()))


PASSAGES = _table(
    "passages",
    *("organization_id", "id", "archive_id", "point_id", "state", "tags", "agent_id", "source", "file_id"),
    *("folder_id", "file_name", "metadata", "text"),
    chunk_index=sa.Integer, size=sa.BigInteger, updated_at=UtcDateTime, deleted_at=UtcDateTime,
)  # fmt: skip
ARCHIVES = _table(
    "archives", "organization_id", "id", passage_count=sa.BigInteger, revision=sa.BigInteger, deleted_at=UtcDateTime
)
TAGS = _table("archive_tags", "organization_id", "archive_id", "tag", uses=sa.BigInteger)
OUTBOX = _table("index_outbox", "collection", "kind", "subject_id", created_at=UtcDateTime)
LEFT = _table("left_collections", "organization_id", "archive_id", "embedder", remove_after=UtcDateTime)
OPERATIONS = _table("operations", "organization_id", "id", "kind", "body", created_at=UtcDateTime)


def _convert(conn: sa.Connection) -> None:
    conn.execute(PASSAGES.update().where(PASSAGES.c.state == "deleted").values(source="", text="", tags=""))
    conn.execute(PASSAGES.update().where(PASSAGES.c.tags == "[]").values(tags=""))
    tagged = sa.select(PASSAGES.c.organization_id, PASSAGES.c.id, PASSAGES.c.tags).where(PASSAGES.c.tags != "")
    for row in conn.execute(tagged).all():
        tags = f"{SEPARATOR}{SEPARATOR.join(json.loads(row.tags))}{SEPARATOR}"
        conn.execute(PASSAGES.update().where(_is(row.organization_id, row.id)).values(tags=tags))
    for row in conn.execute(sa.select(OPERATIONS).order_by(OPERATIONS.c.created_at, OPERATIONS.c.id)).all():
        body = json.loads(row.body)
        match row.kind:
            case "InsertPoints":
                for passage, point in zip(body["passages"], body["point_ids"], strict=True):
                    _insert(conn, row.organization_id, passage)
                    _change(conn, body["embedder"], "record", point, row.created_at)
            case "UpdatePoint":
                _update(conn, row.organization_id, body)
                _change(conn, body["embedder"], "record", body["point_id"], row.created_at)
            case "DeletePoints":
                for point in body["point_ids"]:
                    _change(conn, body["embedder"], "record", point, row.created_at)
            case "DropArchive" if row.id.startswith("drop-") or _is_deleted(
                conn, row.organization_id, body["archive_id"]
            ):
                _change(conn, body["embedder"], "group", body["archive_id"], row.created_at)
            case "DropArchive":
                left = {name: body[name] for name in ("organization_id", "archive_id", "embedder")}
                conn.execute(LEFT.insert().values(**left, remove_after=row.created_at))
    # Rows whose insert has no operation left were never acknowledged.
    conn.execute(PASSAGES.delete().where(PASSAGES.c.state == "pending"))


def _change(conn: sa.Connection, collection: str, kind: str, subject: str, now: datetime) -> None:
    conn.execute(OUTBOX.insert().values(collection=collection, kind=kind, subject_id=subject, created_at=now))


def _is_deleted(conn: sa.Connection, organization_id: str, archive_id: str) -> bool:
    live = sa.select(ARCHIVES.c.id).where(
        ARCHIVES.c.organization_id == organization_id, ARCHIVES.c.id == archive_id, ARCHIVES.c.deleted_at.is_(None)
    )
    return conn.execute(live).first() is None


def _is(organization_id: str, passage_id: str) -> sa.ColumnElement[bool]:
    return sa.and_(PASSAGES.c.organization_id == organization_id, PASSAGES.c.id == passage_id)


def _insert(conn: sa.Connection, organization_id: str, passage: dict[str, Any]) -> None:
    """Completes a pending passage, and counts it."""
    texts = [passage["text"], passage["metadata"] or "", passage["file_name"] or "", *passage["tags"]]
    values = {name: passage[name] for name in ("text", "metadata", "file_id", "folder_id", "file_name", "chunk_index")}
    values["source"] = SOURCES[passage["source"]]
    values["updated_at"] = datetime.fromisoformat(passage["updated_at"])
    values["size"] = ENVELOPE_BYTES + sum(len(text.encode()) for text in texts)
    pending = sa.and_(_is(organization_id, passage["id"]), PASSAGES.c.state == "pending")
    if not conn.execute(PASSAGES.update().where(pending).values(**values, state="live")).rowcount:
        return
    mine = sa.and_(ARCHIVES.c.organization_id == organization_id, ARCHIVES.c.id == passage["archive_id"])
    counted = {"passage_count": ARCHIVES.c.passage_count + 1, "revision": ARCHIVES.c.revision + 1}
    conn.execute(ARCHIVES.update().where(mine).values(**counted))
    for tag in passage["tags"]:
        key = {"organization_id": organization_id, "archive_id": passage["archive_id"], "tag": tag}
        used = sa.and_(*(TAGS.c[name] == value for name, value in key.items()))
        if not conn.execute(TAGS.update().where(used).values(uses=TAGS.c.uses + 1)).rowcount:
            conn.execute(TAGS.insert().values(**key, uses=1))


def _update(conn: sa.Connection, organization_id: str, body: dict[str, Any]) -> None:
    """Keeps what an unfinished update sets. Its tags are in the row already; metadata "null" means none."""
    change = body["change"]
    values: dict[str, Any] = {"updated_at": datetime.fromisoformat(change["updated_at"])}
    if "text" in change["fields"]:
        values["text"] = change["text"]
    if "metadata" in change["fields"]:
        values["metadata"] = change["metadata"]
    mine = _is(organization_id, body["passage_id"])
    conn.execute(PASSAGES.update().where(mine, PASSAGES.c.source.is_not(None)).values(**values))
    if "metadata" in change["fields"]:
        values["metadata"] = change["metadata"] or "null"
    conn.execute(PASSAGES.update().where(mine, PASSAGES.c.source.is_(None)).values(**values))
