"""The handle of one agent: send messages to it, read and edit its memory, and see and change its context window."""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from mnemesh.agents.v1 import agents_pb2, agents_service_pb2, agents_service_pb2_grpc, groups_service_pb2, runs_pb2
from mnemesh.archival.v1 import archives_pb2, passages_service_pb2
from mnemesh.blocks.v1 import blocks_pb2
from mnemesh.files.v1 import agent_files_service_pb2_grpc
from mnemesh.recall.v1 import messages_service_pb2
from mnemesh.types.v1 import message_pb2

from mnemesh_client.agent_files import AgentFiles
from mnemesh_client.archives import PassagesClient
from mnemesh_client.blocks import BlocksClient
from mnemesh_client.errors import RunFailed
from mnemesh_client.groups import Group, GroupsClient, SleeptimeClient
from mnemesh_client.inputs import Input, input_messages, new_request_id, text_of, update_request
from mnemesh_client.messages import MessagesClient
from mnemesh_client.paging import Order
from mnemesh_client.results import Hits
from mnemesh_client.runs import RunsClient

_COMPACTION_SECONDS: Final = 330.0
"""Longer than the server needs to try every summarizer."""
_EXTRACTION_SECONDS: Final = 1_200.0
_GENERATION_SECONDS: Final = 330.0
DELETION_SECONDS: Final = 60.0
_TOOL_SECONDS: Final = 200.0


@dataclass(frozen=True, slots=True)
class AgentCalls:
    """The clients that the handles of agents call."""

    agents: "agents_service_pb2_grpc.AgentServiceAsyncStub"
    runs: RunsClient
    groups: GroupsClient
    sleeptime: SleeptimeClient
    blocks: BlocksClient
    messages: MessagesClient
    passages: PassagesClient
    files: "agent_files_service_pb2_grpc.AgentFileServiceAsyncStub"


class Agent:
    """The handle of an agent. `proto` is the Agent message as of the last call that returned it."""

    def __init__(self, calls: AgentCalls, proto: agents_pb2.Agent) -> None:
        self._calls = calls
        self._stub = calls.agents
        self.proto = proto

    def __repr__(self) -> str:
        return f"Agent(id={self.id!r}, name={self.name!r}, model={self.model!r})"

    @property
    def id(self) -> str:
        """The id: "agent-" and a UUID."""
        return self.proto.id

    @property
    def name(self) -> str:
        """The name. It is not unique."""
        return self.proto.name

    @property
    def model(self) -> str:
        """The handle of its model, "provider/model"."""
        return self.proto.model

    @property
    def files(self) -> AgentFiles:
        """Its folders and files, with their windows, searches and citations."""
        return AgentFiles(self._calls.files, self.id)

    def send(
        self,
        content: Input,
        *,
        stream_tokens: bool = False,
        max_steps: int | None = None,
        conversation_id: str | None = None,
        config: runs_pb2.RunConfig | None = None,
        request_id: str | None = None,
    ) -> AsyncIterator[runs_pb2.RunEvent]:
        """Sends input and yields the events of the turn, up to its stop and usage.

        The stream survives a broken connection and a restart of the server: each durable event (message, compaction,
        error, stop, usage) is yielded exactly once. A failed run yields `event.error`; only a refused request raises.
        Leaving the loop early does not cancel the run.

        An approval request whose event has an `agent_id` is another agent's, whose reply the turn waits for. Answer it
        with `client.runs.answer(event.agent_id, decisions)`; this stream goes on then.

        Args:
            content: the user's text, or input messages.
            stream_tokens: yield `event.delta` in addition to whole messages.
            max_steps: the maximum number of steps of this turn.
            conversation_id: the conversation; None is the agent's default conversation.
            config: all settings of the run; `stream_tokens` and `max_steps` override it.
            request_id: the idempotency key, to get the same run again; None creates a new one.

        Raises:
            NotFound: the agent or the conversation does not exist.
            Aborted: CONVERSATION_BUSY, with the id of the active run, if `config.on_busy` is REJECT.
            FailedPrecondition: PENDING_APPROVAL.
            Unavailable: the server did not answer within the client's patience.
        """
        run_config = _run_config(config, max_steps)
        if stream_tokens:
            run_config.stream_tokens = True
        return self._calls.runs.send(
            self.id, content, conversation_id=conversation_id, config=run_config, request_id=request_id
        )

    async def ask(
        self,
        content: Input,
        *,
        max_steps: int | None = None,
        conversation_id: str | None = None,
        config: runs_pb2.RunConfig | None = None,
        request_id: str | None = None,
    ) -> str:
        """Sends input and returns the agent's replies, joined with line breaks. The options are those of `send`.

        Raises:
            RunFailed: the turn ended in an error; see its `reason`.
        """
        events = self._calls.runs.send_and_wait(
            self.id,
            content,
            conversation_id=conversation_id,
            config=_run_config(config, max_steps),
            request_id=request_id,
        )
        replies: list[str] = []
        async for event in events:
            if event.HasField("error"):
                raise RunFailed(event.run_id, event.error.error)
            if event.HasField("message") and event.message.HasField("assistant"):
                replies.append(text_of(event.message.assistant.content))
        return "\n".join(replies)

    def answer(
        self, decisions: Sequence[message_pb2.ApprovalDecision], content: Input = (), **options: Any
    ) -> AsyncIterator[runs_pb2.RunEvent]:
        """Answers the agent's pending approval request, and yields the events of the turn as `send` does.

        The event `message.approval_request` lists the pending tool calls. `approve`, `deny` and `returned` create the
        decisions. Repeating the same answer follows the same run.

        Args:
            decisions: one decision for each pending call.
            content: further input, which the agent receives after the tools have run.
            options: `approval_request_id` (default: the pending one), `conversation_id`, `config` (default: that of
                the run that asked), `request_id`.

        Raises:
            NotFound: the agent or the conversation does not exist.
            FailedPrecondition: NO_PENDING_APPROVAL.
            InvalidArgument: APPROVAL_MISMATCH, with the calls expected and received.
        """
        return self._calls.runs.answer(self.id, decisions, content=content, **options)

    async def set_tool_approval(self, tool_name: str, required: bool = True) -> "Agent":
        """Sets whether calls of one of its tools require an approval. Returns the handle itself."""
        request = agents_service_pb2.SetToolApprovalRequest(
            agent_id=self.id, tool_name=tool_name, requires_approval=required
        )
        self.proto = (await self._stub.SetToolApproval(request)).agent
        return self

    async def memory(self) -> blocks_pb2.CoreMemory:
        """Returns its core memory: all blocks, with the revision of the whole."""
        return await self._calls.blocks.core_memory(self.id)

    async def cost(self) -> float | None:
        """Returns the cost of its ended runs in US dollars; None if no run has a known cost."""
        view = agents_service_pb2.AgentView(cost=True)
        request = agents_service_pb2.GetAgentRequest(agent_id=self.id, view=view)
        response = await self._stub.GetAgent(request)
        return response.cost_nano_usd / 1e9 if response.HasField("cost_nano_usd") else None

    async def append(self, label: str, text: str) -> blocks_pb2.Block:
        """Appends text on a new line to one of its blocks, as the owner."""
        return await self._calls.blocks.append(self.id, label, text)

    async def replace(self, label: str, old: str, new: str) -> blocks_pb2.Block:
        """Replaces the only occurrence of `old` in one of its blocks, as the owner."""
        return await self._calls.blocks.replace(self.id, label, old, new)

    def messages(
        self, *, conversation_id: str | None = None, order: Order | None = None, limit: int | None = None
    ) -> AsyncIterator[message_pb2.Message]:
        """Yields all its messages, oldest first unless `order` is "desc"."""
        return self._calls.messages.list(agent_id=self.id, conversation_id=conversation_id, order=order, limit=limit)

    async def search(self, query: str, **options: Any) -> Hits[messages_service_pb2.MessageHit]:
        """Searches its messages. Takes the options of `MessagesClient.search`."""
        return await self._calls.messages.search(query, agent_id=self.id, **options)

    async def remember(self, text: str, *, tags: Sequence[str] = ()) -> archives_pb2.Passage:
        """Stores a passage in its archival memory."""
        return await self._calls.passages.insert(text, agent_id=self.id, tags=tags)

    def passages(
        self, *, tags: Sequence[str] = (), order: Order | None = None, limit: int | None = None
    ) -> AsyncIterator[archives_pb2.Passage]:
        """Yields the passages in its archives, newest first unless `order` is "asc"."""
        return self._calls.passages.list(agent_id=self.id, tags=tags, order=order, limit=limit)

    async def search_passages(self, query: str, **options: Any) -> Hits[passages_service_pb2.PassageHit]:
        """Searches its archives. Takes the options of `PassagesClient.search`."""
        return await self._calls.passages.search(query, agent_id=self.id, **options)

    async def sleep(self, *, waits: bool = False, request_id: str = "") -> list[runs_pb2.Run]:
        """Starts the runs of its sleeptime partners now, with its new messages. See `SleeptimeClient.start`."""
        return await self._calls.sleeptime.start(agent_id=self.id, waits=waits, request_id=request_id)

    async def preview_sleep(self) -> groups_service_pb2.PreviewSleeptimeRunsResponse:
        """Returns what `sleep` would send to its partners: the transcript and the requests. Changes nothing."""
        return await self._calls.sleeptime.preview(agent_id=self.id)

    async def sleeptime_group(self) -> Group | None:
        """Returns the sleeptime group that it manages. Its members are the partners. None if there is none."""
        return await self._calls.groups.find_managed_by(self.id)

    async def refresh(self) -> "Agent":
        """Reads `proto` from the server. Returns the handle itself."""
        request = agents_service_pb2.GetAgentRequest(agent_id=self.id)
        self.proto = (await self._stub.GetAgent(request)).agent
        return self

    async def update(self, *, system_prompt_key: str | None = None, **fields: Any) -> "Agent":
        """Updates fields of Agent (name, model, system, tags, …). None clears a field. Returns the handle itself.

        `system_prompt_key` replaces the system prompt with the one under that key; see `client.prompts`.
        """
        kind = agents_service_pb2.UpdateAgentRequest
        request = update_request(kind, "agent", self.id, fields, system_prompt_key=system_prompt_key)
        self.proto = (await self._stub.UpdateAgent(request)).agent
        return self

    async def set_secrets(self, secrets: Mapping[str, str | None]) -> "Agent":
        """Replaces all environment variables of its tools. None as a value keeps the stored one.

        Returns the handle itself, whose `proto.secrets` has names and times, and never values.
        """
        return await self.update(secrets=[agents_pb2.Secret(key=name, value=value) for name, value in secrets.items()])

    async def attach_tool(self, key: str) -> "Agent":
        """Attaches a tool, by "tool-…" id or by name. Returns the handle itself."""
        request = agents_service_pb2.AttachToolRequest(agent_id=self.id, **_tool_key(key))
        self.proto = (await self._stub.AttachTool(request)).agent
        return self

    async def detach_tool(self, key: str) -> "Agent":
        """Detaches a tool, by "tool-…" id or by name. Returns the handle itself."""
        request = agents_service_pb2.DetachToolRequest(agent_id=self.id, **_tool_key(key))
        self.proto = (await self._stub.DetachTool(request)).agent
        return self

    async def run_tool(self, name: str, arguments: Mapping[str, Any] | None = None) -> message_pb2.ToolReturn:
        """Runs one of its tools outside of a turn. A tool that fails returns a result with the status ERROR.

        Args:
            name: the name of an attached tool.
            arguments: the arguments, as JSON values.

        Raises:
            NotFound: the agent has no such tool.
        """
        request = agents_service_pb2.RunToolRequest(
            request_id=new_request_id(), agent_id=self.id, tool_name=name, arguments=json.dumps(dict(arguments or {}))
        )
        return (await self._stub.RunTool(request, timeout=_TOOL_SECONDS)).tool_return

    async def context_window(self, conversation_id: str | None = None) -> agents_pb2.ContextWindow:
        """Returns its context window: the text of each section, the messages, and token counts."""
        request = agents_service_pb2.GetContextWindowRequest(agent_id=self.id, conversation_id=conversation_id)
        return (await self._stub.GetContextWindow(request)).context_window

    async def compact(
        self,
        *,
        settings: agents_pb2.CompactionSettings | None = None,
        conversation_id: str | None = None,
        dry_run: bool = False,
        waits: bool = True,
        request_id: str = "",
    ) -> agents_pb2.CompactionResult:
        """Replaces the older part of the context window with a summary. Returns the sizes before and after.

        Args:
            settings: the compaction settings for this call; None uses the agent's.
            conversation_id: the conversation; None is the agent's default conversation.
            dry_run: return the summary and the sizes without changing the window.
            waits: wait for active and queued runs of the conversation; otherwise the call is refused if there are any.
            request_id: the idempotency key, to get the same compaction again; empty creates a new one.

        Raises:
            FailedPrecondition: NOTHING_TO_COMPACT.
            Aborted: CONVERSATION_BUSY, with the id of the active run.
        """
        request = agents_service_pb2.CompactConversationRequest(
            request_id=request_id,
            agent_id=self.id,
            conversation_id=conversation_id,
            settings=settings,
            dry_run=dry_run,
            on_busy=runs_pb2.ON_BUSY_WAIT if waits else runs_pb2.ON_BUSY_REJECT,
        )
        return (await self._stub.CompactConversation(request, timeout=_COMPACTION_SECONDS)).result

    async def extract_memories(self, *, max_calls: int = 0) -> agents_service_pb2.ExtractMemoriesResponse:
        """Extracts facts from the messages that no extraction has processed. A `max_calls` of 0 is 10."""
        request = agents_service_pb2.ExtractMemoriesRequest(agent_id=self.id, max_calls=max_calls)
        return await self._stub.ExtractMemories(request, timeout=_EXTRACTION_SECONDS)

    async def preview(
        self, content: Input, *, conversation_id: str | None = None, config: runs_pb2.RunConfig | None = None
    ) -> dict[str, Any]:
        """Returns the request to the provider that input would cause, as JSON. Stores and sends nothing."""
        request = agents_service_pb2.PreviewRequestRequest(
            agent_id=self.id, conversation_id=conversation_id, messages=input_messages(content), config=config
        )
        body: dict[str, Any] = json.loads((await self._stub.PreviewRequest(request)).request_body)
        return body

    async def generate(
        self,
        prompt: str,
        *,
        system: str | None = None,
        model: str | None = None,
        response_format: agents_pb2.ResponseFormat | None = None,
    ) -> agents_service_pb2.GenerateTextResponse:
        """Returns the answer of its model to a prompt, without its memory, messages and tools. Stores nothing.

        Args:
            prompt: the only message of the user.
            system: the system message; None is a short default.
            model: the handle of another model.
            response_format: the format of the answer; None is text.

        Raises:
            InvalidArgument: the prompt is blank, or the format has no valid schema.
            NotFound: no provider serves the model.
        """
        request = agents_service_pb2.GenerateTextRequest(
            agent_id=self.id, prompt=prompt, system=system, model=model, response_format=response_format
        )
        return await self._stub.GenerateText(request, timeout=_GENERATION_SECONDS)

    async def recompile(
        self,
        *,
        conversation_id: str | None = None,
        dry_run: bool = False,
        waits: bool = True,
        request_id: str = "",
    ) -> agents_service_pb2.RecompileAgentResponse:
        """Renders the system message again and stores it. Returns its text, and whether it changed.

        Args:
            conversation_id: the conversation; None is the agent's default conversation.
            dry_run: only return the text.
            waits: wait for active and queued runs of the conversation; otherwise the call is refused if there are any.
            request_id: the idempotency key; empty creates a new one.

        Raises:
            Aborted: CONVERSATION_BUSY, with the id of the active run.
        """
        request = agents_service_pb2.RecompileAgentRequest(
            request_id=request_id,
            agent_id=self.id,
            conversation_id=conversation_id,
            dry_run=dry_run,
            on_busy=runs_pb2.ON_BUSY_WAIT if waits else runs_pb2.ON_BUSY_REJECT,
        )
        return await self._stub.RecompileAgent(request, timeout=_COMPACTION_SECONDS)

    async def reset_messages(
        self,
        *,
        conversation_id: str | None = None,
        add_initial_messages: bool = False,
        waits: bool = True,
        request_id: str = "",
    ) -> None:
        """Removes all messages except the system message from the context window. They stay in recall.

        Args:
            conversation_id: the conversation; None is the agent's default conversation.
            add_initial_messages: add the messages with which an agent of its type begins.
            waits: wait for active and queued runs of the conversation; otherwise the call is refused if there are any.
            request_id: the idempotency key; empty creates a new one.

        Raises:
            Aborted: CONVERSATION_BUSY, with the id of the active run.
        """
        request = agents_service_pb2.ResetMessagesRequest(
            request_id=request_id,
            agent_id=self.id,
            conversation_id=conversation_id,
            add_default_initial_messages=add_initial_messages,
            on_busy=runs_pb2.ON_BUSY_WAIT if waits else runs_pb2.ON_BUSY_REJECT,
        )
        response = await self._stub.ResetMessages(request, timeout=_COMPACTION_SECONDS)
        self.proto = response.agent

    async def delete(self) -> None:
        """Deletes it, with all data that belongs only to it in every service."""
        request = agents_service_pb2.DeleteAgentRequest(agent_id=self.id)
        await self._stub.DeleteAgent(request, timeout=DELETION_SECONDS)


def _run_config(config: runs_pb2.RunConfig | None, max_steps: int | None) -> runs_pb2.RunConfig:
    found = runs_pb2.RunConfig()
    if config is not None:
        found.CopyFrom(config)
    if max_steps is not None:
        found.max_steps = max_steps
    return found


def _tool_key(key: str) -> dict[str, Any]:
    return {"tool_id": key} if key.startswith("tool-") else {"name": key}
