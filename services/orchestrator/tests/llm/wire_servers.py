"""Servers of the corpus of wires for the agents of a world: strict ones, behind the real adapters and SDKs."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from mnemesh_orchestrator.llm.anthropic_messages import AnthropicMessagesClient
from mnemesh_orchestrator.llm.openai_chat import OpenAiChatClient
from mnemesh_orchestrator.llm.openai_responses import OpenAiResponsesClient
from mnemesh_orchestrator.llm.port import LlmClient
from mnemesh_orchestrator.llm.settings import Api
from mnemesh_orchestrator.model.models import ModelInfo
from mnemesh_testkit.fakes.anthropic import FakeAnthropic
from mnemesh_testkit.fakes.openai import FakeOpenAI, FakeResponses
from mnemesh_testkit.fakes.server import FakeProvider, Fault, Reply, status
from mnemesh_testkit.wires import Wire, encoded
from mnemesh_types.agents import ModelSettings

from ..support.model import OneOffer, OneProvider
from ..support.world import World
from .windows import at

MODELS = {"chat": "a-model", "responses": "gpt-5", "messages": "claude-sonnet-4-5"}
FAKES: dict[str, type[FakeProvider]] = {"chat": FakeOpenAI, "responses": FakeResponses, "messages": FakeAnthropic}
CLIENTS: dict[str, Callable[..., LlmClient]] = {
    "chat": OpenAiChatClient,
    "responses": OpenAiResponsesClient,
    "messages": AnthropicMessagesClient,
}


def insert(*contents: str) -> list[tuple[str, dict[str, str]]]:
    return [("archival_memory_insert", {"content": content}) for content in contents]


class StrictServer:
    """Plays the replies of a wire, and refuses what its server refuses."""

    def __init__(self, wire: Wire, replies: Sequence[Reply]) -> None:
        self.wire = wire
        self.replies = replies
        self.sent: list[Reply] = []
        self.refusals: list[str] = []

    def __call__(self, body: dict[str, Any]) -> Fault:
        problem = self.wire.problem(body, self.sent)
        if problem is not None:
            self.refusals.append(problem)
            return status(400, problem)
        reply = self.replies[len(self.sent)]
        stream = encoded(self.wire.events(reply, len(self.sent)))
        self.sent.append(reply)
        return Fault(kind="body", body=stream, headers={"content-type": "text/event-stream"})


class ServedModel(OneOffer):
    """A model of a server."""

    def __init__(self, wire: Wire, endpoint: str, client: LlmClient) -> None:
        apis = {"chat": Api.CHAT, "responses": Api.RESPONSES, "messages": Api.MESSAGES}
        settings = ModelSettings(context_window=32_000, max_output_tokens=4_096, enable_reasoner=True)
        name, is_official = MODELS[wire.api], wire.type in ("openai", "anthropic")
        where = None if is_official else endpoint
        self.info = ModelInfo(f"{wire.type}/{name}", wire.type, name, apis[wire.api], settings, where, wire.type)
        self.client = client

    async def default_handle(self) -> str:
        return self.info.handle

    def resolve(self, handle: str) -> Any:
        return self.info, self.client


class ServedProvider(OneProvider):
    def __init__(self, offer: ServedModel) -> None:
        self.offer = offer


@asynccontextmanager
async def served(world: World, wire: Wire, server: StrictServer) -> AsyncIterator[FakeProvider]:
    """Replaces the model of a world by one of a server."""
    async with FAKES[wire.api](server) as fake:
        client = CLIENTS[wire.api](at(fake.base_url, wire.type, api_key="k"), sleep=world._sleep)
        world.provider = ServedProvider(ServedModel(wire, fake.base_url, client))
        try:
            yield fake
        finally:
            await client.close()
