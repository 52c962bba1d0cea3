"""Passages as points of the vector index: collections, payloads and filters."""

from __future__ import annotations

from typing import Any, Final

from mnemesh_retrieval.filters import Filter, Match, MatchAll, MatchAny, TimeRange, all_of
from mnemesh_retrieval.index import Collection, instant

from mnemesh_archival.store.base.index_records import IndexedPassage
from mnemesh_archival.store.base.passages import PassageScope

KEYWORD_FIELDS: Final = ("organization_id", "archive_id", "tags", "agent_id", "file_id", "folder_id", "source")


def collection(embedder: str, dimension: int) -> Collection:
    """Returns the collection of an embedder."""
    return Collection(
        f"passages:{embedder}",
        dimension,
        keyword_fields=KEYWORD_FIELDS,
        datetime_fields=("created_at",),
        tenant_field="archive_id",
    )


def payload(passage: IndexedPassage) -> dict[str, Any]:
    """Returns the fields of a passage by which searches filter."""
    return {
        "organization_id": passage.organization_id,
        "archive_id": passage.archive_id,
        "tags": list(passage.tags),
        "source": passage.source,
        "agent_id": passage.agent_id,
        "file_id": passage.file_id,
        "folder_id": passage.folder_id,
        "created_at": instant(passage.created_at),
    }


def scope_filter(scope: PassageScope) -> Filter:
    """Returns the filter of a search."""
    filter_ = scope.filter
    tags = MatchAll("tags", filter_.tags) if filter_.every_tag else MatchAny("tags", filter_.tags)
    return all_of(
        Match("organization_id", scope.organization_id),
        MatchAny("archive_id", scope.archive_ids) if scope.archive_ids is not None else None,
        tags if filter_.tags else None,
        Match("file_id", filter_.file_id) if filter_.file_id is not None else None,
        MatchAny("file_id", filter_.file_ids) if filter_.file_ids else None,
        Match("folder_id", filter_.folder_id) if filter_.folder_id is not None else None,
        MatchAny("source", tuple(source.name for source in filter_.sources)) if filter_.sources else None,
        TimeRange("created_at", filter_.since, filter_.until) if filter_.since or filter_.until else None,
    )
