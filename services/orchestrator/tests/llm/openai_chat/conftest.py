"""The OpenAI adapter with the real SDK, at a server with the real protocol."""

from collections.abc import AsyncIterator

import pytest
from mnemesh_orchestrator.llm.openai_chat import OpenAiChatClient
from mnemesh_testkit.fakes.openai import FakeOpenAI

from ..windows import at

KEY = "sk-test-0123456789abcdef"


class RecordedWaits:
    """Replaces the wait between attempts and records each."""

    def __init__(self) -> None:
        self.taken: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.taken.append(seconds)


@pytest.fixture
async def fake() -> AsyncIterator[FakeOpenAI]:
    async with FakeOpenAI() as server:
        yield server


@pytest.fixture
def waits() -> RecordedWaits:
    return RecordedWaits()


@pytest.fixture
async def client(fake: FakeOpenAI, waits: RecordedWaits) -> AsyncIterator[OpenAiChatClient]:
    adapter = OpenAiChatClient(at(fake.base_url, api_key=KEY), sleep=waits)
    yield adapter
    await adapter.close()
