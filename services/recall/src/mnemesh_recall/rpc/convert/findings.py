"""The conversion of audits and their findings."""

from __future__ import annotations

from typing import Final

from mnemesh.recall.v1 import episodes_service_pb2 as rpc
from mnemesh.recall.v1 import memory_findings_pb2 as pb
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.paging import offset_from_token, offset_token

from mnemesh_recall.model.findings import (
    DEFAULT_AUDIT_PAGE,
    DEFAULT_STALE_DAYS,
    AuditPage,
    Finding,
    FindingAction,
    FindingKind,
    MemoryAudit,
)
from mnemesh_recall.rpc.convert.episodes import scope_from_proto, scope_to_proto

_KINDS: Final[dict[int, FindingKind]] = {
    pb.MemoryFindingKind.Value(f"MEMORY_FINDING_KIND_{kind.name}"): kind for kind in FindingKind
}
_KIND_NUMBERS: Final = {kind: number for number, kind in _KINDS.items()}
_ACTION_NUMBERS: Final = {
    action: pb.MemoryFindingAction.Value(f"MEMORY_FINDING_ACTION_{action.name}") for action in FindingAction
}


def audit_from_proto(request: rpc.AuditMemoryRequest) -> MemoryAudit:
    """Converts the request for a page of an audit. Raises InvalidArgument or PageTokenInvalid."""
    for index, number in enumerate(request.kinds):
        if number not in _KINDS:
            raise InvalidArgument(f"kinds[{index}] must be a kind of finding.", field=f"kinds[{index}]")
    scopes = [scope_from_proto(scope, f"scopes[{index}]") for index, scope in enumerate(request.scopes)]
    return MemoryAudit(
        scopes=tuple(dict.fromkeys(scopes)),
        kinds=frozenset(_KINDS[number] for number in request.kinds) or frozenset(FindingKind),
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


def finding_to_proto(finding: Finding) -> pb.MemoryFinding:
    """Converts a finding."""
    return pb.MemoryFinding(
        id=finding.id,
        kind=_KIND_NUMBERS[finding.kind],  # type: ignore[arg-type]
        scope=scope_to_proto(finding.scope),
        memory_ids=finding.memory_ids,
        texts=finding.texts,
        detail=finding.detail,
        action=_ACTION_NUMBERS[finding.action],
        kept_id=finding.kept_id,
        similarity=finding.similarity,
    )
