"""Adapters of runs and of tasks, and the conversion of their messages."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from datetime import timedelta
from typing import Any, Final

import grpc
from mnemesh.agents.v1 import agents_pb2, runs_pb2
from mnemesh.agents.v1 import agents_service_pb2 as agents_rpc
from mnemesh.agents.v1 import runs_service_pb2 as rpc
from mnemesh.agents.v1 import runs_service_pb2 as runs_rpc
from mnemesh.agents.v1.agents_service_pb2_grpc import AgentServiceStub
from mnemesh.agents.v1.runs_service_pb2_grpc import RunServiceStub
from mnemesh.types.v1 import message_pb2, paging_pb2
from mnemesh_client import runs
from mnemesh_kit.errors import Aborted, FailedPrecondition, NotFound
from mnemesh_kit.ids import new_id
from mnemesh_kit.time import Clock, timestamp_from_proto

from mnemesh_gateway.clients import agents
from mnemesh_gateway.clients.agents import agent_from_proto
from mnemesh_gateway.model.chat import Format, Image, Part, Settings, Text, ToolResult
from mnemesh_gateway.model.models import AgentInfo
from mnemesh_gateway.model.runs import (
    Accepted,
    Failed,
    Input,
    KeptAlive,
    Piece,
    RunEvent,
    RunOptions,
    RunRecord,
    Stopped,
    ToolCall,
    Usage,
    Used,
    Waiting,
    Whole,
)
from mnemesh_gateway.model.tasks import Task, TaskMessage

KEEPALIVE_SECONDS: Final = 15
_EVENTS: Final = (
    runs_pb2.EVENT_KIND_ASSISTANT_MESSAGE,
    runs_pb2.EVENT_KIND_REASONING_MESSAGE,
    runs_pb2.EVENT_KIND_APPROVAL_REQUEST_MESSAGE,
)
_ENDED: Final = (runs_pb2.RUN_STATUS_COMPLETED, runs_pb2.RUN_STATUS_FAILED, runs_pb2.RUN_STATUS_CANCELLED)

_TAG: Final = "gateway-task"
_PROMPT: Final = "Carry out the task. Answer with its result only."
_ABANDONED: Final = timedelta(minutes=30)
_MAX_MESSAGES: Final = 100


def input_to_proto(item: Input) -> runs_pb2.InputMessage:
    """Returns the message of an input."""
    return runs_pb2.InputMessage(
        role=message_pb2.ROLE_USER,
        content=[part_to_proto(part) for part in item.content],
        name=item.name,
        otid=item.otid,
    )


def decision_to_proto(result: ToolResult) -> message_pb2.ApprovalDecision:
    """Returns the decision for a call that the client ran."""
    status = message_pb2.TOOL_RETURN_STATUS_ERROR if result.is_error else message_pb2.TOOL_RETURN_STATUS_SUCCESS
    tool_return = message_pb2.ToolReturn(
        tool_call_id=result.tool_call_id, status=status, content=[part_to_proto(Text(result.text))]
    )
    return message_pb2.ApprovalDecision(tool_call_id=result.tool_call_id, client_return=tool_return)


def part_to_proto(part: Part) -> message_pb2.ContentPart:
    """Returns the message of a part."""
    match part:
        case Text(text):
            return message_pb2.ContentPart(text=message_pb2.TextPart(text=text))
        case Image(data=bytes() as data, media_type=media_type, detail=detail):
            inline = message_pb2.InlineImage(data=data, media_type=media_type)
            return message_pb2.ContentPart(image=message_pb2.ImagePart(inline=inline, detail=detail))
        case Image(url=url, detail=detail):
            return message_pb2.ContentPart(image=message_pb2.ImagePart(url=url or "", detail=detail))


def config_to_proto(options: RunOptions) -> runs_pb2.RunConfig:
    """Returns the configuration of a run."""
    return runs_pb2.RunConfig(
        stream_tokens=options.stream_tokens,
        include_events=_EVENTS,
        client_tools=[
            runs_pb2.ClientTool(name=tool.name, description=tool.description, parameters=tool.parameters)
            for tool in options.tools
        ],
        metadata=json.dumps(options.metadata) if options.metadata else None,
        parameters=json.dumps(dict(options.parameters)) if options.parameters else None,
        forced_tool=options.choice.name,
        requires_tool=options.choice.is_required,
        keepalive_seconds=KEEPALIVE_SECONDS,
        response_format=None if options.format is None else _format_to_proto(options.format),
        model_settings=None if options.settings == Settings() else _settings_to_proto(options.settings),
    )


def _settings_to_proto(settings: Settings) -> agents_pb2.ModelSettings:
    return agents_pb2.ModelSettings(
        temperature=settings.temperature,
        top_p=settings.top_p,
        max_output_tokens=settings.max_output_tokens,
        parallel_tool_calls=settings.parallel_tool_calls,
        reasoning_effort=settings.reasoning_effort,
    )


def _format_to_proto(format_: Format) -> agents_pb2.ResponseFormat:
    match format_.kind:
        case "json_object":
            return agents_pb2.ResponseFormat(json_object=agents_pb2.JsonObjectFormat())
        case "json_schema":
            schema = agents_pb2.JsonSchemaFormat(name=format_.name, schema=format_.schema, strict=format_.strict)
            return agents_pb2.ResponseFormat(json_schema=schema)
        case _:
            return agents_pb2.ResponseFormat(text=agents_pb2.TextFormat())


def event_from_proto(event: runs_pb2.RunEvent) -> RunEvent | None:
    """Returns the event of a message; None for an event that the gateway does not use."""
    match event.WhichOneof("event"):
        case "delta":
            return _piece(event.delta)
        case "message" if event.agent_id:
            return KeptAlive()  # another agent asks for an approval, which the clients of this API cannot give
        case "message":
            return _message(event.message)
        case "accepted":
            return Accepted(event.run_id, event.accepted.replayed)
        case "error":
            error = event.error.error
            return Failed(error.reason, error.message, dict(error.metadata))
        case "stop":
            name = agents_pb2.StopReason.Name(event.stop.reason).removeprefix("STOP_REASON_").lower()
            return Stopped(name, event.stop.status == runs_pb2.RUN_STATUS_CANCELLED)
        case "usage":
            return Used(_usage(event.usage.usage))
        case _:
            return KeptAlive()


def _piece(delta: runs_pb2.Delta) -> Piece | None:
    match delta.WhichOneof("delta"):
        case "assistant_text":
            return Piece(delta.otid, delta.offset, delta.assistant_text, is_reasoning=False)
        case "reasoning_text":
            return Piece(delta.otid, delta.offset, delta.reasoning_text, is_reasoning=True)
        case _:
            return None


def _message(message: runs_pb2.MessageEvent) -> RunEvent | None:
    match message.WhichOneof("message"):
        case "assistant":
            return Whole(message.otid, _text(message.assistant.content), is_reasoning=False)
        case "reasoning":
            return Whole(message.otid, message.reasoning.text, is_reasoning=True)
        case "approval_request":
            calls = message.approval_request.tool_calls
            return Waiting(tuple(ToolCall(call.id, call.name, call.arguments) for call in calls))
        case _:
            return None


def _text(content: Sequence[message_pb2.ContentPart]) -> str:
    return "".join(part.text.text for part in content if part.HasField("text"))


def _usage(usage: message_pb2.Usage) -> Usage:
    def given(name: str) -> int | None:
        return getattr(usage, name) if usage.HasField(name) else None  # type: ignore[arg-type]

    return Usage(
        given("prompt_tokens"),
        given("completion_tokens"),
        given("total_tokens"),
        given("cached_input_tokens"),
        given("reasoning_tokens"),
    )


def record_from_proto(run: runs_pb2.Run) -> RunRecord:
    """Returns a stored run."""
    metadata: Any = json.loads(run.config.metadata) if run.config.HasField("metadata") else {}
    return RunRecord(
        id=run.id,
        is_ended=run.status in _ENDED,
        has_failed=run.status in (runs_pb2.RUN_STATUS_FAILED, runs_pb2.RUN_STATUS_CANCELLED),
        ended_at=timestamp_from_proto(run.completion_time, "completion_time")
        if run.HasField("completion_time")
        else None,
        is_waiting=run.stop_reason == agents_pb2.STOP_REASON_REQUIRES_APPROVAL,
        agent_id=run.agent_id,
        conversation_id=run.conversation_id,
        client_tools=tuple(tool.name for tool in run.config.client_tools),
        otids=tuple(item.otid for item in run.input if item.HasField("otid")),
        metadata=metadata,
    )


class RunsClient:
    """Runs of the current principal's organization. Streams survive broken connections and takeovers."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = RunServiceStub(channel)

    async def send(
        self, agent_id: str, conversation_id: str, inputs: Sequence[Input], options: RunOptions
    ) -> AsyncIterator[RunEvent]:
        """Starts a run, or finds the one with these inputs, and yields its events. The first is Accepted.

        Raises:
            OtidReused: Some of the inputs were sent before. `run_id` of the metadata is their run.
            PendingApproval: The conversation waits for results of tools.
        """
        request = rpc.SendMessageRequest(
            request_id=new_id("gateway"),
            agent_id=agent_id,
            conversation_id=conversation_id,
            messages=[input_to_proto(item) for item in inputs],
            config=config_to_proto(options),
        )
        # Without tokens, nothing is shown before the end, and one response costs less than a stream.
        send = runs.send if options.stream_tokens else runs.send_and_wait
        async for event in converted(send(self._stub, request, agents.PATIENCE, agents.ACCEPTANCE)):
            yield event

    async def answer(
        self,
        agent_id: str,
        conversation_id: str,
        results: Sequence[ToolResult],
        inputs: Sequence[Input],
        options: RunOptions,
    ) -> AsyncIterator[RunEvent]:
        """Continues a run with the results of the client's tools, and yields the events of the new run.

        Raises:
            NoPendingApproval: No call waits for these results.
            ApprovalMismatch: The results are not those of all calls that wait.
        """
        request = rpc.AnswerApprovalRequest(
            request_id=new_id("gateway"),
            agent_id=agent_id,
            conversation_id=conversation_id,
            decisions=[decision_to_proto(result) for result in results],
            messages=[input_to_proto(item) for item in inputs],
            config=config_to_proto(options),
        )
        async for event in converted(runs.send(self._stub, request, agents.PATIENCE, agents.ACCEPTANCE)):
            yield event

    async def follow(self, run_id: str) -> AsyncIterator[RunEvent]:
        """Yields the events of a run. The first is Accepted."""
        async for event in converted(runs.attach(self._stub, run_id, 0, agents.PATIENCE)):
            yield event

    async def newest(self, conversation_id: str) -> RunRecord | None:
        """Returns the newest run of a conversation."""
        async with aclosing(self.recent(conversation_id, 1)) as runs:
            return await anext(runs, None)

    def recent(self, conversation_id: str, count: int) -> AsyncGenerator[RunRecord, None]:
        """Yields the newest runs of a conversation, newest first. Each is read alone: its images may be large."""
        return self._newest(rpc.RunFilter(conversation_id=conversation_id), count)

    def recent_of(self, agent_id: str, count: int) -> AsyncGenerator[RunRecord, None]:
        """Yields the newest runs of an agent, newest first, as `recent` does."""
        return self._newest(rpc.RunFilter(agent_ids=[agent_id]), count)

    async def _newest(self, filter_: rpc.RunFilter, count: int) -> AsyncGenerator[RunRecord, None]:
        request = rpc.ListRunsRequest(page_size=1, filter=filter_)
        for _ in range(count):
            response = await self._stub.ListRuns(request, timeout=agents.READ)
            for run in response.runs:
                yield record_from_proto(run)
            if not response.next_page_token:
                return
            request.page_token = response.next_page_token

    async def get(self, run_id: str) -> RunRecord:
        """Returns a run. Raises NotFound."""
        response = await self._stub.GetRun(rpc.GetRunRequest(run_id=run_id), timeout=agents.READ)
        return record_from_proto(response.run)

    async def retry(self, run_id: str) -> str:
        """Starts a failed run again. Returns the id of the new run, or of a retry that exists."""
        try:
            response = await self._stub.RetryRun(rpc.RetryRunRequest(run_id=run_id), timeout=agents.WRITE)
        except FailedPrecondition as error:
            # A retry runs or has completed. Its id is in the metadata.
            existing = error.metadata.get("resource_id")
            if existing is None:
                raise
            return existing
        return str(response.run.id)

    async def cancel(self, conversation_id: str) -> None:
        """Cancels the runs of a conversation, and withdraws the calls that it waits for."""
        request = rpc.CancelRunsRequest(conversation_id=conversation_id)
        await self._stub.CancelRuns(request, timeout=agents.WRITE)


async def converted(events: AsyncGenerator[runs_pb2.RunEvent, None]) -> AsyncIterator[RunEvent]:
    """Yields the events of messages that the gateway uses."""
    try:
        async for message in events:
            event = event_from_proto(message)
            if event is not None:
                yield event
    finally:
        await events.aclose()


class TaskAgentsClient:
    """Hidden agents without memory and tools."""

    def __init__(self, channel: grpc.aio.Channel, clock: Clock) -> None:
        self._agents = AgentServiceStub(channel)
        self._runs = RunServiceStub(channel)
        self._clock = clock

    async def create(self, model: str, instructions: str | None) -> AgentInfo:
        """Returns a new agent with a language model and a system prompt."""
        agent = agents_pb2.Agent(
            name=_TAG,
            type=agents_pb2.AGENT_TYPE_LETTA_V1,
            system=instructions or _PROMPT,
            model=model,
            tags=[_TAG],
            hidden=True,
        )
        request = agents_rpc.CreateAgentRequest(agent=agent, include_base_tools=False)
        response = await self._agents.CreateAgent(request, timeout=agents.WRITE)
        return agent_from_proto(response.agent)

    async def run(self, agent: AgentInfo, task: Task) -> AsyncIterator[RunEvent]:
        """Yields the events of the task's only run. The first is Accepted."""
        options = RunOptions(settings=task.settings, format=task.format, stream_tokens=task.stream)
        request = runs_rpc.SendMessageRequest(
            request_id=new_id("gateway"),
            agent_id=agent.id,
            messages=[_message_to_proto(message) for message in task.messages[-_MAX_MESSAGES:]],
            config=config_to_proto(options),
        )
        async for event in converted(runs.send(self._runs, request, agents.PATIENCE, agents.ACCEPTANCE)):
            yield event

    async def delete(self, agent_id: str) -> None:
        """Deletes an agent with everything that it stored."""
        try:
            await self._agents.DeleteAgent(agents_rpc.DeleteAgentRequest(agent_id=agent_id), timeout=agents.WRITE)
        except NotFound:
            return
        except Aborted:
            # Its client disconnected while the run was in progress: it is deleted as an abandoned one.
            return

    async def abandoned(self) -> tuple[str, ...]:
        """Returns the ids of agents whose tasks ended without their deletion, because a process was killed."""
        request = agents_rpc.ListAgentsRequest(
            page_size=100,
            order=paging_pb2.SORT_ORDER_ASCENDING,
            filter=agents_rpc.AgentFilter(tags_all=[_TAG], hidden=True),
        )
        response = await self._agents.ListAgents(request, timeout=agents.READ)
        limit = self._clock.now() - _ABANDONED
        listed = (agent_from_proto(agent) for agent in response.agents)
        return tuple(agent.id for agent in listed if agent.created_at < limit)


def _message_to_proto(message: TaskMessage) -> runs_pb2.InputMessage:
    role = message_pb2.ROLE_ASSISTANT if message.role == "assistant" else message_pb2.ROLE_USER
    return runs_pb2.InputMessage(role=role, content=[part_to_proto(part) for part in message.content])
