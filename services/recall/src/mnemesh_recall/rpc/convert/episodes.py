"""The conversion of episodes, facts, scopes, the operations on them, and the findings of audits."""

from dataclasses import replace
from typing import Any, Final, TypeVar

from mnemesh.recall.v1 import episodes_pb2 as pb
from mnemesh.recall.v1 import episodes_service_pb2 as rpc
from mnemesh.recall.v1 import memory_findings_pb2 as findings_pb
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.paging import offset_from_token, offset_token
from mnemesh_types.twin import Conversion, enum_from_proto, enum_of, register

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

T = TypeVar("T")
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
    fields: Any = {_FIELDS[scope.kind]: scope.id}
    return pb.MemoryScope(**fields)


def source_from_proto(source: pb.MemorySource, _field: str = "") -> Source:
    """Converts a source. Message ids are kept once each."""
    return each_once(Source.from_proto(source), "message_ids")


def each_once(record: T, *names: str) -> T:
    """Returns a record with each item once in these of its fields, in order."""
    return replace(record, **{name: tuple(dict.fromkeys(getattr(record, name))) for name in names})  # type: ignore[type-var]


register(pb.MemoryScope, scope_from_proto, scope_to_proto)
register(pb.MemorySource, source_from_proto, Source.to_proto)
enum_of(findings_pb.MemoryFindingKind, FindingKind)
enum_of(findings_pb.MemoryFindingAction, FindingAction)
FINDING: Final = Conversion(findings_pb.MemoryFinding, Finding)
EPISODE: Final = Conversion(pb.Episode, Episode)
FACT: Final = Conversion(pb.Fact, Fact)
SCOPE_SUMMARY: Final = Conversion(rpc.MemoryScopeSummary, ScopeSummary)
FACT_TIMES: Final = Conversion(rpc.ResolvedFactTimes, FactTimes)
_NEW_EPISODE: Final = Conversion(pb.Episode, NewEpisode)
_NEW_FACT: Final = Conversion(pb.Fact, NewFact)
_SUPERSEDE: Final = Conversion(pb.SupersedeOperation, SupersedeFact, fact=None)
INVALIDATE: Final = Conversion(pb.InvalidateOperation, InvalidateFact, superseded_by_id="successor_id")
_CONFIRM: Final = Conversion(pb.ConfirmOperation, ConfirmFact)


def new_episode_from_proto(episode: pb.Episode, field: str) -> NewEpisode:
    """Converts an episode to store."""
    return each_once(_NEW_EPISODE.from_proto(episode, field), "turn_ids", "tags")


def new_fact_from_proto(fact: pb.Fact, field: str) -> NewFact:
    """Converts a fact to store."""
    return each_once(_NEW_FACT.from_proto(fact, field), "tags")


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
            return INVALIDATE.from_proto(operation.invalidate, f"{field}.invalidate")
        case "confirm":
            return _CONFIRM.from_proto(operation.confirm, f"{field}.confirm")
        case _:
            raise InvalidArgument(f"{field} must be an operation.", field=field)


def supersede_from_proto(operation: pb.SupersedeOperation, field: str) -> SupersedeFact:
    return _SUPERSEDE.from_proto(operation, field, fact=new_fact_from_proto(operation.fact, f"{field}.fact"))


def audit_from_proto(request: rpc.AuditMemoryRequest) -> MemoryAudit:
    """Converts the request for a page of an audit. Raises InvalidArgument or PageTokenInvalid."""
    kinds = [enum_from_proto(FindingKind, number, f"kinds[{index}]") for index, number in enumerate(request.kinds)]
    scopes = [scope_from_proto(scope, f"scopes[{index}]") for index, scope in enumerate(request.scopes)]
    return MemoryAudit(
        scopes=tuple(dict.fromkeys(scopes)),
        kinds=frozenset(kinds or FindingKind),
        stale_days=request.stale_days if request.HasField("stale_days") else DEFAULT_STALE_DAYS,
        page_size=request.page_size or DEFAULT_AUDIT_PAGE,
        position=offset_from_token(request),
    )


def audit_to_proto(request: rpc.AuditMemoryRequest, page: AuditPage) -> rpc.AuditMemoryResponse:
    return rpc.AuditMemoryResponse(
        findings=[FINDING.to_proto(finding) for finding in page.findings],
        next_page_token="" if page.position is None else offset_token(request, page.position),
        examined_count=page.examined,
    )
