"""The RPCs of `mnemesh.agents.v1.AgentService` that export and import whole agents."""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from mnemesh.agents.v1 import agents_service_pb2 as rpc
from mnemesh_kit.ids import require_id
from mnemesh_kit.principal import current_principal

from mnemesh_orchestrator.rpc.convert.agent_records import (
    options_from_proto,
    records_from_proto,
    report_to_proto,
    responses,
    types_from_proto,
)
from mnemesh_orchestrator.rpc.convert.agents import agent_to_proto
from mnemesh_orchestrator.usecases.agent_exports import AgentExportService
from mnemesh_orchestrator.usecases.agent_imports import AgentImportService
from mnemesh_orchestrator.usecases.agents import AgentService


@dataclass(frozen=True, slots=True)
class AgentTransferRpcs:
    """The two RPCs, which the servicer of agents calls."""

    exports: AgentExportService
    imports: AgentImportService
    agents: AgentService
    fingerprint: Callable[[str], str]

    async def export_agent(self, request: rpc.ExportAgentRequest) -> AsyncIterator[rpc.ExportAgentResponse]:
        """Streams the records of an agent."""
        records = self.exports.export(
            current_principal(),
            require_id(request.agent_id, "agent", "agent_id"),
            types_from_proto(request.types, "types"),
            with_vectors=request.include_vectors,
        )
        async for response in responses(records):
            yield response

    async def import_agent(self, stream: AsyncIterator[rpc.ImportAgentRequest]) -> rpc.ImportAgentResponse:
        """Creates an agent from records."""
        options, digest = await options_from_proto(stream, self.fingerprint)
        agent, report, replayed = await self.imports.import_agent(
            current_principal(), options, digest, records_from_proto(stream)
        )
        response = report_to_proto(report)
        response.agent.CopyFrom(agent_to_proto(agent, self.agents.effective_settings(agent)))
        response.replayed = replayed
        return response
