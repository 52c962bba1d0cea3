"""The records of exported agents. Those of other services stay messages; the others become types of the model."""

import hashlib
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from mnemesh.agents.v1 import agent_records_pb2 as pb
from mnemesh.agents.v1 import agents_service_pb2 as rpc
from mnemesh.archival.v1.passages_service_pb2 import VectorUse
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.time import timestamp_to_proto

from mnemesh_orchestrator.model.models import ModelSettings
from mnemesh_orchestrator.model.transfers import (
    FORMAT_VERSION,
    ImportOptions,
    ImportReport,
    Record,
    RecordType,
)
from mnemesh_orchestrator.rpc.convert.agents import agent_to_proto
from mnemesh_orchestrator.rpc.convert.conversations import conversation_to_proto
from mnemesh_orchestrator.rpc.convert.fields import enum_from_proto, optional_field
from mnemesh_orchestrator.rpc.convert.groups import group_to_proto
from mnemesh_orchestrator.rpc.convert.identities import identity_to_proto
from mnemesh_orchestrator.rpc.convert.imported import (
    agent_from_proto,
    conversation_from_proto,
    group_from_proto,
    identity_from_proto,
    run_from_proto,
    step_from_proto,
)
from mnemesh_orchestrator.rpc.convert.runs import run_to_proto
from mnemesh_orchestrator.rpc.convert.steps import step_to_proto

SOURCE: Final = "mnemesh"
MAX_RESPONSE_BYTES: Final = 1_000_000
_FIELDS: Final = {kind: kind.name.lower() for kind in RecordType}
_TYPES: Final = {name: kind for kind, name in _FIELDS.items()}
_TYPE_FROM_PROTO: Final = {pb.RecordType.Value(f"RECORD_TYPE_{kind.name}"): kind for kind in RecordType if kind < 30}
_NOT_EXPORTED: Final = (
    "state", "revision", "effective_model_settings", "effective_max_files_open",
    "effective_per_file_view_window_char_limit", "group_ids", "message_ids", "pending_approval_request_id",
)  # fmt: skip


def types_from_proto(numbers: Any, field: str) -> frozenset[RecordType]:
    """Returns types of records. Raises InvalidArgument if one is unknown."""
    return frozenset(enum_from_proto(_TYPE_FROM_PROTO, number, field) for number in numbers)


def record_to_proto(record: Record) -> pb.AgentRecord:
    """Returns the message of a record."""
    body = _TO_PROTO[record.type](record.body) if record.type in _TO_PROTO else record.body
    return pb.AgentRecord(**{_FIELDS[record.type]: body})


def _agent_to_proto(agent: Any) -> Any:
    message = agent_to_proto(agent, ModelSettings())
    for name in _NOT_EXPORTED:
        message.ClearField(name)
    for secret in message.secrets:
        secret.ClearField("id")
        secret.ClearField("update_time")
    return message


def _run_to_proto(run: Any) -> Any:
    """Returns the message of a run without the number of its newest event, because events are not exported."""
    message = run_to_proto(run)
    message.ClearField("last_sequence")
    return message


_TO_PROTO: Final[Mapping[RecordType, Callable[[Any], Any]]] = {
    RecordType.HEADER: lambda time: pb.RecordsHeader(
        format_version=FORMAT_VERSION, source=SOURCE, export_time=timestamp_to_proto(time)
    ),
    RecordType.AGENT: _agent_to_proto,
    RecordType.IDENTITY: identity_to_proto,
    RecordType.CONVERSATION: lambda window: conversation_to_proto(window.conversation, window.message_ids),
    RecordType.RUN: _run_to_proto,
    RecordType.STEP: step_to_proto,
    RecordType.GROUP: group_to_proto,
}


async def responses(records: AsyncIterator[Record]) -> AsyncIterator[rpc.ExportAgentResponse]:
    """Yields the records in messages of bounded size, and the record that ends the stream."""
    batch: list[pb.AgentRecord] = []
    size = count = 0
    async for record in records:
        message = record_to_proto(record)
        length = message.ByteSize()
        if batch and size + length > MAX_RESPONSE_BYTES:
            yield rpc.ExportAgentResponse(records=batch)
            batch, size = [], 0
        batch.append(message)
        size += length
        count += 1
    batch.append(pb.AgentRecord(end=pb.RecordsEnd(record_count=count)))
    yield rpc.ExportAgentResponse(records=batch)


async def options_from_proto(
    stream: AsyncIterator[rpc.ImportAgentRequest], fingerprint: Callable[[str], str]
) -> tuple[ImportOptions, str]:
    """Reads the first request. Returns the options, and a hash of them.

    Raises:
        InvalidArgument: The first request has no options, or also records.
    """
    first = await anext(stream, None)
    if first is None or not first.HasField("options"):
        raise InvalidArgument("The first request must have the options.", field="options")
    if first.records:
        raise InvalidArgument("The first request must have no records.", field="records")
    message = first.options
    compared = rpc.ImportOptions()
    compared.CopyFrom(message)
    for name, value in message.secrets.items():
        compared.secrets[name] = fingerprint(value)
    digest = hashlib.sha256(compared.SerializeToString(deterministic=True)).hexdigest()[:32]
    options = ImportOptions(
        request_id=message.request_id,
        keep_ids=message.keep_ids,
        id_namespace=optional_field(message, "id_namespace"),
        name=optional_field(message, "name"),
        model=optional_field(message, "model"),
        embedder=optional_field(message, "embedder"),
        project_id=optional_field(message, "project_id"),
        append_copy_suffix=message.append_copy_suffix,
        strip_messages=message.strip_messages,
        override_existing_tools=message.override_existing_tools,
        secrets=dict(message.secrets),
        types=types_from_proto(message.types, "options.types"),
    )
    return options, digest


async def records_from_proto(stream: AsyncIterator[rpc.ImportAgentRequest]) -> AsyncIterator[Record]:
    """Yields the records of the other requests with their positions.

    Raises:
        InvalidArgument: A record is empty or breaks a rule. Metadata: record, field.
    """
    index = 0
    async for request in stream:
        if request.HasField("options"):
            raise InvalidArgument("Only the first request has options.", field="options")
        for message in request.records:
            index += 1
            yield _record_from_proto(message, index)


def _record_from_proto(message: pb.AgentRecord, index: int) -> Record:
    name = message.WhichOneof("record")
    if name is None:
        raise InvalidArgument(f"Record {index} is empty.", field="records", record=str(index))
    kind = _TYPES[name]
    body = getattr(message, name)
    try:
        read = _FROM_PROTO.get(kind)
        record = Record(kind, _ID.get(kind, _id)(body), body if read is None else read(body))
    except InvalidArgument as error:
        error.metadata["record"] = str(index)
        raise
    return replace(record, size=body.ByteSize(), index=index)


def _id(body: Any) -> str:
    return str(body.id)


def _version(header: pb.RecordsHeader) -> int:
    if header.format_version != FORMAT_VERSION:
        raise InvalidArgument(
            f"header.format_version must be {FORMAT_VERSION}, not {header.format_version}.",
            field="header.format_version",
        )
    return header.format_version


_ID: Final[Mapping[RecordType, Callable[[Any], str]]] = {
    RecordType.HEADER: lambda _: "",
    RecordType.END: lambda _: "",
    RecordType.BLOCK: lambda body: str(body.block.id),
    RecordType.BLOCK_REVISION: lambda body: f"{body.block_id}/{body.revision}",
    RecordType.PASSAGE: lambda body: str(body.passage.id),
}
_FROM_PROTO: Final[Mapping[RecordType, Callable[[Any], Any]]] = {
    RecordType.HEADER: _version,
    RecordType.AGENT: agent_from_proto,
    RecordType.IDENTITY: identity_from_proto,
    RecordType.CONVERSATION: conversation_from_proto,
    RecordType.RUN: run_from_proto,
    RecordType.STEP: step_from_proto,
    RecordType.GROUP: group_from_proto,
    RecordType.END: lambda body: body.record_count,
}


def report_to_proto(report: ImportReport) -> rpc.ImportAgentResponse:
    """Returns the message of a report, without the agent."""
    return rpc.ImportAgentResponse(
        kept_ids=report.kept_ids,
        counts=[
            pb.RecordCounts(
                type=pb.RecordType.Value(f"RECORD_TYPE_{RecordType(kind).name}"),
                created=counts.created,
                existing=counts.existing,
                skipped=counts.skipped,
            )
            for kind, counts in sorted(report.counts.items())
        ],
        skipped=[
            pb.SkippedRecord(
                index=item.index,
                type=pb.RecordType.Value(f"RECORD_TYPE_{item.type.name}"),
                id=item.id,
                reason=item.reason,
            )
            for item in report.skipped
        ],
        ids=report.ids,
        vector_uses=[
            pb.VectorUseCount(use=VectorUse.ValueType(use), passages=count)
            for use, count in sorted(report.vector_uses.items())
        ],
    )
