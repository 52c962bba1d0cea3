"""What requests on turns and traces ask of the service: ids, bounds and sizes are checked here."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from mnemesh.recall.v1 import traces_service_pb2 as rpc
from mnemesh_kit.errors import InvalidArgument, ResourceExhausted
from mnemesh_kit.idempotency import RequestKey, request_key
from mnemesh_kit.ids import require_id
from mnemesh_kit.paging import PageQuery, page_query

from mnemesh_recall.model.trace_operations import Export, Import, InteractionFilter, Record, TurnFilter
from mnemesh_recall.rpc.convert import episodes
from mnemesh_recall.rpc.convert import traces as convert
from mnemesh_recall.rpc.convert.messages import instant

MAX_TURN_IDS: Final = 1_000
MAX_RECORDS: Final = 200_000


def page(request: Any) -> PageQuery:
    """Which page a list asks for."""
    for field in ("after_id", "before_id"):
        if request.HasField(field):
            episodes.short(getattr(request, field), field)
    if request.order_by not in request.DESCRIPTOR.fields_by_name["order_by"].enum_type.values_by_number:
        raise InvalidArgument("order_by is not an order of this list.", field="order_by")
    return page_query(request)


def turn_filter(request: rpc.ListTurnsRequest) -> TurnFilter:
    """What ListTurns asks, paging aside."""
    if len(request.turn_ids) > MAX_TURN_IDS:
        raise InvalidArgument(f"turn_ids must be at most {MAX_TURN_IDS}.", field="turn_ids")
    return TurnFilter(
        agent_id=require_id(request.agent_id, "agent", "agent_id"),
        conversation_id=_conversation(request),
        turn_ids=tuple(episodes.short(id_, f"turn_ids[{index}]") for index, id_ in enumerate(request.turn_ids)),
        from_time=_time(request, "start_time"),
        before_time=_time(request, "end_time"),
        compacted=request.compacted if request.HasField("compacted") else None,
        with_traces=request.include_traces,
    )


def interaction_filter(request: rpc.ListToolInteractionsRequest) -> InteractionFilter:
    """What ListToolInteractions asks, paging aside."""
    if any(status not in convert.STATUSES for status in request.statuses):
        raise InvalidArgument("statuses must be statuses of tool interactions.", field="statuses")
    return InteractionFilter(
        agent_id=require_id(request.agent_id, "agent", "agent_id"),
        conversation_id=_conversation(request),
        turn_id=episodes.short(request.turn_id, "turn_id") if request.HasField("turn_id") else None,
        run_id=require_id(request.run_id, "run", "run_id") if request.HasField("run_id") else None,
        tool_name=episodes.short(request.tool_name, "tool_name") if request.HasField("tool_name") else None,
        statuses=tuple(convert.STATUSES[status] for status in dict.fromkeys(request.statuses)),
    )


def export(request: rpc.ExportTracesRequest) -> Export:
    """What ExportTraces asks."""
    if any(kind not in convert.RECORD_TYPES for kind in request.record_types):
        raise InvalidArgument("record_types must be types of records.", field="record_types")
    return Export(
        agent_id=require_id(request.agent_id, "agent", "agent_id"),
        conversation_id=_conversation(request),
        record_types=tuple(convert.RECORD_TYPES[kind] for kind in request.record_types),
        from_time=_time(request, "start_time"),
        before_time=_time(request, "end_time"),
        archived=request.archived if request.HasField("archived") else None,
    )


async def received(stream: AsyncIterator[rpc.ImportTracesRequest]) -> tuple[Import, RequestKey | None]:
    """A whole import, and the key of its request.

    Raises:
        InvalidArgument: the header is not the first message, or not the only one, or counts other records than came; a
            record breaks its rule (metadata: record, its place in the stream from 1).
        ResourceExhausted: more records than one transaction takes.
    """
    header: rpc.ImportTracesHeader | None = None
    key: RequestKey | None = None
    records: list[Record] = []
    content = hashlib.sha256()
    async for request in stream:
        part = request.WhichOneof("part")
        if header is None:
            if part != "header":
                raise InvalidArgument("The first message must carry the header.", field="header")
            header, key = request.header, request_key(request, "ImportTraces")
            content.update(header.SerializeToString(deterministic=True))
            continue
        if part != "record":
            raise InvalidArgument("Every message behind the header must carry a record.", field="record")
        if len(records) == MAX_RECORDS:
            raise ResourceExhausted(f"An import is at most {MAX_RECORDS} records.", limit=str(MAX_RECORDS))
        content.update(request.record.SerializeToString(deterministic=True))
        records.append(_record(request.record, len(records) + 1))
    if header is None:
        raise InvalidArgument("The first message must carry the header.", field="header")
    if header.HasField("record_count") and header.record_count != len(records):
        raise InvalidArgument(
            f"The stream brought {len(records)} records, not {header.record_count}.", field="header.record_count"
        )
    agent_id = require_id(header.agent_id, "agent", "header.agent_id")
    wanted = Import(
        agent_id=agent_id,
        conversation_id=require_id(header.conversation_id, "conv", "header.conversation_id")
        if header.HasField("conversation_id")
        else None,
        extend_window=header.extend_window,
        records=tuple(records),
    )
    return wanted, None if key is None else replace(key, fingerprint=content.hexdigest()[:32])


def _record(record: rpc.TraceRecord, place: int) -> Record:
    try:
        return convert.record_in(record)
    except InvalidArgument as error:
        raise InvalidArgument(error.message, field=error.field, record=str(place)) from error


def _conversation(request: Any) -> str | None:
    if not request.HasField("conversation_id"):
        return None
    return require_id(request.conversation_id, "conv", "conversation_id")


def _time(request: Any, field: str) -> datetime | None:
    return instant(getattr(request, field), field) if request.HasField(field) else None
