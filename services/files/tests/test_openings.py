"""Files that are opened when their processing makes them ready."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest_asyncio
from mnemesh.files.v1 import agent_files_service_pb2 as rpc
from mnemesh_kit.ids import new_id
from mnemesh_kit.time import FrozenClock
from mnemesh_testkit.suites.files.calls import REPLACE

from .service import Service, opened


@pytest_asyncio.fixture
async def service(tmp_path: Path, archival: Any) -> AsyncIterator[Service]:
    """The service."""
    async with opened(tmp_path / "files", archival, FrozenClock()) as service:
        yield service


async def attached(service: Service, folder_id: str, *, open_files: bool) -> str:
    """Returns the id of a new agent that holds a folder."""
    agent_id = new_id("agent")
    request = rpc.AttachFolderRequest(agent_id=agent_id, folder_id=folder_id, open_files=open_files)
    await service.client.agents.AttachFolder(request)
    return agent_id


async def open_names(service: Service, agent_id: str) -> list[str]:
    """Returns the names of the open files of an agent."""
    request = rpc.ListAgentFilesRequest(agent_id=agent_id, is_open=True)
    return [file.name for file in (await service.client.agents.ListAgentFiles(request)).files]


async def test_a_file_is_opened_when_it_is_processed(service: Service) -> None:
    folder = await service.client.folder("reports")
    opening = await attached(service, folder.id, open_files=True)
    native = await attached(service, folder.id, open_files=False)
    await service.client.upload(folder.id, "a.txt", b"some text")
    assert await open_names(service, opening) == []
    await service.work()
    assert await open_names(service, opening) == ["reports/a.txt"]
    assert await open_names(service, native) == []


async def test_later_files_close_the_least_recently_used(service: Service) -> None:
    folder = await service.client.folder("reports")
    agent_id = await attached(service, folder.id, open_files=True)
    for number in range(7):
        await service.client.upload(folder.id, f"{number}.txt", b"text %d" % number)
        await service.work(advance=1)
    assert sorted(await open_names(service, agent_id)) == [f"reports/{number}.txt" for number in range(2, 7)]


async def test_a_replaced_file_that_was_closed_stays_closed(service: Service) -> None:
    folder = await service.client.folder("reports")
    agent_id = await attached(service, folder.id, open_files=True)
    await service.client.upload(folder.id, "a.txt", b"some text")
    await service.work()
    await service.client.agents.CloseFiles(rpc.CloseFilesRequest(agent_id=agent_id, all=True))
    await service.client.upload(folder.id, "a.txt", b"other text", duplicate_handling=REPLACE)
    await service.work(advance=300)
    assert await open_names(service, agent_id) == []
