"""The conversion of episodes, facts, scopes, the operations on them, and the findings of audits."""

from dataclasses import replace
from typing import Any, Final

from mnemesh.recall.v1 import episodes_pb2 as pb
from mnemesh.recall.v1 import episodes_service_pb2 as rpc
from mnemesh.recall.v1 import memory_findings_pb2 as findings_pb
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.paging import offset_from_token, offset_token
from mnemesh_kit.time import optional_timestamp_from_proto, optional_timestamp_to_proto, timestamp_to_proto
from mnemesh_types.twin import optional_to_proto

from mnemesh_recall.model.episodes import (
    AddFact,
    ConfirmFact,
    Episode,
    EpisodeCommit,
    Fact,
    FactOperation,
    FactTimes,
    InvalidateFact,
    NewEpisode,
    NewFact,
    Scope,
    ScopeKind,
    ScopeSummary,
    Source,
    SupersedeFact,
)
from mnemesh_recall.model.findings import (
    DEFAULT_AUDIT_PAGE,
    DEFAULT_STALE_DAYS,
    AuditPage,
    Finding,
    FindingAction,
    FindingKind,
    MemoryAudit,
)

_SCOPE_KINDS: Final = {
    "agent_id": ScopeKind.AGENT,
    "conversation_id": ScopeKind.CONVERSATION,
    "identity_id": ScopeKind.IDENTITY,
    "group_id": ScopeKind.GROUP,
    "name": ScopeKind.NAME,
}
_FIELDS: Final = {kind: field for field, kind in _SCOPE_KINDS.items()}


def scope_from_proto(scope: pb.MemoryScope, field: str) -> Scope:
    """Converts a scope. Raises InvalidArgument under `field` if it is empty."""
    kind = scope.WhichOneof("scope")
    if kind is None:
        raise InvalidArgument(f"{field} must name a scope.", field=field)
    return Scope(_SCOPE_KINDS[kind], getattr(scope, kind))


def scope_to_proto(scope: Scope) -> pb.MemoryScope:
    """Converts a scope."""
    fields: Any = {_FIELDS[scope.kind]: scope.id}
    return pb.MemoryScope(**fields)


def source_from_proto(source: pb.MemorySource) -> Source:
    """Converts a source. Message ids are kept once each."""
    return replace(Source.from_proto(source), message_ids=tuple(dict.fromkeys(source.message_ids)))


def new_episode_from_proto(episode: pb.Episode, field: str) -> NewEpisode:
    """Converts an episode to store."""
    return NewEpisode(
        summary=episode.summary,
        scope=scope_from_proto(episode.scope, f"{field}.scope") if episode.HasField("scope") else None,
        turn_ids=tuple(dict.fromkeys(episode.turn_ids)),
        started_at=optional_timestamp_from_proto(episode, "start_time", f"{field}.start_time"),
        ended_at=optional_timestamp_from_proto(episode, "end_time", f"{field}.end_time"),
        **_shared_from_proto(episode),
    )


def new_fact_from_proto(fact: pb.Fact, field: str) -> NewFact:
    """Converts a fact to store."""
    return NewFact(
        text=fact.text,
        scope=scope_from_proto(fact.scope, f"{field}.scope") if fact.HasField("scope") else None,
        confidence=fact.confidence if fact.HasField("confidence") else None,
        valid_from=optional_timestamp_from_proto(fact, "valid_from_time", f"{field}.valid_from_time"),
        invalid_at=optional_timestamp_from_proto(fact, "invalid_time", f"{field}.invalid_time"),
        **_shared_from_proto(fact),
    )


def commit_from_proto(request: pb.EpisodeCommit | rpc.CommitEpisodeRequest, prefix: str = "") -> EpisodeCommit:
    """Converts an episode and its operations. `prefix` is the start of the field names in the request."""
    return EpisodeCommit(
        scope=scope_from_proto(request.scope, f"{prefix}scope") if request.HasField("scope") else None,
        episode=new_episode_from_proto(request.episode, f"{prefix}episode") if request.HasField("episode") else None,
        operations=tuple(
            operation_from_proto(operation, f"{prefix}operations[{index}]")
            for index, operation in enumerate(request.operations)
        ),
    )


def operation_from_proto(operation: pb.FactOperation, field: str) -> FactOperation:
    """Converts an operation. Raises InvalidArgument under `field` if it is empty."""
    match operation.WhichOneof("operation"):
        case "add":
            return AddFact(new_fact_from_proto(operation.add, f"{field}.add"))
        case "supersede":
            return supersede_from_proto(operation.supersede, f"{field}.supersede")
        case "invalidate":
            return invalidate_from_proto(operation.invalidate, f"{field}.invalidate")
        case "confirm":
            confirm = operation.confirm
            return ConfirmFact(
                fact_id=confirm.fact_id,
                source=source_from_proto(confirm.source),
                confidence=confirm.confidence if confirm.HasField("confidence") else None,
            )
        case _:
            raise InvalidArgument(f"{field} must be an operation.", field=field)


def supersede_from_proto(operation: pb.SupersedeOperation, field: str) -> SupersedeFact:
    """Converts a supersede operation."""
    return SupersedeFact(
        fact_id=operation.fact_id,
        fact=new_fact_from_proto(operation.fact, f"{field}.fact"),
        reason=operation.reason if operation.HasField("reason") else None,
    )


def invalidate_from_proto(operation: pb.InvalidateOperation, field: str) -> InvalidateFact:
    """Converts an invalidate operation."""
    return InvalidateFact(
        fact_id=operation.fact_id,
        invalid_at=optional_timestamp_from_proto(operation, "invalid_time", f"{field}.invalid_time"),
        reason=operation.reason if operation.HasField("reason") else None,
        source=source_from_proto(operation.source) if operation.HasField("source") else None,
        successor_id=operation.superseded_by_id if operation.HasField("superseded_by_id") else None,
    )


def fact_times_to_proto(times: FactTimes | None) -> rpc.ResolvedFactTimes | None:
    """Converts the times that a query names, or None."""
    if times is None:
        return None
    return rpc.ResolvedFactTimes(
        expression=times.expression,
        valid_since_time=optional_timestamp_to_proto(times.valid_since),
        valid_at_time=optional_timestamp_to_proto(times.valid_at),
        known_at_time=optional_timestamp_to_proto(times.known_at),
    )


def episode_to_proto(episode: Episode) -> pb.Episode:
    """Converts an episode."""
    return pb.Episode(
        id=episode.id,
        scope=scope_to_proto(episode.scope),
        turn_ids=episode.turn_ids,
        summary=episode.summary,
        tags=episode.tags,
        salience=episode.salience,
        source=episode.source.to_proto(),
        start_time=optional_timestamp_to_proto(episode.started_at),
        end_time=optional_timestamp_to_proto(episode.ended_at),
        metadata=episode.metadata,
        extra=episode.extra,
        create_time=timestamp_to_proto(episode.created_at),
        update_time=timestamp_to_proto(episode.updated_at),
    )


def fact_to_proto(fact: Fact) -> pb.Fact:
    """Converts a fact."""
    return pb.Fact(
        id=fact.id,
        scope=scope_to_proto(fact.scope),
        text=fact.text,
        tags=fact.tags,
        confidence=fact.confidence,
        salience=fact.salience,
        source=fact.source.to_proto(),
        metadata=fact.metadata,
        extra=fact.extra,
        valid_from_time=optional_timestamp_to_proto(fact.valid_from),
        invalid_time=optional_timestamp_to_proto(fact.invalid_at),
        close_time=optional_timestamp_to_proto(fact.closed_at),
        superseded_by_id=fact.superseded_by_id,
        supersedes_id=fact.supersedes_id,
        invalid_reason=fact.invalid_reason,
        invalid_source=optional_to_proto(fact.invalid_source),
        create_time=timestamp_to_proto(fact.created_at),
        update_time=timestamp_to_proto(fact.updated_at),
    )


def summary_to_proto(summary: ScopeSummary) -> rpc.MemoryScopeSummary:
    """Converts the summary of a scope."""
    return rpc.MemoryScopeSummary(
        scope=scope_to_proto(summary.scope),
        episode_count=summary.episode_count,
        fact_count=summary.fact_count,
        update_time=timestamp_to_proto(summary.updated_at),
    )


def _shared_from_proto(memory: pb.Episode | pb.Fact) -> dict[str, Any]:
    return {
        "tags": tuple(dict.fromkeys(memory.tags)),
        "salience": memory.salience if memory.HasField("salience") else None,
        "source": source_from_proto(memory.source),
        "metadata": memory.metadata if memory.HasField("metadata") else None,
        "extra": memory.extra if memory.HasField("extra") else None,
    }


_FINDING_KINDS: Final[dict[int, FindingKind]] = {
    findings_pb.MemoryFindingKind.Value(f"MEMORY_FINDING_KIND_{kind.name}"): kind for kind in FindingKind
}
_FINDING_KIND_NUMBERS: Final = {kind: number for number, kind in _FINDING_KINDS.items()}
_FINDING_ACTION_NUMBERS: Final = {
    action: findings_pb.MemoryFindingAction.Value(f"MEMORY_FINDING_ACTION_{action.name}") for action in FindingAction
}


def audit_from_proto(request: rpc.AuditMemoryRequest) -> MemoryAudit:
    """Converts the request for a page of an audit. Raises InvalidArgument or PageTokenInvalid."""
    for index, number in enumerate(request.kinds):
        if number not in _FINDING_KINDS:
            raise InvalidArgument(f"kinds[{index}] must be a kind of finding.", field=f"kinds[{index}]")
    scopes = [scope_from_proto(scope, f"scopes[{index}]") for index, scope in enumerate(request.scopes)]
    return MemoryAudit(
        scopes=tuple(dict.fromkeys(scopes)),
        kinds=frozenset(_FINDING_KINDS[number] for number in request.kinds) or frozenset(FindingKind),
        stale_days=request.stale_days if request.HasField("stale_days") else DEFAULT_STALE_DAYS,
        page_size=request.page_size or DEFAULT_AUDIT_PAGE,
        position=offset_from_token(request),
    )


def audit_to_proto(request: rpc.AuditMemoryRequest, page: AuditPage) -> rpc.AuditMemoryResponse:
    """Converts a page of an audit."""
    return rpc.AuditMemoryResponse(
        findings=[finding_to_proto(finding) for finding in page.findings],
        next_page_token="" if page.position is None else offset_token(request, page.position),
        examined_count=page.examined,
    )


def finding_to_proto(finding: Finding) -> findings_pb.MemoryFinding:
    """Converts a finding."""
    return findings_pb.MemoryFinding(
        id=finding.id,
        kind=_FINDING_KIND_NUMBERS[finding.kind],  # type: ignore[arg-type]
        scope=scope_to_proto(finding.scope),
        memory_ids=finding.memory_ids,
        texts=finding.texts,
        detail=finding.detail,
        action=_FINDING_ACTION_NUMBERS[finding.action],
        kept_id=finding.kept_id,
        similarity=finding.similarity,
    )
