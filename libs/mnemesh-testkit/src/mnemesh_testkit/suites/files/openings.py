"""Attachments of folders that open files."""

from __future__ import annotations

from mnemesh.files.v1 import agent_files_service_pb2 as rpc
from mnemesh.files.v1 import files_pb2 as pb
from mnemesh_kit.ids import new_id

from mnemesh_testkit.suites.files.agent_calls import AgentFiles, AgentFilesCases
from mnemesh_testkit.suites.files.calls import Files, reason


class Openings(AgentFilesCases):
    """Files that are opened because their folder is attached."""

    async def test_an_attachment_opens_the_ready_files(
        self, agent: AgentFiles, client: Files, folder: pb.Folder
    ) -> None:
        await agent.file(folder.id, "b.txt", "text of b")
        await agent.file(folder.id, "a.txt", "text of a")
        await client.upload(folder.id, "new.txt", b"text")
        attached = await agent.attach(folder.id, open_files=True)
        shown = await agent.shown()
        assert list(shown) == ["reports/a.txt", "reports/b.txt"]
        assert shown["reports/b.txt"].endswith("1: text of b")
        assert attached.directories_revision == await agent.revision()

    async def test_an_attachment_opens_no_more_than_the_limit(self, agent: AgentFiles, client: Files) -> None:
        first, second = await client.folder("first"), await client.folder("second")
        await agent.limit(3)
        for folder, names in ((first, "ab"), (second, "dcfe")):
            for name in names:
                await agent.file(folder.id, f"{name}.txt")
        await agent.attach(first.id, open_files=True)
        assert list(await agent.shown()) == ["first/a.txt", "first/b.txt"]
        await agent.attach(second.id, open_files=True)
        assert list(await agent.shown()) == ["second/c.txt", "second/d.txt", "second/e.txt"]

    async def test_a_repeat_opens_no_file_again(self, agent: AgentFiles, folder: pb.Folder) -> None:
        await agent.file(folder.id, "a.txt")
        key = new_id("request")
        first = await agent.attach(folder.id, key, open_files=True)
        await agent.close("a.txt")
        assert await agent.attach(folder.id, key, open_files=True) == first
        revision = await agent.revision()
        again = await agent.attach(folder.id, open_files=True)
        assert (again.folder_count, again.directories_revision) == (1, revision)
        assert await agent.shown() == {}

    async def test_an_attached_folder_can_begin_to_open_files(self, agent: AgentFiles, folder: pb.Folder) -> None:
        for name in ("a.txt", "b.txt"):
            await agent.file(folder.id, name)
        await agent.attach(folder.id)
        await agent.open("a.txt")
        await agent.close("a.txt")
        assert await agent.shown() == {}
        await agent.attach(folder.id, open_files=True)
        assert list(await agent.shown()) == ["reports/b.txt"]

    async def test_a_detached_folder_closes_its_files(self, agent: AgentFiles, folder: pb.Folder) -> None:
        await agent.file(folder.id, "a.txt")
        await agent.attach(folder.id, open_files=True)
        await agent.detach(folder.id)
        assert await agent.files() == []
        await agent.attach(folder.id)
        assert await agent.shown() == {}

    async def test_a_refused_attachment_opens_nothing(self, agent: AgentFiles, folder: pb.Folder) -> None:
        await agent.file(folder.id, "a.txt")
        assert await reason(agent.attach(new_id("source"), open_files=True)) == "NOT_FOUND"
        assert await reason(agent.attach("reports", open_files=True)) == "INVALID_ARGUMENT"
        await agent.stub.EraseAgent(rpc.EraseAgentRequest(agent_id=agent.id))
        assert await reason(agent.attach(folder.id, open_files=True)) == "ERASED"
        assert (await agent.directories()).directories.open_files == 0
