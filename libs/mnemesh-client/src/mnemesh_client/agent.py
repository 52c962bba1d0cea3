"""The handle of one agent: talk to it, and look into each tier of its memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any

from google.protobuf import field_mask_pb2
from mnemesh.agents.v1 import agents_pb2, agents_service_pb2, runs_pb2
from mnemesh.archival.v1 import archives_pb2, passages_service_pb2
from mnemesh.blocks.v1 import blocks_pb2
from mnemesh.recall.v1 import messages_service_pb2
from mnemesh.types.v1 import message_pb2

from mnemesh_client.errors import RunFailed
from mnemesh_client.inputs import Input, given, text_of
from mnemesh_client.paging import Order

if TYPE_CHECKING:
    from mnemesh_client.mnemesh import Mnemesh

_COMPACTION_SECONDS = 330.0
"""Longer than a server takes to give up on every summariser."""


class Agent:
    """An agent of the mesh. `proto` is the contract's message as it was when it was last read."""

    def __init__(self, mnemesh: Mnemesh, proto: agents_pb2.Agent) -> None:
        self._mnemesh = mnemesh
        self.proto = proto

    def __repr__(self) -> str:
        return f"Agent(id={self.id!r}, name={self.name!r}, model={self.model!r})"

    @property
    def id(self) -> str:
        """ "agent-" and a UUID."""
        return self.proto.id

    @property
    def name(self) -> str:
        """Not unique."""
        return self.proto.name

    @property
    def model(self) -> str:
        """ "provider/model"."""
        return self.proto.model

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
        """Sends input and yields the events of the turn, to its stop and usage.

        A broken connection or a restart of the server in between is bridged: each durable event (message, compaction,
        error, stop, usage) comes exactly once. A run that fails is an event too, `event.error`; only a refused
        request raises. Leaving the loop early does not cancel the run.

        Args:
            content: a text of the user, or input messages.
            stream_tokens: yield `event.delta` beside the whole messages.
            max_steps: the most steps of this turn.
            conversation_id: None is the agent's default conversation.
            config: everything else about the run; the two arguments above are laid over it.
            request_id: repeat it to get the same run again; None makes one up.

        Raises:
            NotFound: no such agent or conversation.
            Aborted: CONVERSATION_BUSY, with the run's id, where `config.on_busy` is REJECT.
            FailedPrecondition: PENDING_APPROVAL.
            Unavailable: nobody answered for the client's patience.
        """
        chosen = runs_pb2.RunConfig()
        if config is not None:
            chosen.CopyFrom(config)
        if stream_tokens:
            chosen.stream_tokens = True
        if max_steps is not None:
            chosen.max_steps = max_steps
        return self._mnemesh.runs.send(
            self.id, content, conversation_id=conversation_id, config=chosen, request_id=request_id
        )

    async def ask(self, content: Input, **options: Any) -> str:
        """Sends input and returns what the agent said, its messages on lines of their own; options as of `send`.

        Raises:
            RunFailed: the turn ended in an error; its `reason` says which.
        """
        said: list[str] = []
        async for event in self.send(content, **options):
            if event.HasField("error"):
                raise RunFailed(event.run_id, event.error.error)
            if event.HasField("message") and event.message.HasField("assistant"):
                said.append(text_of(event.message.assistant.content))
        return "\n".join(said)

    def answer(
        self, decisions: Sequence[message_pb2.ApprovalDecision], content: Input = (), **options: Any
    ) -> AsyncIterator[runs_pb2.RunEvent]:
        """Answers the approval that the agent waits for, and yields the events of the turn as `send` does.

        The event `message.approval_request` has the calls that wait; each is decided by `approve`, `deny` or
        `returned`. The same answer again is the same run.

        Args:
            decisions: one for each call that waits.
            content: further input, said once the tools have run.
            options: `approval_request_id` (None is the pending one), `conversation_id`, `config` (None is that of the
                run which asked), `request_id`.

        Raises:
            NotFound: no such agent or conversation.
            FailedPrecondition: NO_PENDING_APPROVAL.
            InvalidArgument: APPROVAL_MISMATCH, with the calls expected and received.
        """
        return self._mnemesh.runs.answer(self.id, decisions, content=content, **options)

    async def set_tool_approval(self, tool_name: str, required: bool = True) -> Agent:
        """Has calls of one of its tools wait for a person, or not. Returns the handle itself."""
        request = agents_service_pb2.SetToolApprovalRequest(
            agent_id=self.id, tool_name=tool_name, requires_approval=required
        )
        self.proto = (await self._mnemesh.agents.stub.SetToolApproval(request)).agent
        return self

    async def memory(self) -> blocks_pb2.CoreMemory:
        """Its core memory: the blocks, with one revision."""
        return await self._mnemesh.blocks.core_memory(self.id)

    async def append(self, label: str, text: str) -> blocks_pb2.Block:
        """Adds text on a new line at the end of one of its blocks, as the owner."""
        return await self._mnemesh.blocks.append(self.id, label, text)

    async def replace(self, label: str, old: str, new: str) -> blocks_pb2.Block:
        """Replaces the only occurrence of `old` in one of its blocks, as the owner."""
        return await self._mnemesh.blocks.replace(self.id, label, old, new)

    def messages(
        self, *, conversation_id: str | None = None, order: Order | None = None, limit: int | None = None
    ) -> AsyncIterator[message_pb2.Message]:
        """Everything it ever said and heard, oldest first unless `order` is "desc"."""
        return self._mnemesh.messages.list(agent_id=self.id, conversation_id=conversation_id, order=order, limit=limit)

    async def search(self, query: str, **options: Any) -> Sequence[messages_service_pb2.MessageHit]:
        """Searches its messages; options as of `MessagesClient.search`."""
        return await self._mnemesh.messages.search(query, agent_id=self.id, **options)

    async def remember(self, text: str, *, tags: Sequence[str] = ()) -> archives_pb2.Passage:
        """Puts a passage into its archival memory."""
        return await self._mnemesh.passages.insert(text, agent_id=self.id, tags=tags)

    def passages(
        self, *, tags: Sequence[str] = (), order: Order | None = None, limit: int | None = None
    ) -> AsyncIterator[archives_pb2.Passage]:
        """What is in its archives, newest first unless `order` is "asc"."""
        return self._mnemesh.passages.list(agent_id=self.id, tags=tags, order=order, limit=limit)

    async def search_passages(self, query: str, **options: Any) -> Sequence[passages_service_pb2.PassageHit]:
        """Searches its archives; options as of `PassagesClient.search`."""
        return await self._mnemesh.passages.search(query, agent_id=self.id, **options)

    async def context_window(self, conversation_id: str | None = None) -> agents_pb2.ContextWindow:
        """What the model sees: texts, messages, and token counts by section."""
        request = agents_service_pb2.GetContextWindowRequest(agent_id=self.id, conversation_id=conversation_id)
        return (await self._mnemesh.agents.stub.GetContextWindow(request)).context_window

    async def compact(
        self,
        *,
        settings: agents_pb2.CompactionSettings | None = None,
        conversation_id: str | None = None,
        dry_run: bool = False,
        waits: bool = True,
        request_id: str = "",
    ) -> agents_pb2.CompactionResult:
        """Puts a summary in the place of the older part of the window; the figures before and after.

        Args:
            settings: go before the agent's for this time.
            conversation_id: None is the agent's default conversation.
            dry_run: the summary and the figures, and no effect.
            waits: for the runs that are ahead in the conversation; else it is refused where there are any.
            request_id: repeat it to get the same compaction again; empty makes one up.

        Raises:
            FailedPrecondition: NOTHING_TO_COMPACT.
            Aborted: CONVERSATION_BUSY, with the id of the run that is ahead.
        """
        request = agents_service_pb2.CompactConversationRequest(
            request_id=request_id,
            agent_id=self.id,
            conversation_id=conversation_id,
            settings=settings,
            dry_run=dry_run,
            on_busy=runs_pb2.ON_BUSY_WAIT if waits else runs_pb2.ON_BUSY_REJECT,
        )
        return (await self._mnemesh.agents.stub.CompactConversation(request, timeout=_COMPACTION_SECONDS)).result

    async def refresh(self) -> Agent:
        """Reads `proto` again; returns the handle itself."""
        request = agents_service_pb2.GetAgentRequest(agent_id=self.id)
        self.proto = (await self._mnemesh.agents.stub.GetAgent(request)).agent
        return self

    async def update(self, *, system_prompt_key: str | None = None, **fields: Any) -> Agent:
        """Writes the named fields of Agent (name, model, system, tags, …); None clears. Returns the handle itself.

        With `system_prompt_key` the system prompt becomes the one under that key, see `e.prompts`.
        """
        present = given(**fields)
        request = agents_service_pb2.UpdateAgentRequest(
            system_prompt_key=system_prompt_key,
            agent=agents_pb2.Agent(id=self.id, **present),
            update_mask=field_mask_pb2.FieldMask(paths=list(fields)),
        )
        self.proto = (await self._mnemesh.agents.stub.UpdateAgent(request)).agent
        return self

    async def attach_tool(self, key: str) -> Agent:
        """Gives it a tool, by "tool-…" id or by name. Returns the handle itself."""
        request = agents_service_pb2.AttachToolRequest(agent_id=self.id, **_tool_key(key))
        self.proto = (await self._mnemesh.agents.stub.AttachTool(request)).agent
        return self

    async def detach_tool(self, key: str) -> Agent:
        """Takes a tool from it. Returns the handle itself."""
        request = agents_service_pb2.DetachToolRequest(agent_id=self.id, **_tool_key(key))
        self.proto = (await self._mnemesh.agents.stub.DetachTool(request)).agent
        return self

    async def delete(self) -> None:
        """Deletes it, with everything that only it has in every tier."""
        await self._mnemesh.agents.delete(self.id)


def _tool_key(key: str) -> dict[str, Any]:
    return {"tool_id": key} if key.startswith("tool-") else {"name": key}
