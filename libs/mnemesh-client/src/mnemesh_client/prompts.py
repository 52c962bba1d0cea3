"""System prompts: what agents can be made with by a key."""

from __future__ import annotations

from collections.abc import AsyncIterator

from mnemesh.agents.v1 import agents_pb2, agents_service_pb2, agents_service_pb2_grpc
from mnemesh_kit.channels import Channel

from mnemesh_client.paging import every


class PromptsClient:
    """`e.prompts`: the built-in ones, and those that the operator keeps as files."""

    def __init__(self, channel: Channel) -> None:
        self.stub = agents_service_pb2_grpc.AgentServiceStub(channel)

    async def get(self, key: str) -> agents_pb2.SystemPrompt:
        """The prompt under a key, as it is now; raises NotFound."""
        return (await self.stub.GetSystemPrompt(agents_service_pb2.GetSystemPromptRequest(key=key))).system_prompt

    def list(self, *, limit: int | None = None) -> AsyncIterator[agents_pb2.SystemPrompt]:
        """All of them, by key."""
        return every(
            self.stub.ListSystemPrompts, agents_service_pb2.ListSystemPromptsRequest(), "system_prompts", limit
        )
