"""The records of exported agents. Those of other services stay messages; the others become types of the model."""

import hashlib
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

from google.protobuf.message import Message
from mnemesh.agents.v1 import agent_records_pb2 as records_pb
from mnemesh.agents.v1 import agents_pb2, conversations_pb2, groups_pb2, identities_pb2, runs_pb2
from mnemesh.agents.v1 import agents_service_pb2 as rpc
from mnemesh.archival.v1.passages_service_pb2 import VectorUse
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.secret_variables import SecretVariable
from mnemesh_kit.time import optional_timestamp_from_proto, timestamp_from_proto, timestamp_to_proto
from mnemesh_types.agents import ModelSettings
from mnemesh_types.provenance import Provenance
from mnemesh_types.twin import Conversion, enum_from_proto, enum_of, number_of, optional_field

from mnemesh_orchestrator.model.agents import Agent
from mnemesh_orchestrator.model.conversations import Conversation, default_conversation_id
from mnemesh_orchestrator.model.groups import Group, require_valid_count
from mnemesh_orchestrator.model.identities import Identity
from mnemesh_orchestrator.model.runs import Lineage, Run, RunOrigin, Step
from mnemesh_orchestrator.model.transfers import (
    FORMAT_VERSION,
    Counts,
    ImportOptions,
    ImportReport,
    Record,
    RecordType,
    Skipped,
    Window,
)
from mnemesh_orchestrator.rpc.convert.agents import agent_from_proto, agent_to_proto
from mnemesh_orchestrator.rpc.convert.runs import RUN, STEP, run_to_proto
from mnemesh_orchestrator.rpc.groups import group_draft_from_proto, group_to_proto
from mnemesh_orchestrator.rpc.identities import IDENTITY
from mnemesh_orchestrator.rpc.schedules import exported_schedule, schedule_to_proto

SOURCE: Final = "mnemesh"
MAX_RESPONSE_BYTES: Final = 1_000_000
_NOT_EXPORTED: Final = (
    "state", "revision", "effective_model_settings", "effective_max_files_open",
    "effective_per_file_view_window_char_limit", "group_ids", "message_ids", "pending_approval_request_id",
)  # fmt: skip


def exported_agent(message: agents_pb2.Agent) -> Agent:
    """Returns an exported agent. Raises InvalidArgument if a field cannot be read."""
    _, updated_at = _times(message, "agent")
    read = agents_pb2.Agent()
    read.CopyFrom(message)
    for name in ("state", "created_for_agent_id"):
        read.ClearField(name)
    return replace(
        agent_from_proto(read),
        revision=1,
        updated_at=updated_at,
        default_conversation_id=default_conversation_id(message.id),
        secrets=tuple(SecretVariable(secret.key, None, updated_at) for secret in message.secrets),
    )


def exported_identity(message: identities_pb2.Identity) -> Identity:
    """Returns an exported identity. Raises InvalidArgument if a field cannot be read."""
    _, updated_at = _times(message, "identity")
    return replace(IDENTITY.from_proto(message, "identity", organization_id=""), updated_at=updated_at)


def exported_group(message: groups_pb2.Group) -> Group:
    """Returns an exported group. Raises InvalidArgument if a field cannot be read."""
    require_valid_count(message.turns_counter, "group.turns_counter")
    return replace(group_draft_from_proto(message), id=message.id, provenance=Provenance.from_proto(message.provenance))


def exported_conversation(message: conversations_pb2.Conversation) -> Window:
    """Returns an exported conversation with its window. Raises InvalidArgument if a field cannot be read."""
    created_at, updated_at = _times(message, "conversation")
    exported = replace(
        Conversation.from_proto(message, "conversation"), created_at=created_at, updated_at=updated_at, message_ids=()
    )
    return Window(exported, tuple(message.message_ids))


def exported_run(message: runs_pb2.Run) -> Run:
    """Returns an exported run. Raises InvalidArgument if a field cannot be read."""
    _, updated_at = _times(message, "run")
    read = runs_pb2.Run()
    read.CopyFrom(message)
    for name in ("last_sequence", "waiting_for", "batch_id"):
        read.ClearField(name)
    read.config.ClearField("callback_url")
    retried = optional_field(message, "retry_of_run_id")
    origin = enum_from_proto(RunOrigin, message.origin, "run.origin") if message.origin else RunOrigin.CLIENT
    run = RUN.from_proto(
        read,
        "run",
        organization_id="",
        subject_id="",
        retried_run_ids=() if retried is None else (retried,),
        lineage=Lineage(optional_field(message, "parent_run_id"), origin),
    )
    return replace(run, updated_at=updated_at)


def exported_step(message: runs_pb2.Step) -> Step:
    """Returns an exported step. Raises InvalidArgument if a field cannot be read."""
    _required_time(message, "create_time", "step")
    return STEP.from_proto(message, "step")


def _times(message: Any, field: str) -> tuple[datetime, datetime]:
    """Returns the creation and the last change. A resource that was never changed needs no time of a change."""
    created_at = _required_time(message, "create_time", field)
    return created_at, optional_timestamp_from_proto(message, "update_time", f"{field}.update_time") or created_at


def _required_time(message: Message, name: str, field: str) -> datetime:
    if not message.HasField(name):
        raise InvalidArgument(f"{field}.{name} is required.", field=f"{field}.{name}")
    return timestamp_from_proto(getattr(message, name), f"{field}.{name}").astimezone(UTC)


_FIELDS: Final = {kind: kind.name.lower() for kind in RecordType}
_TYPES: Final = {name: kind for kind, name in _FIELDS.items()}
_OPTIONS: Final = Conversion(rpc.ImportOptions, ImportOptions, types=None)
_SKIPPED: Final = Conversion(records_pb.SkippedRecord, Skipped)
_COUNTS: Final = Conversion(records_pb.RecordCounts, Counts)
enum_of(records_pb.RecordType, RecordType)


def types_from_proto(numbers: Any, field: str) -> frozenset[RecordType]:
    """Returns types of records. Raises InvalidArgument if one is unknown."""
    return frozenset(enum_from_proto(RecordType, number, field) for number in numbers)


def record_to_proto(record: Record) -> records_pb.AgentRecord:
    """Returns the message of a record."""
    body = _TO_PROTO[record.type](record.body) if record.type in _TO_PROTO else record.body
    return records_pb.AgentRecord(**{_FIELDS[record.type]: body})


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
    RecordType.HEADER: lambda time: records_pb.RecordsHeader(
        format_version=FORMAT_VERSION, source=SOURCE, export_time=timestamp_to_proto(time)
    ),
    RecordType.AGENT: _agent_to_proto,
    RecordType.IDENTITY: IDENTITY.to_proto,
    RecordType.CONVERSATION: lambda window: replace(window.conversation, message_ids=window.message_ids).to_proto(),
    RecordType.RUN: _run_to_proto,
    RecordType.STEP: STEP.to_proto,
    RecordType.GROUP: group_to_proto,
    RecordType.SCHEDULE: schedule_to_proto,
}


async def responses(records: AsyncIterator[Record]) -> AsyncIterator[rpc.ExportAgentResponse]:
    """Yields the records in messages of bounded size, and the record that ends the stream."""
    batch: list[records_pb.AgentRecord] = []
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
    batch.append(records_pb.AgentRecord(end=records_pb.RecordsEnd(record_count=count)))
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
    options = _OPTIONS.from_proto(message, "options", types=types_from_proto(message.types, "options.types"))
    return options, digest


async def records_from_proto(stream: AsyncIterator[rpc.ImportAgentRequest]) -> AsyncIterator[Record]:
    """Yields the records of the other requests with their positions."""
    index = 0
    async for request in stream:
        if request.HasField("options"):
            raise InvalidArgument("Only the first request has options.", field="options")
        for message in request.records:
            index += 1
            yield _record_from_proto(message, index)


def _record_from_proto(message: records_pb.AgentRecord, index: int) -> Record:
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


def _version(header: records_pb.RecordsHeader) -> int:
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
    RecordType.AGENT: exported_agent,
    RecordType.IDENTITY: exported_identity,
    RecordType.CONVERSATION: exported_conversation,
    RecordType.RUN: exported_run,
    RecordType.STEP: exported_step,
    RecordType.GROUP: exported_group,
    RecordType.SCHEDULE: exported_schedule,
    RecordType.END: lambda body: body.record_count,
}


def import_report_to_proto(report: ImportReport) -> rpc.ImportAgentResponse:
    """Returns the message of a report, without the agent."""
    return rpc.ImportAgentResponse(
        kept_ids=report.kept_ids,
        counts=[
            _COUNTS.to_proto(counts, type=number_of(RecordType(kind))) for kind, counts in sorted(report.counts.items())
        ],
        skipped=[_SKIPPED.to_proto(item) for item in report.skipped],
        ids=report.ids,
        vector_uses=[
            records_pb.VectorUseCount(use=VectorUse.ValueType(use), passages=count)
            for use, count in sorted(report.vector_uses.items())
        ],
    )
