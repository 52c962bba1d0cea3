"""mnemesh.agents.v1.AgentService."""

from dataclasses import replace
from typing import Any, Final

import grpc
from mnemesh.agents.v1 import agents_pb2 as pb
from mnemesh.agents.v1 import agents_service_pb2 as rpc
from mnemesh.agents.v1 import agents_service_pb2_grpc
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.idempotency import request_key
from mnemesh_kit.ids import require_id
from mnemesh_kit.paging import next_page_token, page_of, page_query
from mnemesh_kit.principal import current_principal
from mnemesh_types.convert import tool_return_to_proto

from mnemesh_orchestrator.model.agents import Agent
from mnemesh_orchestrator.prompt.prompts import Prompts
from mnemesh_orchestrator.rpc.convert import drafts
from mnemesh_orchestrator.rpc.convert.agents import (
    agent_to_proto,
    core_memory_to_proto,
    erased_to_proto,
    prompt_to_proto,
    window_to_proto,
)
from mnemesh_orchestrator.rpc.convert.changes import changes_from_proto, window_from_proto
from mnemesh_orchestrator.rpc.convert.runs import config_from_proto, conversation_from, inputs_from_proto, on_busy_from
from mnemesh_orchestrator.rpc.convert.settings import (
    compaction_override,
    compaction_result_to_proto,
)
from mnemesh_orchestrator.usecases.agent_lifecycle import AgentLifecycle
from mnemesh_orchestrator.usecases.agents import AgentService
from mnemesh_orchestrator.usecases.compactions import CompactionService
from mnemesh_orchestrator.usecases.context_windows import ContextWindowService
from mnemesh_orchestrator.usecases.previews import PreviewService
from mnemesh_orchestrator.usecases.tool_runs import ToolRunner

Context = grpc.aio.ServicerContext[Any, Any]

_ORDERS: Final = {
    rpc.AGENT_ORDER_BY_UNSPECIFIED: "created_at",
    rpc.AGENT_ORDER_BY_CREATE_TIME: "created_at",
    rpc.AGENT_ORDER_BY_UPDATE_TIME: "updated_at",
    rpc.AGENT_ORDER_BY_LAST_RUN_COMPLETION: "last_run_completed_at",
}


class AgentsServicer(agents_service_pb2_grpc.AgentServiceServicer):
    """Agents."""

    def __init__(
        self,
        service: AgentService,
        birth: AgentLifecycle,
        windows: ContextWindowService,
        previews: PreviewService,
        runner: ToolRunner,
        compactions: CompactionService,
        prompts: Prompts,
    ) -> None:
        self._service = service
        self._windows = windows
        self._birth = birth
        self._previews = previews
        self._runner = runner
        self._compactions = compactions
        self._prompts = prompts

    async def CreateAgent(self, request: rpc.CreateAgentRequest, context: Context) -> rpc.CreateAgentResponse:
        """Makes an agent with all its parts."""
        draft = drafts.draft_from_proto(request)
        agent = await self._birth.create(current_principal(), request_key(request, "CreateAgent"), draft)
        return rpc.CreateAgentResponse(agent=self._shown(agent))

    async def GetAgent(self, request: rpc.GetAgentRequest, context: Context) -> rpc.GetAgentResponse:
        """An agent, with the parts that the view asks for."""
        agent = await self._service.get(current_principal(), _agent_id(request.agent_id))
        windows = await self._service.message_ids([agent]) if request.view.message_ids else {}
        waiting = await self._service.pending_approvals(current_principal(), [agent])
        answer = rpc.GetAgentResponse(agent=self._shown(agent, windows.get(agent.id, ()), waiting.get(agent.id)))
        if request.view.blocks:
            core = await self._service.core_memory(agent.id)
            answer.core_memory.CopyFrom(core_memory_to_proto(core))
        return answer

    async def ListAgents(self, request: rpc.ListAgentsRequest, context: Context) -> rpc.ListAgentsResponse:
        """A page of agents."""
        if request.order_by not in _ORDERS:
            raise InvalidArgument("order_by is not known.", field="order_by")
        query = page_query(request, default_ascending=False)
        where = drafts.filter_from_proto(request.filter)
        page = await self._service.list(current_principal(), where, _ORDERS[request.order_by], query)
        windows = await self._service.message_ids(page.items) if request.view.message_ids else {}
        waiting = await self._service.pending_approvals(current_principal(), page.items)
        answer = rpc.ListAgentsResponse(
            agents=[self._shown(agent, windows.get(agent.id, ()), waiting.get(agent.id)) for agent in page.items],
            next_page_token=next_page_token(query, page),
        )
        if request.view.blocks:
            for agent in page.items:
                core = await self._service.core_memory(agent.id)
                answer.core_memories.append(core_memory_to_proto(core))
        return answer

    async def CountAgents(self, request: rpc.CountAgentsRequest, context: Context) -> rpc.CountAgentsResponse:
        """How many agents match."""
        count = await self._service.count(current_principal(), drafts.filter_from_proto(request.filter))
        return rpc.CountAgentsResponse(count=count)

    async def UpdateAgent(self, request: rpc.UpdateAgentRequest, context: Context) -> rpc.UpdateAgentResponse:
        """Changes the fields in the mask."""
        message_ids = window_from_proto(request)
        if message_ids is not None:
            return await self._show(request, message_ids)
        agent_id, changes = changes_from_proto(request)
        if request.HasField("system_prompt_key"):
            changes["system"] = self._prompts.get(request.system_prompt_key).text

        origin = changes.pop("provenance", {})

        def change(agent: Agent) -> Agent:
            return replace(agent, provenance=replace(agent.provenance, **origin), **changes)

        key = request_key(request, "UpdateAgent")
        agent = await self._service.update(current_principal(), key, agent_id, change)
        return rpc.UpdateAgentResponse(agent=self._shown(agent))

    async def _show(self, request: rpc.UpdateAgentRequest, message_ids: tuple[str, ...]) -> rpc.UpdateAgentResponse:
        agent_id = require_id(request.agent.id, "agent", "agent.id")
        key = request_key(request, "UpdateAgent")
        agent = await self._windows.show(current_principal(), key, agent_id, message_ids)
        return rpc.UpdateAgentResponse(agent=self._shown(agent, message_ids))

    async def DeleteAgent(self, request: rpc.DeleteAgentRequest, context: Context) -> rpc.DeleteAgentResponse:
        """Deletes an agent and everything that only it has."""
        erased = await self._birth.delete(current_principal(), _agent_id(request.agent_id))
        return rpc.DeleteAgentResponse(report=erased_to_proto(erased))

    async def AttachTool(self, request: rpc.AttachToolRequest, context: Context) -> rpc.AttachToolResponse:
        """Gives a tool to an agent."""
        tool_id, name = _tool(request)
        key = request_key(request, "AttachTool")
        agent_id = _agent_id(request.agent_id)
        agent = await self._service.attach_tool(current_principal(), key, agent_id, tool_id, name)
        return rpc.AttachToolResponse(agent=self._shown(agent))

    async def DetachTool(self, request: rpc.DetachToolRequest, context: Context) -> rpc.DetachToolResponse:
        """Takes a tool from an agent."""
        tool_id, name = _tool(request)
        key = request_key(request, "DetachTool")
        agent_id = _agent_id(request.agent_id)
        agent = await self._service.detach_tool(current_principal(), key, agent_id, tool_id, name)
        return rpc.DetachToolResponse(agent=self._shown(agent))

    async def SetToolApproval(
        self, request: rpc.SetToolApprovalRequest, context: Context
    ) -> rpc.SetToolApprovalResponse:
        """Whether calls of a tool wait for a person."""
        agent_id = _agent_id(request.agent_id)
        if not request.tool_name:
            raise InvalidArgument("tool_name is required.", field="tool_name")
        agent = await self._service.set_tool_approval(
            current_principal(),
            request_key(request, "SetToolApproval"),
            agent_id,
            request.tool_name,
            requires=request.requires_approval,
        )
        return rpc.SetToolApprovalResponse(agent=self._shown(agent))

    async def RunTool(self, request: rpc.RunToolRequest, context: Context) -> rpc.RunToolResponse:
        """Runs an attached tool outside of a turn."""
        agent_id = _agent_id(request.agent_id)
        if not request.tool_name:
            raise InvalidArgument("tool_name is required.", field="tool_name")
        key = request_key(request, "RunTool")
        returned = await self._runner.run(current_principal(), key, agent_id, request.tool_name, request.arguments)
        return rpc.RunToolResponse(tool_return=tool_return_to_proto(returned))

    async def PreviewRequest(self, request: rpc.PreviewRequestRequest, context: Context) -> rpc.PreviewRequestResponse:
        """The request that messages would cause, not sent."""
        messages = inputs_from_proto(request.messages, any_number=True)
        config = config_from_proto(request.config)
        body = await self._previews.render(current_principal(), *_addressed(request), messages, config)
        return rpc.PreviewRequestResponse(request_body=body)

    async def GetContextWindow(
        self, request: rpc.GetContextWindowRequest, context: Context
    ) -> rpc.GetContextWindowResponse:
        """What the model sees."""
        agent, conversation = await self._windows.place(current_principal(), *_addressed(request))
        settings = self._service.effective_settings(agent, conversation)
        report = await self._windows.report(agent, conversation, settings)
        return rpc.GetContextWindowResponse(context_window=window_to_proto(report))

    async def RecompileAgent(self, request: rpc.RecompileAgentRequest, context: Context) -> rpc.RecompileAgentResponse:
        """Renders the system message anew."""
        key = request_key(request, "RecompileAgent")
        place = _addressed(request)
        text, changed = await self._windows.recompile(
            current_principal(), key, *place, dry_run=request.dry_run, on_busy=on_busy_from(request)
        )
        return rpc.RecompileAgentResponse(system_text=text, changed=changed)

    async def ResetMessages(self, request: rpc.ResetMessagesRequest, context: Context) -> rpc.ResetMessagesResponse:
        """Empties the window but for its system message."""
        key = request_key(request, "ResetMessages")
        agent = await self._windows.reset(
            current_principal(),
            key,
            *_addressed(request),
            add_default=request.add_default_initial_messages,
            on_busy=on_busy_from(request),
        )
        return rpc.ResetMessagesResponse(agent=self._shown(agent))

    async def CompactConversation(
        self, request: rpc.CompactConversationRequest, context: Context
    ) -> rpc.CompactConversationResponse:
        """Makes the window smaller, or tells what that would come to."""
        key = request_key(request, "CompactConversation")
        result = await self._compactions.compact(
            current_principal(),
            key,
            *_addressed(request),
            compaction_override(request),
            dry_run=request.dry_run,
            on_busy=on_busy_from(request),
        )
        return rpc.CompactConversationResponse(result=compaction_result_to_proto(result))

    async def ListTags(self, request: rpc.ListTagsRequest, context: Context) -> rpc.ListTagsResponse:
        """Tags in use."""
        if request.order_by not in rpc.TagOrderBy.values():
            raise InvalidArgument("order_by is not known.", field="order_by")
        query = page_query(request)
        search = request.text_search if request.HasField("text_search") else None
        page = await self._service.tags(current_principal(), query, search)
        return rpc.ListTagsResponse(tags=page.items, next_page_token=next_page_token(query, page))

    async def GetSystemPrompt(
        self, request: rpc.GetSystemPromptRequest, context: Context
    ) -> rpc.GetSystemPromptResponse:
        """A system prompt by its key."""
        prompt = self._prompts.get(drafts.require_prompt_key(request.key, "key"))
        return rpc.GetSystemPromptResponse(system_prompt=prompt_to_proto(prompt))

    async def ListSystemPrompts(
        self, request: rpc.ListSystemPromptsRequest, context: Context
    ) -> rpc.ListSystemPromptsResponse:
        """The system prompts that agents can be made with."""
        if request.order_by not in rpc.SystemPromptOrderBy.values():
            raise InvalidArgument("order_by is not known.", field="order_by")
        query = page_query(request)
        page = page_of(self._prompts.all(), query, lambda prompt: prompt.key)
        return rpc.ListSystemPromptsResponse(
            system_prompts=[prompt_to_proto(prompt) for prompt in page.items],
            next_page_token=next_page_token(query, page),
        )

    def _shown(self, agent: Agent, message_ids: tuple[str, ...] = (), waits_for: str | None = None) -> pb.Agent:
        return agent_to_proto(agent, self._service.effective_settings(agent), message_ids, waits_for)


def _agent_id(value: str) -> str:
    return require_id(value, "agent", "agent_id")


def _addressed(
    request: rpc.GetContextWindowRequest
    | rpc.PreviewRequestRequest
    | rpc.RecompileAgentRequest
    | rpc.ResetMessagesRequest
    | rpc.CompactConversationRequest,
) -> tuple[str, str]:
    """Agent and conversation that a request is about."""
    agent_id = _agent_id(request.agent_id)
    return agent_id, conversation_from(agent_id, request.conversation_id or None)


def _tool(request: rpc.AttachToolRequest | rpc.DetachToolRequest) -> tuple[str | None, str | None]:
    """The tool that a request names, by id or by name."""
    match request.WhichOneof("tool"):
        case "tool_id":
            return require_id(request.tool_id, "tool", "tool_id"), None
        case "name" if request.name:
            return None, request.name
        case _:
            raise InvalidArgument("Either tool_id or name is required.", field="tool")
