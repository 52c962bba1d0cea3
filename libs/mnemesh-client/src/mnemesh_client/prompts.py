"""System prompts that an agent can be created with by key."""

from __future__ import annotations

from collections.abc import AsyncIterator

from mnemesh.agents.v1 import agents_pb2, agents_service_pb2, agents_service_pb2_grpc

from mnemesh_client.paging import paginate
from mnemesh_client.transport import Channel


class PromptsClient:
    """Calls of AgentService about system prompts, as `e.prompts`: built-in prompts and the operator's files."""

    def __init__(self, channel: Channel) -> None:
        self.stub = agents_service_pb2_grpc.AgentServiceStub(channel)

    async def get(self, key: str) -> agents_pb2.SystemPrompt:
        """Returns the current prompt with a key. Raises NotFound."""
        return (await self.stub.GetSystemPrompt(agents_service_pb2.GetSystemPromptRequest(key=key))).system_prompt

    def list(self, *, limit: int | None = None) -> AsyncIterator[agents_pb2.SystemPrompt]:
        """Yields all prompts, in order of their keys."""
        return paginate(
            self.stub.ListSystemPrompts, agents_service_pb2.ListSystemPromptsRequest(), "system_prompts", limit
        )
