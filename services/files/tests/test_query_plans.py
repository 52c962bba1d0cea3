"""No call reads a whole table, and none reads more rows because there are more folders and files of others."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from mnemesh.files.v1 import agent_files_service_pb2 as agents_rpc
from mnemesh.files.v1 import files_service_pb2 as rpc
from mnemesh.files.v1 import folders_service_pb2 as folders_rpc
from mnemesh_kit.ids import derive_id
from mnemesh_kit.time import FrozenClock
from mnemesh_testkit.databases.query_plans import Watch, grown, seen

from .service import Service, archival_service, opened

FEW, MANY = 3, 25
SLACK: Final = 400
TABLES: Final = (
    "folders",
    "files",
    "file_segments",
    "file_passages",
    "blobs",
    "agent_folders",
    "agent_files",
    "agents",
)
AGENT: Final = derive_id("agent", "0")

Call = Callable[[], Awaitable[Any]]


async def fill(service: Service, numbers: range) -> list[str]:
    """Creates folders with two files each, which an agent of their own holds. Returns the ids of the folders."""
    ids = []
    for number in numbers:
        folder = await service.client.folder(f"folder {number}")
        for name in ("a.txt", "b.txt"):
            await service.client.upload(folder.id, name, content=f"Text {name} of {number}.\n".encode() * 20)
        attach = agents_rpc.AttachFolderRequest(agent_id=derive_id("agent", str(number)), folder_id=folder.id)
        await service.client.agents.AttachFolder(attach)
        ids.append(folder.id)
    await service.work()
    return ids


def reads(service: Service, folder_id: str, file_id: str) -> dict[str, Call]:
    """Every kind of read of one folder, one file and one agent."""
    client = service.client
    filter_ = rpc.FileFilter(folder_id=folder_id)
    return {
        "GetFolder": lambda: client.folders.GetFolder(folders_rpc.GetFolderRequest(folder_id=folder_id)),
        "ListFolders": lambda: client.folders.ListFolders(folders_rpc.ListFoldersRequest(page_size=2)),
        "GetFile": lambda: client.file(file_id),
        "ListFiles of a folder": lambda: client.files.ListFiles(rpc.ListFilesRequest(filter=filter_, page_size=2)),
        "GetFileText": lambda: client.files.GetFileText(rpc.GetFileTextRequest(file_id=file_id, offset=1, length=2)),
        "GetDirectories": lambda: client.agents.GetDirectories(agents_rpc.GetDirectoriesRequest(agent_id=AGENT)),
        "ListAgentFiles": lambda: client.agents.ListAgentFiles(agents_rpc.ListAgentFilesRequest(agent_id=AGENT)),
        "GrepFiles": lambda: client.agents.GrepFiles(agents_rpc.GrepFilesRequest(agent_id=AGENT, pattern="Text")),
        "the next file to process": service.worker.run_due,
    }


async def test_reads_do_not_grow_with_the_files_of_others(tmp_path: Path) -> None:
    async with (
        archival_service(tmp_path / "archival") as archival,
        opened(tmp_path, archival, FrozenClock()) as service,
    ):
        folder_id, *_ = await fill(service, range(FEW))
        listed = await service.client.files.ListFiles(rpc.ListFilesRequest(filter=rpc.FileFilter(folder_id=folder_id)))
        calls = reads(service, folder_id, listed.files[0].id)

        async def measured() -> dict[str, Watch]:
            return {name: await seen(call) for name, call in calls.items()}

        few = await measured()
        await fill(service, range(FEW, MANY))
        many = await measured()
        assert grown(few, many, TABLES, SLACK, more_than=FEW) == []
