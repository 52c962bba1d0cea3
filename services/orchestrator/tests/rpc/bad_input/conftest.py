"""Invalid requests over gRPC."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from ..conftest import Wire, serving


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def wire(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Wire]:
    """One service for all requests, which change nothing."""
    async with serving(tmp_path_factory.mktemp("orchestrator")) as wire:
        yield wire
