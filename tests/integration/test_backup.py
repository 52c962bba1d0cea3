"""A mesh is backed up while it works, and continues on the other engine: nothing is lost, nothing is doubled."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from mnemesh_client import Agent, approve
from mnemesh_kit.services import STORE_NAMES
from mnemesh_testkit.databases.postgres import PostgresServer
from mnemesh_testkit.fakes.openai import FakeOpenAI
from mnemesh_testkit.fakes.server import Call, Reply
from mnemesh_testkit.mesh.command_line import run_command
from mnemesh_testkit.mesh.in_process import Mesh
from mnemesh_testkit.mesh.turns import Turn, assert_whole, collect, stored, turn
from mnemesh_testkit.timeouts import scaled

MODEL = "openai/fake-model"
KEEP = "archival_memory_insert"
TEXT = b"The heron stands in the reeds.\n" * 40
TOOL = '''
def open_door() -> str:
    """Opens the door."""
    import os
    return "opened with " + os.environ["CODE"][::-1]
'''


@dataclass
class Writer:
    """Sends one fact after another."""

    agent: Agent
    name: str
    done: dict[str, Turn] = field(default_factory=dict)
    sent: int = 0

    def fact(self, number: int) -> str:
        return f"{self.name} has the number {number}"

    def request_id(self, number: int) -> str:
        return f"{self.name}-{number}"

    async def send(self, number: int) -> Turn:
        content = f"Remember that {self.fact(number)}."
        return await turn(self.agent, content, request_id=self.request_id(number))

    async def work(self, stopping: asyncio.Event) -> None:
        while not stopping.is_set():
            self.sent += 1
            result = await self.send(self.sent)
            assert result.status == "COMPLETED", result.error
            self.done[self.request_id(self.sent)] = result


async def command(*arguments: str) -> None:
    """Runs the command line beside the mesh."""
    code, output, error = await asyncio.to_thread(run_command, *arguments)
    assert code == 0, f"{output}{error}"


@pytest_asyncio.fixture
async def urls(postgres_server: PostgresServer) -> AsyncIterator[dict[str, str]]:
    """The URLs of empty databases by service."""
    names = {service: await postgres_server.create_database() for service in STORE_NAMES}
    yield {service: postgres_server.url(name) for service, name in names.items()}
    for name in names.values():
        await postgres_server.drop_database(name)


@pytest.mark.timeout(scaled(300))
async def test_mesh_is_backed_up_under_load_and_continues_on_postgresql(
    tmp_path: Path, fake_openai: FakeOpenAI, urls: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, key_file, phrase = tmp_path / "kept", tmp_path / "key", tmp_path / "passphrase"
    phrase.write_text("correct horse")
    with_key = ("--with-key", "--passphrase-file", str(phrase))
    (tmp_path / "data").mkdir()
    async with Mesh(tmp_path / "data", openai_base_url=fake_openai.base_url) as mesh:
        client = mesh.client
        keeper = await client.agents.create(model=MODEL, blocks={"human": ""})
        await keeper.set_tool_approval(KEEP)
        fake_openai.script = [Reply(tool_calls=[Call(KEEP, {"content": "the gate code"})]), "Kept."]
        asked = await turn(keeper, "Keep it.")
        (call,) = (call for event in asked.events for call in event.message.approval_request.tool_calls)
        tool = await client.tools.create(TOOL, secrets={"CODE": "nepo"})
        opener = await client.agents.create(model=MODEL, tools=[tool.name])
        folder = await client.folders.create("birds")
        uploaded = await client.files.upload(folder.id, TEXT, name="heron.md")
        await client.files.wait(uploaded.file.id, timeout=scaled(60))
        writers = [Writer(await client.agents.create(blocks={"human": ""}), name) for name in ("Ada", "Bob")]
        await client.groups.create([writer.agent.id for writer in writers])
        stopping = asyncio.Event()
        working = [asyncio.create_task(writer.work(stopping)) for writer in writers]
        while not all(writer.done for writer in writers):
            await asyncio.sleep(0.01)
        acknowledged = {key: each for writer in writers for key, each in writer.done.items()}
        await command("backup", str(kept), *with_key, "--data-dir", str(tmp_path / "data"))
        await command("verify", "--data-dir", str(tmp_path / "data"))
        stopping.set()
        await asyncio.gather(*working)

    for service, url in urls.items():
        monkeypatch.setenv(f"MNEMESH_{service.upper()}_DATABASE_URL", url)
    monkeypatch.setenv("MNEMESH_SECRETS_KEY_FILE", str(key_file))
    target = tmp_path / "target"
    await command("restore", str(kept), *with_key, "--data-dir", str(target))
    await command("verify", str(kept), "--data-dir", str(target))
    await command("verify", str(kept), "--mesh", "--data-dir", str(target))
    # The id of the instance, with which the restored mesh continues at once what the first one had begun.
    shutil.copy(tmp_path / "data" / "orchestrator.owner", target / "orchestrator.owner")
    settings: dict[str, dict[str, Any]] = {service: {"database_url": url} for service, url in urls.items()}
    for service in ("orchestrator", "tools"):
        settings[service]["secrets_key_file"] = str(key_file)
    async with Mesh(target, openai_base_url=fake_openai.base_url, settings=settings) as mesh:
        client = mesh.client
        for writer in writers:
            writer.agent = await client.agents.find(writer.agent.id)
            await continues(writer, acknowledged)
        keeper = await client.agents.find(keeper.id)
        decided = await collect(keeper.answer([approve(call.id)]))
        assert (decided.status, decided.said) == ("COMPLETED", "Kept.")
        fake_openai.script = [Reply(tool_calls=[Call("open_door", {})]), "Open."]
        opened = await turn(await client.agents.find(opener.id), "Open it.")
        assert opened.returns[0].content[0].text.text == "opened with open"
        await client.files.download(uploaded.file.id, tmp_path / "downloaded")
        assert (tmp_path / "downloaded").read_bytes() == TEXT
        hits = await keeper.search_passages("gate code")
        assert [hit.passage.text for hit in hits] == ["the gate code"]

        stopping = asyncio.Event()
        working = [asyncio.create_task(writer.work(stopping)) for writer in writers]
        await command("backup", str(kept), "--keep", "1", "--data-dir", str(target))
        stopping.set()
        await asyncio.gather(*working)

    for service in urls:
        monkeypatch.delenv(f"MNEMESH_{service.upper()}_DATABASE_URL")
    back = str(tmp_path / "back")
    await command("restore", str(kept), "--data-dir", back)
    await command("verify", str(kept), "--data-dir", back)
    await command("verify", str(kept), "--mesh", "--data-dir", back)


async def continues(writer: Writer, acknowledged: dict[str, Turn]) -> None:
    """A client repeats what it sent. What was acknowledged before the backup is known; the rest happens once."""
    for number in range(1, writer.sent + 1):
        again = await writer.send(number)
        assert again.status == "COMPLETED", again.error
        before = acknowledged.get(writer.request_id(number))
        if before is not None:
            assert (again.run_id, again.said, again.sequences) == (before.run_id, before.said, before.sequences)
    assert_whole(await stored(writer.agent))
    facts = [writer.fact(number) for number in range(1, writer.sent + 1)]
    assert [passage.text.rstrip(".") async for passage in writer.agent.passages(order="asc")] == facts
