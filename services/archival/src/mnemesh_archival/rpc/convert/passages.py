"""Between the generated messages and the room's own types."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from mnemesh.archival.v1 import archives_pb2 as apb
from mnemesh.archival.v1 import archives_service_pb2 as aspb
from mnemesh.archival.v1 import passages_service_pb2 as ppb
from mnemesh.types.v1 import audit_pb2
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.ids import require_id

from mnemesh_archival import dates
from mnemesh_archival.model.archives import MAX_NAME_LENGTH, Archive, ArchiveDraft, ArchiveFilter, Provenance, Summary
from mnemesh_archival.model.passages import (
    MAX_PASSAGES,
    InsertOutcome,
    InsertTarget,
    Passage,
    PassageDraft,
    PassageFilter,
    PassageSource,
    checked_tags,
)
from mnemesh_archival.model.search import DEFAULT_HITS, MAX_HITS, MAX_QUERY_LENGTH, PassageHit, SearchKind
from mnemesh_archival.model.texts import checked_free

CALLERS_PROVENANCE = ("project_id", "template_id", "base_template_id", "deployment_id", "entity_id")
KINDS = {
    ppb.PASSAGE_SEARCH_MODE_UNSPECIFIED: SearchKind.HYBRID,
    ppb.PASSAGE_SEARCH_MODE_HYBRID: SearchKind.HYBRID,
    ppb.PASSAGE_SEARCH_MODE_TEXT: SearchKind.TEXT,
    ppb.PASSAGE_SEARCH_MODE_VECTOR: SearchKind.VECTOR,
}
MAX_FILTER_IDS = 1_000


def archive_id(value: str, field: str = "archive_id") -> str:
    """A well-formed archive id."""
    return require_id(value, "archive", field)


def agent_id(value: str, field: str = "agent_id") -> str:
    """A well-formed agent id."""
    return require_id(value, "agent", field)


def agent_ids(values: Sequence[str]) -> list[str]:
    """Well-formed agent ids."""
    if len(values) > MAX_FILTER_IDS:
        raise InvalidArgument(f"agent_ids must be at most {MAX_FILTER_IDS:,}.", field="agent_ids")
    return [agent_id(value, "agent_ids") for value in values]


def passage_id(value: str, field: str = "passage_id") -> str:
    """A well-formed passage id."""
    return require_id(value, "passage", field)


def archive_draft(archive: apb.Archive) -> ArchiveDraft:
    """What a caller says of an archive."""
    carried: dict[str, Any] = {name: _optional(archive.provenance, name) for name in CALLERS_PROVENANCE}
    for name, value in carried.items():
        if value is not None:
            checked_free(value, f"archive.provenance.{name}", MAX_NAME_LENGTH, controls="")
    return ArchiveDraft(
        name=archive.name,
        description=_optional(archive, "description"),
        embedder=checked_free(archive.embedder, "archive.embedder", MAX_NAME_LENGTH, controls=""),
        metadata=_optional(archive, "metadata"),
        deduplicate=archive.deduplicate,
        provenance=Provenance(**carried),
    )


def archive_filter(given: aspb.ArchiveFilter) -> ArchiveFilter:
    """Which archives a list is about."""
    if len(given.archive_ids) > MAX_FILTER_IDS:
        raise InvalidArgument(f"filter.archive_ids must be at most {MAX_FILTER_IDS:,}.", field="filter.archive_ids")
    for name in ("name", "name_search"):
        checked_free(getattr(given, name), f"filter.{name}", MAX_NAME_LENGTH, controls="")
    return ArchiveFilter(
        agent_id=agent_id(given.agent_id, "filter.agent_id") if given.HasField("agent_id") else None,
        name=_optional(given, "name"),
        archive_ids=tuple(archive_id(value, "filter.archive_ids") for value in given.archive_ids),
        name_search=_optional(given, "name_search"),
    )


def by_name(order_by: int) -> bool:
    """Whether archives are to be listed by name."""
    if order_by not in aspb.ArchiveOrderBy.values():
        raise InvalidArgument("order_by is no known order.", field="order_by")
    return order_by == aspb.ARCHIVE_ORDER_BY_NAME


def archive_message(archive: Archive) -> apb.Archive:
    """An archive for the wire."""
    provenance = audit_pb2.Provenance(
        created_by_id=archive.provenance.created_by_id,
        last_updated_by_id=archive.provenance.last_updated_by_id,
        **{name: getattr(archive.provenance, name) for name in CALLERS_PROVENANCE},
    )
    moving = archive.reembedding
    return apb.Archive(
        id=archive.id,
        name=archive.name,
        description=archive.description,
        embedder=archive.embedder,
        dimension=archive.dimension,
        metadata=archive.metadata,
        passage_count=archive.passage_count,
        deduplicate=archive.deduplicate,
        reembedding=apb.ReembeddingState(
            target_embedder=moving.embedder, done_passages=moving.done, total_passages=moving.total
        )
        if moving is not None
        else None,
        create_time=_timestamp(archive.created_at),
        update_time=_timestamp(archive.updated_at),
        provenance=provenance,
    )


def target(request: ppb.InsertPassagesRequest) -> InsertTarget:
    """Where a batch goes."""
    match request.WhichOneof("target"):
        case "archive_id":
            return InsertTarget(archive_id=archive_id(request.archive_id))
        case "agent_id":
            return InsertTarget(agent_id=agent_id(request.agent_id))
        case _:
            raise InvalidArgument("archive_id or agent_id is required.", field="target")


def drafts(passages: Sequence[apb.Passage]) -> list[PassageDraft | InvalidArgument]:
    """The passages of a batch; in the place of one that cannot be read, its error."""
    if not passages:
        raise InvalidArgument("passages must not be empty.", field="passages")
    if len(passages) > MAX_PASSAGES:
        raise InvalidArgument(f"passages must be at most {MAX_PASSAGES:,} in one call.", field="passages")
    read: list[PassageDraft | InvalidArgument] = []
    for place, passage in enumerate(passages):
        try:
            read.append(draft(passage, f"passages[{place}]"))
        except InvalidArgument as error:
            read.append(error)
    return read


def draft(passage: apb.Passage, where: str) -> PassageDraft:
    """A passage as its writer gives it."""
    return PassageDraft(
        text=passage.text,
        id=passage.id or None,
        tags=tuple(passage.tags),
        metadata=_optional(passage, "metadata"),
        source=_source(passage.source, f"{where}.source"),
        agent_id=_optional(passage, "agent_id"),
        file_id=_optional(passage, "file_id"),
        folder_id=_optional(passage, "folder_id"),
        file_name=_optional(passage, "file_name"),
        chunk_index=passage.chunk_index if passage.HasField("chunk_index") else None,
        created_at=_datetime(passage.create_time, f"{where}.create_time") if passage.HasField("create_time") else None,
    )


def passage_filter(given: ppb.PassageFilter) -> PassageFilter:
    """Which passages a list or a search is about."""
    if given.tag_match not in ppb.TagMatch.values():
        raise InvalidArgument("filter.tag_match is neither ANY nor ALL.", field="filter.tag_match")
    local = dates.zone(_optional(given, "time_zone"), "filter.time_zone")
    since = dates.first_instant(_optional(given, "start_date"), local, "filter.start_date")
    until = dates.end_instant(_optional(given, "end_date"), local, "filter.end_date")
    if since is not None and until is not None and since >= until:
        raise InvalidArgument("filter.end_date lies before filter.start_date.", field="filter.end_date")
    file_id, folder_id = _optional(given, "file_id"), _optional(given, "folder_id")
    return PassageFilter(
        agent_id=agent_id(given.agent_id, "filter.agent_id") if given.HasField("agent_id") else None,
        archive_id=archive_id(given.archive_id, "filter.archive_id") if given.HasField("archive_id") else None,
        tags=checked_tags(tuple(given.tags), "filter.tags"),
        every_tag=given.tag_match == ppb.TAG_MATCH_ALL,
        file_id=require_id(file_id, "file", "filter.file_id") if file_id is not None else None,
        folder_id=require_id(folder_id, "source", "filter.folder_id") if folder_id is not None else None,
        since=since,
        until=until,
        sources=tuple(dict.fromkeys(_source(value, "filter.sources") for value in given.sources)),
    )


def search_kind(mode: int) -> SearchKind:
    """By words, by meaning, or both."""
    if mode not in KINDS:
        raise InvalidArgument("mode is no known search mode.", field="mode")
    return KINDS[ppb.PassageSearchMode.ValueType(mode)]


def search_limit(limit: int) -> int:
    """How many hits at most."""
    if not 0 <= limit <= MAX_HITS:
        raise InvalidArgument(f"limit must be between 0 and {MAX_HITS}.", field="limit")
    return limit or DEFAULT_HITS


def query_text(value: str, field: str) -> str:
    """What to look for: any text of bounded length without NUL characters."""
    if len(value) > MAX_QUERY_LENGTH:
        raise InvalidArgument(f"{field} must be at most {MAX_QUERY_LENGTH:,} characters.", field=field)
    if "\0" in value:
        raise InvalidArgument(f"{field} must not hold NUL characters.", field=field)
    return value


def passage_order(order_by: int) -> None:
    """Passages are listed by creation time only."""
    if order_by not in ppb.PassageOrderBy.values():
        raise InvalidArgument("order_by is no known order.", field="order_by")


def passage_message(passage: Passage) -> apb.Passage:
    """A passage for the wire."""
    return apb.Passage(
        id=passage.id,
        archive_id=passage.archive_id,
        text=passage.text,
        tags=passage.tags,
        metadata=passage.metadata,
        source=apb.PassageSource.ValueType(passage.source.value),
        agent_id=passage.agent_id,
        file_id=passage.file_id,
        folder_id=passage.folder_id,
        file_name=passage.file_name,
        chunk_index=passage.chunk_index,
        embedding=passage.embedding,
        create_time=_timestamp(passage.created_at),
        update_time=_timestamp(passage.updated_at),
    )


def insert_result(outcome: InsertOutcome) -> ppb.InsertResult:
    """What became of one passage of a batch."""
    if outcome.failure is not None:
        failure = ppb.InsertFailure(reason=outcome.failure.reason, message=outcome.failure.message)
        return ppb.InsertResult(failure=failure)
    if outcome.passage is not None:
        return ppb.InsertResult(passage=passage_message(outcome.passage), duplicate=outcome.duplicate)
    gone = apb.Passage(id=outcome.deleted_id or "", archive_id=outcome.archive_id)
    return ppb.InsertResult(passage=gone, duplicate=outcome.duplicate, deleted=True)


def hit_message(hit: PassageHit) -> ppb.PassageHit:
    """A hit for the wire."""
    return ppb.PassageHit(
        passage=passage_message(hit.passage), score=hit.score, vector_rank=hit.vector_rank, text_rank=hit.text_rank
    )


def summary_message(summary: Summary) -> ppb.GetArchivalSummaryResponse:
    """A summary for the wire."""
    return ppb.GetArchivalSummaryResponse(
        not_modified=summary.not_modified,
        revision=summary.revision,
        passage_count=summary.passage_count,
        tags=summary.tags,
        update_time=_timestamp(summary.updated_at) if summary.updated_at is not None else None,
    )


def _optional(message: Message, name: str) -> str | None:
    return str(getattr(message, name)) if message.HasField(name) else None


def _source(value: int, field: str) -> PassageSource:
    try:
        return PassageSource(value)
    except ValueError:
        raise InvalidArgument(f"{field} is no known source.", field=field) from None


def _datetime(value: Timestamp, field: str) -> datetime:
    try:
        return value.ToDatetime(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise InvalidArgument(f"{field} is no valid time.", field=field) from None


def _timestamp(value: datetime) -> Timestamp:
    message = Timestamp()
    message.FromDatetime(value)
    return message
