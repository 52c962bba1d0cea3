"""`AuditService`: the audit log of a server, and those of the services whose calls it forwards."""

from typing import Any, Final

import grpc
import sqlalchemy as sa
from mnemesh.server.v1 import audit_service_pb2 as rpc
from mnemesh.server.v1 import audit_service_pb2_grpc

from mnemesh_kit.audit import AuditFilter, AuditLog
from mnemesh_kit.call_context import current_principal
from mnemesh_kit.forwarding import Forwarder
from mnemesh_kit.paging import bounded, next_page_token, page_query
from mnemesh_kit.text import require_searchable_fields
from mnemesh_kit.time import optional_timestamp_from_proto, timestamp_to_proto

SERVICE_NAME: Final = rpc.DESCRIPTOR.services_by_name["AuditService"].full_name
_LIST: Final = f"/{SERVICE_NAME}/ListAuditEntries"
_LIST_SECONDS: Final = 30.0

Context = grpc.aio.ServicerContext[Any, Any]


class AuditServicer(audit_service_pb2_grpc.AuditServiceServicer):
    """Lists the entries of the caller's organization."""

    def __init__(self, service: str, log: AuditLog, forwarder: Forwarder) -> None:
        """`service` is the short name of the service whose log it is."""
        self._service = service
        self._log = log
        self._forwarder = forwarder

    async def ListAuditEntries(
        self, request: rpc.ListAuditEntriesRequest, context: Context
    ) -> rpc.ListAuditEntriesResponse:
        """Returns a page of the entries, or that of another service."""
        if request.service not in ("", self._service):
            answer = rpc.ListAuditEntriesResponse
            return await self._forwarder.ask(request.service, _LIST, request, answer, context, seconds=_LIST_SECONDS)
        query = page_query(request, default_ascending=False)
        filter_ = _filter(request.filter)
        found = await self._log.list(current_principal().organization_id, filter_, query)
        page = bounded(query, found.map(self._entry))
        return rpc.ListAuditEntriesResponse(entries=page.items, next_page_token=next_page_token(query, page))

    def _entry(self, row: sa.Row[Any]) -> rpc.AuditEntry:
        return rpc.AuditEntry(
            id=row.id,
            create_time=timestamp_to_proto(row.created_at),
            service=self._service,
            subject_id=row.subject_id,
            role=row.role,
            method=row.method,
            resource_ids=row.resource_ids.split(),
            correlation_id=row.correlation_id,
            request_id=row.request_id,
        )


def _filter(filter_: rpc.AuditFilter) -> AuditFilter:
    return require_searchable_fields(
        AuditFilter(
            optional_timestamp_from_proto(filter_, "start_time", "filter.start_time"),
            optional_timestamp_from_proto(filter_, "end_time", "filter.end_time"),
            filter_.subject_id,
            filter_.resource_id,
            filter_.method,
        )
    )
