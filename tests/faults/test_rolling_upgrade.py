"""Another version replaces the processes of a mesh one after the other, on one PostgreSQL, while agents work.

The next version has one more revision of each schema. It is installed beside this one.
"""

import asyncio
import itertools
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio
from mnemesh.types.v1 import message_pb2
from mnemesh_client import Agent, Mnemesh, text_of
from mnemesh_testkit.databases.postgres import PostgresServer
from mnemesh_testkit.fakes.openai import FakeOpenAI
from mnemesh_testkit.fakes.server import Call, Reply
from mnemesh_testkit.mesh.fork_server import ForkServer
from mnemesh_testkit.mesh.processes import ProcessMesh
from mnemesh_testkit.timeouts import scaled

from .loads.contract import last_round

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.full, pytest.mark.timeout(scaled(300))]
MODEL: Final = "openai/fake-model"
ROOT: Final = Path(__file__).resolve().parents[2]
STORES: Final = ("blocks", "recall", "archival", "tools", "files", "orchestrator")
REPLICATED: Final = ("blocks", "tools", "orchestrator", "gateway")
"""The services of which two processes run: those that have no embedded index and no files of their own."""
PAUSE: Final = 0.2
"""Seconds between an answer and the next message: processes also start while the agents work."""
REVISION: Final = '''
"""The next version's schema: one more table."""

import sqlalchemy as sa
from alembic import op

revision = "0101"
down_revision = "0100"


def upgrade() -> None:
    op.create_table("added_by_the_next_version", sa.Column("id", sa.Text, primary_key=True))
'''


@pytest.fixture(scope="module")
def next_version(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    """Forks the processes of the next version."""
    directory = tmp_path_factory.mktemp("next")
    for service in STORES:
        package = f"mnemesh_{service}"
        shutil.copytree(ROOT / "services" / service / "src" / package, directory / package)
        (directory / package / "store" / "migrations" / "versions" / "0101_next.py").write_text(REVISION)
    with ForkServer(directory / "log", directory) as server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def mesh(
    tmp_path_factory: pytest.TempPathFactory,
    provider: FakeOpenAI,
    postgres_server: PostgresServer,
    fork_server: ForkServer,
    next_version: ForkServer,  # ends after the processes that it has forked
) -> AsyncIterator[ProcessMesh]:
    """Two replicas of the services that can have them, and one process each of the others."""
    names = {service: await postgres_server.create_database() for service in STORES}
    async with ProcessMesh(
        tmp_path_factory.mktemp("rolling"),
        openai_base_url=provider.base_url,
        environment={
            f"MNEMESH_{service.upper()}_DATABASE_URL": postgres_server.url(name) for service, name in names.items()
        },
        replicas=dict.fromkeys(REPLICATED, 2),
        gateway=True,
        fork_server=fork_server,
    ) as running:
        yield running
    for name in names.values():
        await postgres_server.drop_database(name)


class Load:
    """Agents that note each round in their core memory and answer, until they are told to stop."""

    def __init__(self, client: Mnemesh) -> None:
        self.client = client
        self.agents: list[Agent] = []
        self.rounds: Counter[str] = Counter()
        self._stopping = asyncio.Event()

    async def prepare(self) -> None:
        """Creates the agents."""
        for number in range(2):
            agent = await self.client.agents.create(f"agent{number}", model=MODEL, blocks={"human": "Notes."})
            self.agents.append(agent)

    def answer(self, body: dict[str, Any]) -> Reply | str:
        """Returns the answer of the model. A note about a service that is away may follow the return of the tool."""
        rounds = [index for index, message in enumerate(body["messages"]) if "Round " in str(message.get("content"))]
        if any(message["role"] == "tool" for message in body["messages"][rounds[-1] :]):
            return "Noted."
        arguments = {"label": "human", "new_str": f"{last_round(body)}!", "insert_line": -1}
        return Reply(tool_calls=[Call("memory_insert", arguments)])

    async def drive(self) -> None:
        """Sends messages, each when the last one is answered. An error of the client fails the test."""

        async def send(agent: Agent) -> None:
            for number in itertools.count(1):
                assert await agent.ask(f"Round {number}!") == "Noted."
                self.rounds[agent.id] = number
                if self._stopping.is_set():
                    return
                await asyncio.sleep(PAUSE)

        await asyncio.gather(*map(send, self.agents))

    def stop(self) -> None:
        self._stopping.set()

    async def progress(self) -> None:
        """Waits until every agent has answered once more."""
        before = dict(self.rounds)
        while any(self.rounds[agent.id] <= before.get(agent.id, 0) for agent in self.agents):
            await asyncio.sleep(0.02)

    async def verify(self) -> None:
        """Every round is in recall and in core memory once, and was answered once."""
        for agent in self.agents:
            expected = [f"{number}!" for number in range(1, self.rounds[agent.id] + 1)]
            messages = [message async for message in agent.messages()]
            said = [text_of(m.content) for m in messages if m.role == message_pb2.ROLE_USER]
            asked = [text.rpartition("Round ")[2] for text in said if "Round " in text]
            answers = [m for m in messages if m.role == message_pb2.ROLE_ASSISTANT and text_of(m.content) == "Noted."]
            (block,) = (await agent.memory()).blocks
            assert sorted(asked) == sorted(expected)
            assert len(answers) == len(expected)
            assert block.value.split()[1:] == expected


@pytest.mark.parametrize("how", ["SIGTERM", "kill"])
async def test_each_process_is_replaced_under_load(
    mesh: ProcessMesh, provider: FakeOpenAI, next_version: ForkServer, how: str
) -> None:
    """The first pass upgrades the mesh, the second replaces the processes of the new version by others."""
    replicas = f"ipv4:{mesh.addresses['orchestrator']},{mesh.addresses['orchestrator-2']}"
    async with Mnemesh(replicas, blocks=mesh.addresses["blocks"], recall=mesh.addresses["recall"]) as client:
        load = Load(client)
        provider.script = load.answer
        await load.prepare()
        driving = asyncio.create_task(load.drive())
        try:
            for name in mesh.names:
                await mesh.stop(name) if how == "SIGTERM" else await mesh.kill(name)
                mesh.change(name, next_version)
                await mesh.start(name)
                progress = asyncio.create_task(load.progress())
                await asyncio.wait({driving, progress}, return_when=asyncio.FIRST_COMPLETED)
                progress.cancel()
                assert not driving.done(), driving.exception()
        finally:
            load.stop()
        await driving
        await load.verify()


async def test_version_of_an_older_schema_refuses_to_start(mesh: ProcessMesh, next_version: ForkServer) -> None:
    for name in STORES:
        await mesh.stop(name)
        mesh.change(name)
        with pytest.raises(RuntimeError, match="0101"):
            await mesh.start(name)
        mesh.change(name, next_version)
        await mesh.start(name)
