"""`mnemesh.agents.v1.AgentService`."""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import grpc
from mnemesh.agents.v1 import agents_pb2 as pb
from mnemesh.agents.v1 import agents_service_pb2 as rpc
from mnemesh.agents.v1 import agents_service_pb2_grpc
from mnemesh.blocks.v1.blocks_pb2 import CoreMemory
from mnemesh_kit.access import refuse_limited
from mnemesh_kit.call_context import current_principal
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.idempotency import request_key
from mnemesh_kit.ids import require_id
from mnemesh_kit.paging import PageQuery, bounded, next_page_token, page_of, page_query
from mnemesh_types.agents import CompactionSettings, SystemPrompt
from mnemesh_types.convert import tool_return_to_proto
from mnemesh_types.twin import enum_from_proto, optional_field

from mnemesh_orchestrator.model.agents import Agent, AgentOrder
from mnemesh_orchestrator.model.creation import ErasureScope
from mnemesh_orchestrator.model.inputs import OnBusy
from mnemesh_orchestrator.rpc.convert.agents import (
    address_from_proto,
    agent_filter_from_proto,
    agent_to_proto,
    agent_update_from_proto,
    context_window_to_proto,
    draft_from_proto,
    extraction_report_to_proto,
    read_response_format,
    request_without_secrets,
    tool_from_proto,
    window_update_from_proto,
)
from mnemesh_orchestrator.rpc.convert.runs import config_from_proto, inputs_from_proto
from mnemesh_orchestrator.rpc.transfers import (
    import_report_to_proto,
    options_from_proto,
    records_from_proto,
    responses,
    types_from_proto,
)
from mnemesh_orchestrator.usecases.agent_creation import AgentLifecycle
from mnemesh_orchestrator.usecases.agent_transfers import AgentExportService, AgentImportService
from mnemesh_orchestrator.usecases.agents import AgentService, TextGenerationService, ToolRunner
from mnemesh_orchestrator.usecases.compactions import CompactionService
from mnemesh_orchestrator.usecases.context_windows import ContextWindowService, PreviewService, SystemPromptService
from mnemesh_orchestrator.usecases.memory_extractions import MemoryExtractionService

Context = grpc.aio.ServicerContext[Any, Any]


class AgentsServicer(agents_service_pb2_grpc.AgentServiceServicer):
    """Serves the agents."""

    def __init__(
        self,
        service: AgentService,
        lifecycle: AgentLifecycle,
        windows: ContextWindowService,
        previews: PreviewService,
        runner: ToolRunner,
        generation: TextGenerationService,
        compactions: CompactionService,
        prompts: SystemPromptService,
        extractions: MemoryExtractionService,
        exports: AgentExportService,
        imports: AgentImportService,
    ) -> None:
        self._exports = exports
        self._imports = imports
        self._service = service
        self._windows = windows
        self._lifecycle = lifecycle
        self._previews = previews
        self._runner = runner
        self._generation = generation
        self._compactions = compactions
        self._prompts = prompts
        self._extractions = extractions

    async def CreateAgent(self, request: rpc.CreateAgentRequest, context: Context) -> rpc.CreateAgentResponse:
        key = request_key(request_without_secrets(request, self._service.fingerprint), "CreateAgent")
        caller = current_principal()
        agent = await self._lifecycle.create(caller, key, draft_from_proto(request))
        message_ids, groups = await self._window_and_groups((agent,), request.view)
        message = self._agent_to_proto(agent, message_ids.get(agent.id, ()), None, groups.get(agent.id, ()))
        response = rpc.CreateAgentResponse(agent=message)
        if request.view.blocks:
            response.core_memory.CopyFrom((await self._service.core_memory(caller, agent.id)).to_proto())
        return response

    async def GetAgent(self, request: rpc.GetAgentRequest, context: Context) -> rpc.GetAgentResponse:
        caller = current_principal()
        agent = await self._service.get(caller, _agent_id(request.agent_id))
        (message,) = await self._agents_to_proto((agent,), request.view)
        response = rpc.GetAgentResponse(agent=message)
        if request.view.blocks:
            response.core_memory.CopyFrom((await self._service.core_memory(caller, agent.id)).to_proto())
        if request.view.cost and (cost := await self._service.cost(caller, agent.id)) is not None:
            response.cost_nano_usd = cost
        return response

    async def ListAgents(self, request: rpc.ListAgentsRequest, context: Context) -> rpc.ListAgentsResponse:
        caller, order = current_principal(), enum_from_proto(AgentOrder, request.order_by, "order_by")
        query = page_query(request, default_ascending=False)
        found = await self._service.list(caller, agent_filter_from_proto(request.filter), order, query)
        page = bounded(query, found.with_items(await self._agents_to_proto(found.items, request.view)))
        memories: list[CoreMemory] = []
        if request.view.blocks:
            memories = await self._core_memories(page.items, query)
            page = page.first(len(memories))
        return rpc.ListAgentsResponse(
            agents=page.items, core_memories=memories, next_page_token=next_page_token(query, page)
        )

    async def CountAgents(self, request: rpc.CountAgentsRequest, context: Context) -> rpc.CountAgentsResponse:
        count = await self._service.count(current_principal(), agent_filter_from_proto(request.filter))
        return rpc.CountAgentsResponse(count=count)

    async def UpdateAgent(self, request: rpc.UpdateAgentRequest, context: Context) -> rpc.UpdateAgentResponse:
        caller = current_principal()
        key = request_key(request_without_secrets(request, self._service.fingerprint), "UpdateAgent")
        message_ids = window_update_from_proto(request)
        if message_ids is not None:
            agent_id = require_id(request.agent.id, "agent", "agent.id")
            agent = await self._windows.set_messages(caller, key, agent_id, message_ids)
            return rpc.UpdateAgentResponse(agent=self._agent_to_proto(agent, message_ids))
        agent_id, changes = agent_update_from_proto(request)
        prompt_key = optional_field(request, "system_prompt_key")
        agent = await self._service.update(
            caller,
            key,
            agent_id,
            changes,
            system_prompt_key=prompt_key,
            if_revision=optional_field(request, "if_revision"),
            sleeptime_turns_counter=optional_field(request, "sleeptime_turns_counter"),
        )
        return rpc.UpdateAgentResponse(agent=self._agent_to_proto(agent))

    async def DeleteAgent(self, request: rpc.DeleteAgentRequest, context: Context) -> rpc.DeleteAgentResponse:
        scope = ErasureScope(request.delete_unshared_blocks, request.delete_unshared_archives)
        erased = await self._lifecycle.delete(current_principal(), _agent_id(request.agent_id), scope)
        return rpc.DeleteAgentResponse(report=erased.to_proto())

    async def AttachTool(self, request: rpc.AttachToolRequest, context: Context) -> rpc.AttachToolResponse:
        key, agent_id = request_key(request, "AttachTool"), _agent_id(request.agent_id)
        agent = await self._service.attach_tool(current_principal(), key, agent_id, *tool_from_proto(request))
        return rpc.AttachToolResponse(agent=self._agent_to_proto(agent))

    async def DetachTool(self, request: rpc.DetachToolRequest, context: Context) -> rpc.DetachToolResponse:
        key, agent_id = request_key(request, "DetachTool"), _agent_id(request.agent_id)
        agent = await self._service.detach_tool(current_principal(), key, agent_id, *tool_from_proto(request))
        return rpc.DetachToolResponse(agent=self._agent_to_proto(agent))

    async def SetToolApproval(
        self, request: rpc.SetToolApprovalRequest, context: Context
    ) -> rpc.SetToolApprovalResponse:
        agent = await self._service.set_tool_approval(
            current_principal(),
            request_key(request, "SetToolApproval"),
            _agent_id(request.agent_id),
            request.tool_name,
            requires=request.requires_approval,
        )
        return rpc.SetToolApprovalResponse(agent=self._agent_to_proto(agent))

    async def RecordFolders(self, request: rpc.RecordFoldersRequest, context: Context) -> rpc.RecordFoldersResponse:
        await self._service.record_folders(
            current_principal(),
            _agent_id(request.agent_id),
            request.directories_revision,
            holds_folders=request.holds_folders,
        )
        return rpc.RecordFoldersResponse()

    async def RunTool(self, request: rpc.RunToolRequest, context: Context) -> rpc.RunToolResponse:
        key, agent_id = request_key(request, "RunTool"), _agent_id(request.agent_id)
        returned = await self._runner.run(current_principal(), key, agent_id, request.tool_name, request.arguments)
        return rpc.RunToolResponse(tool_return=tool_return_to_proto(returned))

    async def PreviewRequest(self, request: rpc.PreviewRequestRequest, context: Context) -> rpc.PreviewRequestResponse:
        messages, config = inputs_from_proto(request.messages), config_from_proto(request.config)
        body = await self._previews.render(current_principal(), *address_from_proto(request), messages, config)
        return rpc.PreviewRequestResponse(request_body=body)

    async def GenerateText(self, request: rpc.GenerateTextRequest, context: Context) -> rpc.GenerateTextResponse:
        generated = await self._generation.generate(
            current_principal(),
            _agent_id(request.agent_id),
            request.prompt,
            system=optional_field(request, "system"),
            model=optional_field(request, "model"),
            response_format=read_response_format(request.response_format),
        )
        return rpc.GenerateTextResponse(text=generated.text, model=generated.model, usage=generated.usage.to_proto())

    async def GetContextWindow(
        self, request: rpc.GetContextWindowRequest, context: Context
    ) -> rpc.GetContextWindowResponse:
        caller = current_principal()
        agent, conversation = await self._windows.resolve(caller, *address_from_proto(request))
        settings = self._service.effective_settings(agent, conversation)
        report = await self._windows.report(caller, agent, conversation, settings)
        return rpc.GetContextWindowResponse(context_window=context_window_to_proto(report))

    async def RecompileAgent(self, request: rpc.RecompileAgentRequest, context: Context) -> rpc.RecompileAgentResponse:
        text, changed = await self._windows.recompile(
            current_principal(),
            request_key(request, "RecompileAgent"),
            *address_from_proto(request),
            dry_run=request.dry_run,
            on_busy=enum_from_proto(OnBusy, request.on_busy, "on_busy"),
        )
        return rpc.RecompileAgentResponse(system_text=text, changed=changed)

    async def ResetMessages(self, request: rpc.ResetMessagesRequest, context: Context) -> rpc.ResetMessagesResponse:
        agent = await self._windows.reset(
            current_principal(),
            request_key(request, "ResetMessages"),
            *address_from_proto(request),
            add_default=request.add_default_initial_messages,
            on_busy=enum_from_proto(OnBusy, request.on_busy, "on_busy"),
        )
        return rpc.ResetMessagesResponse(agent=self._agent_to_proto(agent))

    async def CompactConversation(
        self, request: rpc.CompactConversationRequest, context: Context
    ) -> rpc.CompactConversationResponse:
        refuse_limited(request.settings.memory_scope, "settings.memory_scope")
        result = await self._compactions.compact(
            current_principal(),
            request_key(request, "CompactConversation"),
            *address_from_proto(request),
            CompactionSettings.from_proto(request.settings, "settings") if request.HasField("settings") else None,
            dry_run=request.dry_run,
            on_busy=enum_from_proto(OnBusy, request.on_busy, "on_busy"),
        )
        return rpc.CompactConversationResponse(result=result.to_proto())

    async def ExtractMemories(
        self, request: rpc.ExtractMemoriesRequest, context: Context
    ) -> rpc.ExtractMemoriesResponse:
        request_key(request, "ExtractMemories")
        agent_id = _agent_id(request.agent_id)
        return extraction_report_to_proto(
            await self._extractions.extract(current_principal(), agent_id, request.max_calls)
        )

    async def ListTags(self, request: rpc.ListTagsRequest, context: Context) -> rpc.ListTagsResponse:
        query = page_query(request)
        page = bounded(
            query, await self._service.tags(current_principal(), query, optional_field(request, "text_search"))
        )
        return rpc.ListTagsResponse(tags=page.items, next_page_token=next_page_token(query, page))

    async def GetSystemPrompt(
        self, request: rpc.GetSystemPromptRequest, context: Context
    ) -> rpc.GetSystemPromptResponse:
        prompt = self._prompts.get(current_principal(), request.key)
        return rpc.GetSystemPromptResponse(system_prompt=prompt.to_proto())

    async def ListSystemPrompts(
        self, request: rpc.ListSystemPromptsRequest, context: Context
    ) -> rpc.ListSystemPromptsResponse:
        if request.order_by not in rpc.SystemPromptOrderBy.values():
            raise InvalidArgument("order_by must be a known value of SystemPromptOrderBy.", field="order_by")
        query = page_query(request)
        prompts = page_of(self._prompts.list(current_principal()), query, lambda prompt: prompt.key)
        page = bounded(query, prompts.map(SystemPrompt.to_proto))
        return rpc.ListSystemPromptsResponse(system_prompts=page.items, next_page_token=next_page_token(query, page))

    async def ExportAgent(
        self, request: rpc.ExportAgentRequest, context: Context
    ) -> AsyncIterator[rpc.ExportAgentResponse]:
        records = self._exports.export(
            current_principal(),
            _agent_id(request.agent_id),
            types_from_proto(request.types, "types"),
            with_vectors=request.include_vectors,
        )
        async for response in responses(records):
            yield response

    async def ImportAgent(
        self, request_iterator: AsyncIterator[rpc.ImportAgentRequest], context: Context
    ) -> rpc.ImportAgentResponse:
        options, digest = await options_from_proto(request_iterator, self._service.fingerprint)
        agent, report, replayed = await self._imports.import_agent(
            current_principal(), options, digest, records_from_proto(request_iterator)
        )
        response = import_report_to_proto(report)
        response.agent.CopyFrom(self._agent_to_proto(agent))
        response.replayed = replayed
        return response

    async def _agents_to_proto(self, agents: tuple[Agent, ...], view: rpc.AgentView) -> list[pb.Agent]:
        approvals = await self._service.list_pending_approvals(current_principal(), agents)
        message_ids, groups = await self._window_and_groups(agents, view)
        return [
            self._agent_to_proto(
                agent, message_ids.get(agent.id, ()), approvals.get(agent.id), groups.get(agent.id, ())
            )
            for agent in agents
        ]

    async def _window_and_groups(
        self, agents: tuple[Agent, ...], view: rpc.AgentView
    ) -> tuple[Mapping[str, tuple[str, ...]], Mapping[str, tuple[str, ...]]]:
        """Reads the ids of the messages in the windows, and of the groups, that a view asks for, by agent."""
        caller = current_principal()
        message_ids = await self._service.message_ids(caller, agents) if view.message_ids else {}
        groups = await self._service.group_ids(caller, agents) if view.groups else {}
        return message_ids, groups

    async def _core_memories(self, agents: Sequence[pb.Agent], query: PageQuery) -> list[CoreMemory]:
        """Returns the core memory of each agent, of the first ones only if more do not fit into the page with them."""
        memories: list[CoreMemory] = []
        size = 0
        for agent in agents:
            memory = (await self._service.core_memory(current_principal(), agent.id)).to_proto()
            size += agent.ByteSize() + memory.ByteSize()
            if memories and query.max_bytes is not None and size > query.max_bytes:
                break
            memories.append(memory)
        return memories

    def _agent_to_proto(
        self,
        agent: Agent,
        message_ids: tuple[str, ...] = (),
        approval_id: str | None = None,
        group_ids: tuple[str, ...] = (),
    ) -> pb.Agent:
        return agent_to_proto(agent, self._service.effective_settings(agent), message_ids, approval_id, group_ids)


def _agent_id(value: str) -> str:
    return require_id(value, "agent", "agent_id")
