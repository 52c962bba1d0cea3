"""The SQL tables: folders, files, their contents, texts and passages, uploads, removals, and what agents hold."""

from typing import Any

import sqlalchemy as sa
from mnemesh_kit.audit import audit_table
from mnemesh_kit.idempotency import ledger_table
from mnemesh_kit.sql import Database, UtcDateTime
from mnemesh_kit.sql.owners import Owners

from mnemesh_files.model.files import PROVENANCE

metadata = sa.MetaData()


def _provenance() -> list[sa.Column[Any]]:
    return [sa.Column(name, sa.Text, nullable=name not in PROVENANCE[:2]) for name in PROVENANCE]


folders = sa.Table(
    "folders",
    metadata,
    sa.Column("organization_id", sa.Text, primary_key=True),
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("name_folded", sa.Text, nullable=False),
    sa.Column("description", sa.Text),
    sa.Column("instructions", sa.Text),
    sa.Column("metadata", sa.Text),
    sa.Column("embedder", sa.Text, nullable=False),
    sa.Column("chunk_size", sa.Integer, nullable=False),
    sa.Column("archive_id", sa.Text, nullable=False),
    sa.Column("file_count", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("size_bytes", sa.BigInteger, nullable=False, server_default="0"),
    # Raised by every change of the folder or its files that prompts of agents show; the revision of the directories of
    # an agent is a sum with these.
    sa.Column("revision", sa.BigInteger, nullable=False, server_default="1"),
    # The time of the last change that raised the revision.
    sa.Column("changed_at", UtcDateTime, nullable=False),
    sa.Column("created_at", UtcDateTime, nullable=False),
    sa.Column("updated_at", UtcDateTime, nullable=False),
    *_provenance(),
    # Set on a tombstone, which has nothing of the content. The id is never used again.
    sa.Column("deleted_at", UtcDateTime),
)

files = sa.Table(
    "files",
    metadata,
    sa.Column("organization_id", sa.Text, primary_key=True),
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("folder_id", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("names_folded", sa.Text, nullable=False),  # name and original name, for searches
    sa.Column("original_name", sa.Text, nullable=False),
    sa.Column("media_type", sa.Text, nullable=False),
    # Whether the client gave the type; then detection does not change it.
    sa.Column("media_type_given", sa.Boolean, nullable=False),
    sa.Column("size_bytes", sa.BigInteger, nullable=False),
    sa.Column("sha256", sa.Text, nullable=False),
    sa.Column("blob_id", sa.Text),
    sa.Column("status", sa.Text, nullable=False),
    sa.Column("error_message", sa.Text),
    # The parsed text that views show, and whether its passages are in the archive.
    sa.Column("text_id", sa.Text),
    sa.Column("searchable", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("total_chunks", sa.Integer),
    sa.Column("chunks_embedded", sa.Integer),
    sa.Column("total_lines", sa.Integer),
    sa.Column("total_chars", sa.BigInteger),
    sa.Column("total_pages", sa.Integer),
    # The first line of each page, and the warnings of the parser, as JSON.
    sa.Column("page_starts", sa.Text),
    sa.Column("warnings", sa.Text),
    # What the lines of the text are, and the programming language of code; see parsers.document.
    sa.Column("kind", sa.Text),
    sa.Column("language", sa.Text),
    # A text that is stored and whose passages are not all embedded, and the columns above for it, as JSON.
    sa.Column("next_text_id", sa.Text),
    sa.Column("next_text", sa.Text),
    sa.Column("path", sa.Text),
    sa.Column("original_created_at", UtcDateTime),
    sa.Column("original_updated_at", UtcDateTime),
    sa.Column("metadata", sa.Text),
    sa.Column("source_url", sa.Text),
    # What a download is verified with, as JSON.
    sa.Column("expected", sa.Text),
    # Counts the contents of the file.
    sa.Column("revision", sa.BigInteger, nullable=False, server_default="1"),
    # The work to be done. NULL: none. Else when a worker may claim the file next; a claim moves it to its own end.
    sa.Column("due_at", UtcDateTime),
    # Counts the claims. A worker writes only while this is the number of its own claim.
    sa.Column("claim", sa.BigInteger, nullable=False, server_default="0"),
    # Failed or interrupted claims since the last progress.
    sa.Column("failures", sa.Integer, nullable=False, server_default="0"),
    sa.Column("created_at", UtcDateTime, nullable=False),
    sa.Column("updated_at", UtcDateTime, nullable=False),
    *_provenance(),
    sa.Column("deleted_at", UtcDateTime),
)

# A content in the blob store. Files of one organization with equal content share one.
blobs = sa.Table(
    "blobs",
    metadata,
    sa.Column("organization_id", sa.Text, primary_key=True),
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("sha256", sa.Text, nullable=False),
    sa.Column("size_bytes", sa.BigInteger, nullable=False),
    # Whether the blob store has the content. Before, the row reserves the id.
    sa.Column("stored", sa.Boolean, nullable=False),
    # When the sweep looks whether a file or an upload refers to it. NULL while a file is known to.
    sa.Column("check_at", UtcDateTime),
    # Set when the removal has begun. Nothing refers to it from then on.
    sa.Column("removing_at", UtcDateTime),
)

# The parsed texts, as compressed segments of consecutive lines.
segments = sa.Table(
    "segments",
    metadata,
    sa.Column("organization_id", sa.Text, primary_key=True),
    sa.Column("file_id", sa.Text, primary_key=True),
    sa.Column("text_id", sa.Text, primary_key=True),
    # The number of the first line, from 1.
    sa.Column("first_line", sa.Integer, primary_key=True),
    sa.Column("line_count", sa.Integer, nullable=False),
    # Zlib of the UTF-8 of the lines, joined by line feeds.
    sa.Column("data", sa.LargeBinary, nullable=False),
)

# The passages of a text. A passage whose text did not change belongs to the old and the new text.
file_passages = sa.Table(
    "file_passages",
    metadata,
    sa.Column("organization_id", sa.Text, primary_key=True),
    sa.Column("file_id", sa.Text, primary_key=True),
    sa.Column("text_id", sa.Text, primary_key=True),
    sa.Column("position", sa.Integer, primary_key=True),
    sa.Column("passage_id", sa.Text, nullable=False),
    # SHA-256 of the text.
    sa.Column("text_hash", sa.Text, nullable=False),
    # Whether the archive has it. Before that, it may have it.
    sa.Column("embedded", sa.Boolean, nullable=False),
    sa.Column("start_line", sa.Integer, nullable=False),
    sa.Column("end_line", sa.Integer, nullable=False),
    sa.Index("file_passages_by_passage", "organization_id", "passage_id"),
)

uploads = sa.Table(
    "uploads",
    metadata,
    sa.Column("organization_id", sa.Text, primary_key=True),
    sa.Column("id", sa.Text, primary_key=True),
    # The header, as JSON.
    sa.Column("header", sa.Text, nullable=False),
    sa.Column("received_bytes", sa.BigInteger, nullable=False),
    sa.Column("created_at", UtcDateTime, nullable=False),
    sa.Column("expires_at", UtcDateTime, nullable=False, index=True),
)

upload_parts = sa.Table(
    "upload_parts",
    metadata,
    sa.Column("organization_id", sa.Text, primary_key=True),
    sa.Column("upload_id", sa.Text, primary_key=True),
    sa.Column("offset", sa.BigInteger, primary_key=True),
    sa.Column("size_bytes", sa.BigInteger, nullable=False),
    sa.Column("blob_id", sa.Text, nullable=False),
    sa.Index("upload_parts_by_blob", "organization_id", "blob_id"),
)

# What is deleted and still has traces: in the archive, among the segments and in the blob store.
removals = sa.Table(
    "removals",
    metadata,
    sa.Column("organization_id", sa.Text, primary_key=True),
    # The kind and the id of what is removed, for example `file` and a file id.
    sa.Column("kind", sa.Text, primary_key=True),
    sa.Column("id", sa.Text, primary_key=True),
    # What the removal needs to know, as JSON.
    sa.Column("details", sa.Text, nullable=False),
    # When a worker may claim the removal next.
    sa.Column("due_at", UtcDateTime, nullable=False, index=True),
    sa.Column("failures", sa.Integer, nullable=False, server_default="0"),
)

# The agents that hold folders, or did.
agents = sa.Table(
    "agents",
    metadata,
    sa.Column("organization_id", sa.Text, primary_key=True),
    sa.Column("id", sa.Text, primary_key=True),
    # The part of the revision of its directories that is not of its folders. It never becomes smaller.
    sa.Column("base_revision", sa.BigInteger, nullable=False),
    sa.Column("changed_at", UtcDateTime, nullable=False),
    # Counts the uses of its files, which are the order in which files are closed.
    sa.Column("uses", sa.BigInteger, nullable=False),
    sa.Column("max_files_open", sa.Integer),
    sa.Column("view_char_limit", sa.Integer),
    # Whether the orchestrator knows that the agent holds folders, and when it is told next; NULL: it knows what holds.
    sa.Column("announced", sa.Boolean, nullable=False),
    sa.Column("announce_at", UtcDateTime),
    sa.Column("erased_at", UtcDateTime),
)

agent_folders = sa.Table(
    "agent_folders",
    metadata,
    sa.Column("organization_id", sa.Text, primary_key=True),
    sa.Column("agent_id", sa.Text, primary_key=True),
    sa.Column("folder_id", sa.Text, primary_key=True),
    sa.Column("attached_at", UtcDateTime, nullable=False),
    # True if files of the folder are opened without a request, once each.
    sa.Column("opens_files", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Index("agent_folders_by_folder", "organization_id", "folder_id", "agent_id"),
)

# The files that an agent opened or found. The others of its folders are closed and were never used.
agent_files = sa.Table(
    "agent_files",
    metadata,
    sa.Column("organization_id", sa.Text, primary_key=True),
    sa.Column("agent_id", sa.Text, primary_key=True),
    sa.Column("file_id", sa.Text, primary_key=True),
    sa.Column("folder_id", sa.Text, nullable=False),
    sa.Column("is_open", sa.Boolean, nullable=False),
    # False if it was found and never opened: then it has no window.
    sa.Column("has_window", sa.Boolean, nullable=False),
    sa.Column("start_line", sa.Integer),
    sa.Column("end_line", sa.Integer),
    # The number of its last use among those of the agent, and the time.
    sa.Column("used", sa.BigInteger, nullable=False),
    sa.Column("used_at", UtcDateTime, nullable=False),
    sa.Column("updated_at", UtcDateTime, nullable=False),
    sa.Index("agent_files_by_file", "organization_id", "file_id"),
)


def _index(name: str, *columns: sa.Column[Any], where: sa.ColumnElement[bool], unique: bool = False) -> None:
    """Declares an index of the rows that fulfil a condition."""
    sa.Index(name, *columns, unique=unique, sqlite_where=where, postgresql_where=where)


_f, _d, _b = files.c, folders.c, blobs.c
_index("folders_by_name", _d.organization_id, _d.name, where=_d.deleted_at.is_(None), unique=True)
_index("folders_by_time", _d.organization_id, _d.created_at, _d.id, where=_d.deleted_at.is_(None))
_index("folders_by_deletion", _d.deleted_at, where=_d.deleted_at.is_not(None))
_index("files_by_name", _f.organization_id, _f.folder_id, _f.name, where=_f.deleted_at.is_(None), unique=True)
_index("files_by_time", _f.organization_id, _f.created_at, _f.id, where=_f.deleted_at.is_(None))
_index("files_by_work", _f.organization_id, _f.due_at, where=_f.due_at.is_not(None))
_index("files_by_blob", _f.organization_id, _f.blob_id, where=_f.blob_id.is_not(None))
_index("files_by_deletion", _f.deleted_at, where=_f.deleted_at.is_not(None))
_index("blobs_by_content", _b.organization_id, _b.sha256, where=_b.removing_at.is_(None))
_index("blobs_by_check", _b.check_at, where=_b.check_at.is_not(None))
_index("agents_by_announcement", agents.c.announce_at, where=agents.c.announce_at.is_not(None))

request_ledger = ledger_table(metadata)
audit_entries = audit_table(metadata)


def owners(database: Database) -> Owners:
    """Returns what finds the agents to which things belong: those to which their folder is attached."""
    own, links = folders.c, agent_folders.c
    is_attached = sa.and_(links.organization_id == own.organization_id, links.folder_id == own.id)
    is_inside = sa.and_(files.c.organization_id == own.organization_id, files.c.folder_id == own.id)
    held = folders.outerjoin(agent_folders, is_attached)
    selects = {
        "source": sa.select(own.organization_id, own.id, links.agent_id).select_from(held),
        "file": sa.select(files.c.organization_id, files.c.id, links.agent_id).select_from(held.join(files, is_inside)),
    }
    return Owners(database, **{name: select.where(own.deleted_at.is_(None)) for name, select in selects.items()})
