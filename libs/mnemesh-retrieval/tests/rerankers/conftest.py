"""A fake rerank server."""

from collections.abc import AsyncIterator

import pytest
from mnemesh_testkit.fakes.embedders import FakeReranker


@pytest.fixture
async def provider() -> AsyncIterator[FakeReranker]:
    async with FakeReranker() as provider:
        yield provider
