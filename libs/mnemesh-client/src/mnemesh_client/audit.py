"""The audit log: who changed what."""

from collections.abc import AsyncIterator, Callable
from datetime import datetime
from typing import Final

from mnemesh.server.v1 import audit_service_pb2, audit_service_pb2_grpc
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.services import STORE_NAMES

from mnemesh_client.paging import Order, paginate, sort_order
from mnemesh_client.transport import Channel

_PAGE: Final = 1000


class AuditClient:
    """Calls of AuditService, as `client.audit`. Requires the role admin.

    Errors: PermissionDenied; Unavailable if one of the services cannot be reached.
    """

    def __init__(self, channel_to: Callable[[str], Channel]) -> None:
        """`channel_to` returns the channel to a service by its name."""
        self._channel_to = channel_to

    async def list(
        self,
        *,
        service: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        subject_id: str = "",
        resource_id: str = "",
        method: str = "",
        order: Order | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[audit_service_pb2.AuditEntry]:
        """Yields the changes that callers of the organization made, newest first. It holds one page of each service.

        Args:
            service: the name of a service, such as "blocks"; None merges the logs of all services by time.
            since: changes from this time on, with a time zone.
            until: changes before this time, with a time zone.
            subject_id: changes by this caller.
            resource_id: changes of the resource with this id, such as an agent.
            method: the whole name of an RPC, or its last part, such as "UpdateBlock".
            order: "asc" is oldest first.
            limit: the largest number of changes; None yields all.

        Raises:
            InvalidArgument: there is no such service, or it has no log.
        """
        filter_ = audit_service_pb2.AuditFilter(subject_id=subject_id, resource_id=resource_id, method=method)
        if since is not None:
            filter_.start_time.FromDatetime(since)
        if until is not None:
            filter_.end_time.FromDatetime(until)
        services = STORE_NAMES if service is None else (service,)
        if service not in (None, *STORE_NAMES):
            raise InvalidArgument(f"service must be one of {', '.join(STORE_NAMES)}.", field="service")
        logs = [self._of(each, filter_, order, limit) for each in services]
        heads = [await anext(log, None) for log in logs]
        left = limit
        while left is None or left > 0:
            waiting = [(_position(entry), at, entry) for at, entry in enumerate(heads) if entry is not None]
            if not waiting:
                return
            _, at, entry = min(waiting) if order == "asc" else max(waiting)
            yield entry
            heads[at] = await anext(logs[at], None)
            left = None if left is None else left - 1

    def _of(
        self, service: str, filter_: audit_service_pb2.AuditFilter, order: Order | None, limit: int | None
    ) -> AsyncIterator[audit_service_pb2.AuditEntry]:
        request = audit_service_pb2.ListAuditEntriesRequest(
            service=service, filter=filter_, order=sort_order(order), page_size=_PAGE
        )
        stub = audit_service_pb2_grpc.AuditServiceStub(self._channel_to(service))
        return paginate(stub.ListAuditEntries, request, "entries", limit)


def _position(entry: audit_service_pb2.AuditEntry) -> tuple[int, str]:
    return entry.create_time.ToNanoseconds(), entry.id
