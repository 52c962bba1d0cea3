"""The context window of an agent: what the model sees, and what replaces or removes parts of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from mnemesh.agents.v1 import agents_pb2, agents_service_pb2, runs_pb2

from mnemesh_client.inputs import Input, input_messages

if TYPE_CHECKING:
    from mnemesh_client.mnemesh import Mnemesh

_COMPACTION_SECONDS: Final = 330.0
"""Longer than the server needs to try every summarizer."""
_EXTRACTION_SECONDS: Final = 1_200.0
_GENERATION_SECONDS: Final = 330.0


class AgentWindow:
    """The part of an agent's handle that is about its context window."""

    def __init__(self, mnemesh: Mnemesh, proto: agents_pb2.Agent) -> None:
        self._mnemesh = mnemesh
        self.proto = proto

    @property
    def id(self) -> str:
        """The id: "agent-" and a UUID."""
        return self.proto.id

    async def context_window(self, conversation_id: str | None = None) -> agents_pb2.ContextWindow:
        """Returns its context window: the text of each section, the messages, and token counts."""
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
        return (await self._mnemesh.agents.stub.CompactConversation(request, timeout=_COMPACTION_SECONDS)).result

    async def extract_memories(self, *, max_calls: int = 0) -> agents_service_pb2.ExtractMemoriesResponse:
        """Extracts facts from the messages that no extraction has processed. A `max_calls` of 0 is 10."""
        request = agents_service_pb2.ExtractMemoriesRequest(agent_id=self.id, max_calls=max_calls)
        return await self._mnemesh.agents.stub.ExtractMemories(request, timeout=_EXTRACTION_SECONDS)

    async def preview(
        self, content: Input, *, conversation_id: str | None = None, config: runs_pb2.RunConfig | None = None
    ) -> dict[str, Any]:
        """Returns the request to the provider that input would cause, as JSON. Stores and sends nothing."""
        request = agents_service_pb2.PreviewRequestRequest(
            agent_id=self.id, conversation_id=conversation_id, messages=input_messages(content), config=config
        )
        body: dict[str, Any] = json.loads((await self._mnemesh.agents.stub.PreviewRequest(request)).request_body)
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
        return await self._mnemesh.agents.stub.GenerateText(request, timeout=_GENERATION_SECONDS)

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
        return await self._mnemesh.agents.stub.RecompileAgent(request, timeout=_COMPACTION_SECONDS)

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
        response = await self._mnemesh.agents.stub.ResetMessages(request, timeout=_COMPACTION_SECONDS)
        self.proto = response.agent
