"""The conversion of the requests of TraceService."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, Final

from mnemesh.recall.v1 import traces_service_pb2 as rpc
from mnemesh_kit.caller_roles import service_only
from mnemesh_kit.errors import InvalidArgument, ResourceExhausted
from mnemesh_kit.idempotency import RequestKey, request_key
from mnemesh_kit.paging import PageQuery, page_query
from mnemesh_kit.time import optional_timestamp_from_proto

from mnemesh_recall.model.trace_operations import InteractionFilter, Record, TraceExport, TraceImport, TurnFilter
from mnemesh_recall.rpc.convert import traces as convert

MAX_RECORDS: Final = 200_000


def page_from_proto(request: Any) -> PageQuery:
    """Converts the paging fields of a list. Raises InvalidArgument if its order is unknown."""
    if request.order_by not in request.DESCRIPTOR.fields_by_name["order_by"].enum_type.values_by_number:
        raise InvalidArgument("order_by must be an order of this list.", field="order_by")
    return page_query(request)


def turn_filter_from_proto(request: rpc.ListTurnsRequest) -> TurnFilter:
    """Converts the filter of a list of turns."""
    return TurnFilter(
        agent_id=request.agent_id,
        conversation_id=request.conversation_id if request.HasField("conversation_id") else None,
        turn_ids=tuple(request.turn_ids),
        from_time=optional_timestamp_from_proto(request, "start_time"),
        before_time=optional_timestamp_from_proto(request, "end_time"),
        compacted=request.compacted if request.HasField("compacted") else None,
        with_traces=request.include_traces,
    )


def interaction_filter_from_proto(request: rpc.ListToolInteractionsRequest) -> InteractionFilter:
    """Converts the filter of a list of tool interactions. Raises InvalidArgument if a status is unknown."""
    if any(status not in convert.STATUS_FROM_PROTO for status in request.statuses):
        raise InvalidArgument("statuses must be statuses of tool interactions.", field="statuses")
    return InteractionFilter(
        agent_id=request.agent_id,
        conversation_id=request.conversation_id if request.HasField("conversation_id") else None,
        turn_id=request.turn_id if request.HasField("turn_id") else None,
        run_id=request.run_id if request.HasField("run_id") else None,
        tool_name=request.tool_name if request.HasField("tool_name") else None,
        statuses=tuple(convert.STATUS_FROM_PROTO[status] for status in dict.fromkeys(request.statuses)),
    )


def export_from_proto(request: rpc.ExportTracesRequest) -> TraceExport:
    """Converts an export. Raises InvalidArgument if a type of records is unknown."""
    if any(kind not in convert.RECORD_TYPE_FROM_PROTO for kind in request.record_types):
        raise InvalidArgument("record_types must be types of records.", field="record_types")
    return TraceExport(
        agent_id=request.agent_id,
        conversation_id=request.conversation_id if request.HasField("conversation_id") else None,
        record_types=tuple(convert.RECORD_TYPE_FROM_PROTO[kind] for kind in request.record_types),
        from_time=optional_timestamp_from_proto(request, "start_time"),
        before_time=optional_timestamp_from_proto(request, "end_time"),
        archived=request.archived if request.HasField("archived") else None,
        scope_names=tuple(dict.fromkeys(request.scope_names)),
    )


async def import_from_proto(
    stream: AsyncIterator[rpc.ImportTracesRequest],
) -> tuple[TraceImport, RequestKey | None]:
    """Converts the stream of an import. The fingerprint of the key covers all records.

    Raises:
        InvalidArgument: the first message is not the header, another one is, the header counts other records than the
            stream has, or a record is incomplete (metadata: record, its position in the stream from 1).
        ResourceExhausted: the stream has more records than one transaction may store.
    """
    header: rpc.ImportTracesHeader | None = None
    exact = False
    key: RequestKey | None = None
    records: list[Record] = []
    content = hashlib.sha256()
    async for request in stream:
        part = request.WhichOneof("part")
        if header is None:
            if part != "header":
                raise InvalidArgument("The first message must carry the header.", field="header")
            header, key = request.header, request_key(request, "ImportTraces")
            exact = service_only(header.exact, "header.exact")
            content.update(header.SerializeToString(deterministic=True))
            continue
        if part != "record":
            raise InvalidArgument("Every message after the header must carry a record.", field="record")
        if len(records) == MAX_RECORDS:
            raise ResourceExhausted(f"An import is at most {MAX_RECORDS:,} records.", limit=str(MAX_RECORDS))
        content.update(request.record.SerializeToString(deterministic=True))
        records.append(_record(request.record, len(records) + 1, exact=exact))
    if header is None:
        raise InvalidArgument("The first message must carry the header.", field="header")
    if header.HasField("record_count") and header.record_count != len(records):
        raise InvalidArgument(
            f"The stream has {len(records)} records, not {header.record_count}.", field="header.record_count"
        )
    request_ = TraceImport(
        agent_id=header.agent_id,
        conversation_id=header.conversation_id if header.HasField("conversation_id") else None,
        extend_window=header.extend_window,
        records=tuple(records),
        exact=exact,
    )
    return request_, None if key is None else replace(key, fingerprint=content.hexdigest()[:32])


def _record(record: rpc.TraceRecord, position: int, *, exact: bool) -> Record:
    try:
        return convert.record_from_proto(record, exact=exact)
    except InvalidArgument as error:
        raise InvalidArgument(error.message, field=error.field, record=str(position)) from error
