"""Custom tools, MCP tools and client tools."""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Final

import grpc
from mnemesh.tools.v1 import tools_pb2 as pb
from mnemesh.tools.v1 import tools_service_pb2 as rpc
from mnemesh.tools.v1.tools_service_pb2_grpc import ToolServiceStub
from mnemesh_kit.errors import InvalidArgument, MnemeshError
from mnemesh_kit.whole_answers import whole_answer

from mnemesh_orchestrator.clients import deadlines
from mnemesh_orchestrator.clients.records.messages import copy_of, map_other, record_of
from mnemesh_orchestrator.model.transfers import ExportScope, ImportTarget, Outcome, Record, RecordType

_MAX_BATCH: Final = 500
_KINDS: Final = frozenset({pb.TOOL_TYPE_UNSPECIFIED, pb.TOOL_TYPE_CUSTOM, pb.TOOL_TYPE_CLIENT})
_NO_SERVER: Final = "The organization has no MCP tool with this name. Connect its server, then attach the tool."
_BUILTIN: Final = "The tool is built in, and needs no record."


class ToolRecords:
    """RecordPart of the tools service."""

    types = (RecordType.TOOL,)

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = ToolServiceStub(channel)

    async def export(self, kind: RecordType, scope: ExportScope) -> AsyncIterator[Record]:
        """See RecordPart."""
        for start in range(0, len(scope.tool_ids), _MAX_BATCH):
            request = rpc.BatchGetToolsRequest(tool_ids=scope.tool_ids[start : start + _MAX_BATCH])
            response = await self._definitions(request)
            for tool in response.tools:
                tool.ClearField("packages")
                yield record_of(kind, tool.id, tool)

    async def _definitions(self, request: rpc.BatchGetToolsRequest) -> rpc.BatchGetToolsResponse:
        return await whole_answer(self._stub.BatchGetTools, request, seconds=deadlines.IMPORT, field="tools")

    async def find(self, target: ImportTarget, records: Sequence[Record]) -> Mapping[str, str]:  # noqa: ARG002
        """See RecordPart."""
        names = {record.body.name: record.id for record in records}
        request = rpc.BatchGetToolsRequest(names=list(names))
        response = await self._definitions(request)
        return {names[tool.name]: tool.id for tool in response.tools}

    async def restore(
        self, request_id: str, target: ImportTarget, records: Sequence[Record], existing: Mapping[str, str]
    ) -> Outcome:
        """See RecordPart."""
        skipped: list[tuple[Record, str]] = []
        for number, record in enumerate(records):
            if record.body.type not in _KINDS:
                if record.id not in existing:
                    skipped.append((record, _NO_SERVER if record.body.type == pb.TOOL_TYPE_MCP else _BUILTIN))
                continue
            try:
                await self._restore(f"{request_id}/{number}", target, record, exists=record.id in existing)
            except InvalidArgument as error:  # one tool that cannot be used costs itself, not the agent
                skipped.append((record, f"{record.body.name}: {error.message}"))
            except MnemeshError as error:
                if error.reason != "ALREADY_EXISTS":
                    raise
        return Outcome(len(existing), tuple(skipped))

    async def _restore(self, request_id: str, target: ImportTarget, record: Record, *, exists: bool) -> None:
        tool = copy_of(record.body)
        if tool.type == pb.TOOL_TYPE_UNSPECIFIED:
            tool.type = pb.TOOL_TYPE_CUSTOM
        for secret in tool.secrets:
            secret.ClearField("value")
        if exists:
            if target.options.override_existing_tools:
                del tool.secrets[:]
                request = rpc.UpsertToolRequest(request_id=request_id, tool=tool)
                await self._stub.UpsertTool(request, timeout=deadlines.IMPORT)
            return
        tool.id = target.ids.of("tool", record.id)
        for name in ("created_by_id", "last_updated_by_id"):
            map_other(tool.provenance, name, target.ids)
        if target.options.project_id is not None:
            tool.provenance.project_id = target.options.project_id
        for name in ("create_time", "update_time"):
            if not tool.HasField(name):
                getattr(tool, name).GetCurrentTime()
        create = rpc.CreateToolRequest(request_id=request_id, tool=tool, restore=True)
        await self._stub.CreateTool(create, timeout=deadlines.IMPORT)
