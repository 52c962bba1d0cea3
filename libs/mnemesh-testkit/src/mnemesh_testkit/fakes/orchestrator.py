"""A fake orchestrator: agents, runs and groups without a model."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from mnemesh.agents.v1 import (
    agents_pb2,
    agents_service_pb2,
    agents_service_pb2_grpc,
    conversations_pb2,
    conversations_service_pb2,
    conversations_service_pb2_grpc,
    groups_service_pb2,
    groups_service_pb2_grpc,
    models_pb2,
    models_service_pb2,
    models_service_pb2_grpc,
    runs_pb2,
    runs_service_pb2,
    runs_service_pb2_grpc,
)
from mnemesh.recall.v1 import messages_service_pb2, messages_service_pb2_grpc
from mnemesh.types.v1 import message_pb2
from mnemesh_client import Mnemesh, text_of
from mnemesh_client.inputs import text_part
from mnemesh_kit.errors import InvalidArgument, NotFound, Unavailable
from mnemesh_kit.ids import new_id

PAGE = 2
"""The largest page of a list."""


class FakeOrchestrator(
    agents_service_pb2_grpc.AgentServiceServicer,
    runs_service_pb2_grpc.RunServiceServicer,
    groups_service_pb2_grpc.GroupServiceServicer,
    models_service_pb2_grpc.ModelServiceServicer,
    conversations_service_pb2_grpc.ConversationServiceServicer,
):
    """Echoes messages.

    "remember X" also edits the block "human", "refuse" fails with a refused API key, "think forever" does not end, and
    "launch" asks for the approval of two calls. `break_after` has, for each of the next streams, the number of events
    after which it breaks. `fitting` is the number of events that fit into the response of SendMessageAndWait.
    `group_events` has the events of the next run of a group, `active` the runs that have not ended, and
    `conversations` the conversation of each message.
    """

    def __init__(self, blocks: str) -> None:
        self.memory = Mnemesh(blocks=blocks)
        self.agents: dict[str, agents_pb2.Agent] = {}
        self.created: dict[str, str] = {}
        self.runs: dict[str, list[runs_pb2.RunEvent]] = {}
        self.group_events: dict[str, list[runs_pb2.RunEvent]] = {}
        self.started: dict[str, str] = {}
        self.break_after: list[int] = []
        self.repeated = 0
        """The number of events before its position that a client receives again when it attaches."""
        self.fitting: int | None = None
        self.unknown_models: set[str] = set()
        self.attached = 0
        self.waited = 0
        self.cancelled: list[str] = []
        self.active: list[runs_pb2.Run] = []
        self.conversations: list[str] = []
        self.decided: list[message_pb2.ApprovalDecision] = []
        self.approval_requests: dict[str, message_pb2.Message] = {}
        self.searched: list[messages_service_pb2.SearchMessagesRequest] = []
        self.found = messages_service_pb2.SearchMessagesResponse()

    async def CreateAgent(self, request: Any, context: Any) -> agents_service_pb2.CreateAgentResponse:
        if request.request_id in self.created:
            return agents_service_pb2.CreateAgentResponse(agent=self.agents[self.created[request.request_id]])
        if not request.agent.model:
            raise InvalidArgument("model is required.", field="agent.model")
        agent = agents_pb2.Agent()
        agent.CopyFrom(request.agent)
        agent.id = new_id("agent")
        agent.tools.extend(agents_pb2.AttachedTool(name=name, builtin=True) for name in request.tool_names)
        for block in request.blocks:
            await self.memory.blocks.create(block.label, block.value, agent_ids=[agent.id])
        self.agents[agent.id] = agent
        self.created[request.request_id] = agent.id
        return agents_service_pb2.CreateAgentResponse(agent=agent)

    async def GetAgent(self, request: Any, context: Any) -> agents_service_pb2.GetAgentResponse:
        return agents_service_pb2.GetAgentResponse(agent=self._agent(request.agent_id))

    async def ListAgents(self, request: Any, context: Any) -> agents_service_pb2.ListAgentsResponse:
        matching = [
            agent
            for agent in self.agents.values()
            if (not request.filter.HasField("name") or agent.name == request.filter.name)
            and set(request.filter.tags_all) <= set(agent.tags)
        ]
        start = int(request.page_token or 0)
        end = start + min(request.page_size or PAGE, PAGE)
        token = str(end) if end < len(matching) else ""
        return agents_service_pb2.ListAgentsResponse(agents=matching[start:end], next_page_token=token)

    async def UpdateAgent(self, request: Any, context: Any) -> agents_service_pb2.UpdateAgentResponse:
        agent = self._agent(request.agent.id)
        for path in request.update_mask.paths:
            setattr(agent, path, getattr(request.agent, path))
        return agents_service_pb2.UpdateAgentResponse(agent=agent)

    async def DeleteAgent(self, request: Any, context: Any) -> agents_service_pb2.DeleteAgentResponse:
        self.agents.pop(request.agent_id, None)
        return agents_service_pb2.DeleteAgentResponse()

    async def ListModels(self, request: Any, context: Any) -> models_service_pb2.ListModelsResponse:
        handles = ("mnemesh/rehearsal", "openai/small")
        models = [models_pb2.Model(handle=handle, context_window=8_000) for handle in handles]
        return models_service_pb2.ListModelsResponse(models=models)

    async def CreateConversation(
        self, request: Any, context: Any
    ) -> conversations_service_pb2.CreateConversationResponse:
        conversation = conversations_pb2.Conversation(id=new_id("conv"), agent_id=request.conversation.agent_id)
        return conversations_service_pb2.CreateConversationResponse(conversation=conversation)

    async def ListRuns(self, request: Any, context: Any) -> runs_service_pb2.ListRunsResponse:
        return runs_service_pb2.ListRunsResponse(runs=self.active)

    async def ListGroups(self, request: Any, context: Any) -> groups_service_pb2.ListGroupsResponse:
        return groups_service_pb2.ListGroupsResponse()

    async def GetModel(self, request: Any, context: Any) -> models_service_pb2.GetModelResponse:
        if request.handle in self.unknown_models:
            raise NotFound(f"There is no model {request.handle!r}.", resource_id=request.handle)
        return models_service_pb2.GetModelResponse(model=models_pb2.Model(handle=request.handle or "mnemesh/rehearsal"))

    async def SendMessageAndWait(self, request: Any, context: Any) -> runs_service_pb2.SendMessageAndWaitResponse:
        self.waited += 1
        events = [response.event async for response in self.SendMessage(request, context)]
        return runs_service_pb2.SendMessageAndWaitResponse(events=events[: self.fitting])

    async def SendMessage(self, request: Any, context: Any) -> AsyncIterator[runs_service_pb2.SendMessageResponse]:
        run_id = self.started.get(request.request_id)
        if run_id is None:
            self.conversations.append(request.conversation_id)
            run_id = self.started[request.request_id] = new_id("run")
            if request.group_id:
                self.runs[run_id] = self._group_turns(run_id, request.group_id)
            else:
                text = text_of(request.messages[0].content)
                self.runs[run_id] = await self._turn(self._agent(request.agent_id), run_id, text)
        async for event in self._replay(run_id, 0):
            yield runs_service_pb2.SendMessageResponse(event=event)
            if event.HasField("message") and text_of(request.messages[0].content) == "think forever":
                await asyncio.Future()

    async def AnswerApproval(
        self, request: Any, context: Any
    ) -> AsyncIterator[runs_service_pb2.AnswerApprovalResponse]:
        run_id = self.started.get(request.request_id)
        if run_id is None:
            run_id = self.started[request.request_id] = new_id("run")
            self.decided += request.decisions
            self._agent(request.agent_id).ClearField("pending_approval_request_id")
            kinds = ", ".join(str(item.WhichOneof("decision")) for item in request.decisions)
            self.runs[run_id] = await self._turn(self._agent(request.agent_id), run_id, kinds)
        async for event in self._replay(run_id, 0):
            yield runs_service_pb2.AnswerApprovalResponse(event=event)

    async def CancelRuns(self, request: Any, context: Any) -> runs_service_pb2.CancelRunsResponse:
        self.cancelled += request.runs.run_ids
        return runs_service_pb2.CancelRunsResponse()

    async def StreamRun(self, request: Any, context: Any) -> AsyncIterator[runs_service_pb2.StreamRunResponse]:
        self.attached += 1
        async for event in self._replay(request.run_id, request.starting_after - self.repeated):
            yield runs_service_pb2.StreamRunResponse(event=event)

    async def GetRun(self, request: Any, context: Any) -> runs_service_pb2.GetRunResponse:
        run = runs_pb2.Run(id=request.run_id, last_sequence=max(one.sequence for one in self.runs[request.run_id]))
        run.completion_time.GetCurrentTime()
        return runs_service_pb2.GetRunResponse(run=run)

    async def _replay(self, run_id: str, after: int) -> AsyncIterator[runs_pb2.RunEvent]:
        left = self.break_after.pop(0) if self.break_after else -1
        accepted = runs_pb2.RunEvent(run_id=run_id, accepted=runs_pb2.RunAccepted())
        for event in (accepted, *self.runs[run_id]):
            if left == 0:
                raise Unavailable("The connection broke.")
            if not event.sequence or event.sequence > after:
                yield event
                left -= 1

    async def _turn(self, agent: agents_pb2.Agent, run_id: str, text: str) -> list[runs_pb2.RunEvent]:
        call = message_pb2.ToolCall(id="call", name="core_memory_append", arguments='{"label": "human"}')
        parts: list[dict[str, Any]] = []
        if text.startswith("remember "):
            await self.memory.blocks.append(agent.id, "human", text.removeprefix("remember "))
            done = message_pb2.ToolReturn(
                tool_call_id="call", name=call.name, status=message_pb2.TOOL_RETURN_STATUS_SUCCESS
            )
            parts.append({"message": _message(tool_call=runs_pb2.ToolCallMessage(tool_calls=[call]))})
            parts.append({"message": _message(tool_return=runs_pb2.ToolReturnMessage(tool_returns=[done]))})
        status, reason = runs_pb2.RUN_STATUS_COMPLETED, agents_pb2.STOP_REASON_END_TURN
        if text == "launch":
            calls = [message_pb2.ToolCall(id=f"call_{n}", name="launch", arguments="{}") for n in (1, 2)]
            parts.append({"message": _message(approval_request=runs_pb2.ApprovalRequestMessage(tool_calls=calls))})
            reason = agents_pb2.STOP_REASON_REQUIRES_APPROVAL
        elif text == "refuse":
            error = runs_pb2.RunError(reason="PROVIDER_AUTH", message="Bad key.", metadata={"provider": "openai"})
            parts.append({"error": runs_pb2.ErrorEvent(error=error)})
            status, reason = runs_pb2.RUN_STATUS_FAILED, agents_pb2.STOP_REASON_LLM_API_ERROR
        else:
            reply = runs_pb2.AssistantMessage(content=[text_part(f"You said: {text}")])
            parts.append({"message": _message(assistant=reply)})
        parts.append({"stop": runs_pb2.StopEvent(reason=reason, status=status)})
        parts.append({"usage": runs_pb2.UsageEvent(step_count=1)})
        return [runs_pb2.RunEvent(run_id=run_id, sequence=n, **part) for n, part in enumerate(parts, 1)]

    def _group_turns(self, run_id: str, group_id: str) -> list[runs_pb2.RunEvent]:
        events = self.group_events[group_id]
        for number, event in enumerate(events, 1):
            event.run_id, event.sequence = run_id, number
        return events

    async def leave_run(self, agent_id: str, text: str) -> str:
        """Stores a run in the default conversation of an agent that has not ended. Returns its id."""
        agent, run_id = self._agent(agent_id), new_id("run")
        agent.default_conversation_id = "conv-1"
        self.runs[run_id] = await self._turn(agent, run_id, text)
        self.active.append(runs_pb2.Run(id=run_id, agent_id=agent_id, conversation_id="conv-1"))
        return run_id

    def request_approval(self, agent: agents_pb2.Agent, *names: str, conversation: str = "conv-1") -> None:
        """Makes calls of these tools in a conversation wait for an approval."""
        agent.default_conversation_id = "conv-1"
        calls = [message_pb2.ToolCall(id=f"call_{n}", name=name, arguments="{}") for n, name in enumerate(names, 1)]
        message = message_pb2.Message(id=new_id("message"), conversation_id=conversation, tool_calls=calls)
        self.approval_requests[message.id] = message
        agent.pending_approval_request_id = message.id

    def _agent(self, agent_id: str) -> agents_pb2.Agent:
        if agent_id not in self.agents:
            raise NotFound(f"There is no agent {agent_id}.", resource_id=agent_id)
        return self.agents[agent_id]


def _message(**message: Any) -> runs_pb2.MessageEvent:
    return runs_pb2.MessageEvent(message_id=new_id("message"), otid="otid", **message)


class FakeRecall(messages_service_pb2_grpc.MessageServiceServicer):
    """Returns the messages that request an approval, and in searches what `FakeOrchestrator.found` holds."""

    def __init__(self, orchestrator: FakeOrchestrator) -> None:
        self._orchestrator = orchestrator

    async def GetMessages(self, request: Any, context: Any) -> messages_service_pb2.GetMessagesResponse:
        requests = self._orchestrator.approval_requests
        messages = [requests[id_] for id_ in request.message_ids if id_ in requests]
        return messages_service_pb2.GetMessagesResponse(messages=messages)

    async def SearchMessages(
        self, request: messages_service_pb2.SearchMessagesRequest, context: Any
    ) -> messages_service_pb2.SearchMessagesResponse:
        self._orchestrator.searched.append(request)
        return self._orchestrator.found
