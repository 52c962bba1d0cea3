"""The service over a real archival service."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from mnemesh_kit.time import FrozenClock

from .service import Service, archival_service, opened

pytest.register_assert_rewrite(f"{__package__}.leftovers")


@pytest_asyncio.fixture
async def archival(tmp_path: Path) -> AsyncIterator[Any]:
    """A channel to archival."""
    async with archival_service(tmp_path / "archival") as channel:
        yield channel


@pytest.fixture
def clock() -> FrozenClock:
    """The clock of the service."""
    return FrozenClock()


@pytest_asyncio.fixture
async def service(tmp_path: Path, archival: Any, clock: FrozenClock) -> AsyncIterator[Service]:
    """The service."""
    async with opened(tmp_path, archival, clock) as service:
        yield service
