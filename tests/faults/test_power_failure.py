"""Power failures of the whole machine under load: no acknowledged write is lost, and the stores agree."""

import asyncio
import json
import os
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio
from mnemesh.types.v1 import message_pb2
from mnemesh_client import Agent, text_of
from mnemesh_client.tools import ToolsClient
from mnemesh_kit.errors import MnemeshError
from mnemesh_testkit.cuttable_disk import CuttableDisk
from mnemesh_testkit.fakes.openai import FakeOpenAI
from mnemesh_testkit.fakes.server import Call, Reply
from mnemesh_testkit.mesh.fork_server import ForkServer
from mnemesh_testkit.mesh.processes import ProcessMesh
from mnemesh_testkit.mesh.turns import Turn, assert_whole, stored, turn
from mnemesh_testkit.timeouts import scaled

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(scaled(600)),
    pytest.mark.full,
    pytest.mark.skipif(CuttableDisk.obstacle() is not None, reason=str(CuttableDisk.obstacle())),
]

WRITERS: Final = 6
CUTS: Final = 8
MODEL: Final = "openai/fake-model"
SOURCE: Final = '''
def tool_of_{writer}() -> int:
    """Returns the number of turns."""
    return {turns}
'''


def answer(body: dict[str, Any]) -> Reply | str:
    """Stores the fact of the last user message in a block and as a passage, then confirms it.

    The reply follows from the messages alone, so that a repeated request has the same reply.
    """
    inputs = [index for index, message in enumerate(body["messages"]) if message["role"] == "user"]
    fact = _fact_in(json.dumps(body["messages"][inputs[-1]]))
    if any(message["role"] == "tool" for message in body["messages"][inputs[-1] :]):
        return f"Stored: {fact}"
    insert = Call("archival_memory_insert", {"content": fact})
    return Reply(tool_calls=[insert, Call("memory_insert", {"label": "human", "new_str": fact})])


def _fact_in(text: str) -> str:
    start = text.index("Fact ")
    return text[start : text.index(".", start) + 1]


@dataclass
class Writer:
    """A client that tells its agent one fact after another, and repeats what was not acknowledged."""

    agent: Agent
    number: int
    turns: dict[str, Turn] = field(default_factory=dict)
    """The completed turns by request id."""
    stored_turns: int = 0
    """The number of turns that the stored tool names."""

    def fact(self, index: int) -> str:
        return f"Fact {self.number}-{index}."

    @property
    def facts(self) -> list[str]:
        return [self.fact(index) for index in range(len(self.turns))]

    async def store_tool(self, tools: ToolsClient) -> None:
        """Stores a tool that names the number of turns. It is repeated until it is acknowledged."""
        source = SOURCE.format(writer=self.number, turns=len(self.turns))
        while True:
            try:
                await tools.upsert(source)
            except MnemeshError:
                await asyncio.sleep(0.1)
            else:
                self.stored_turns = len(self.turns)
                return

    async def work(self, tools: ToolsClient, stopping: asyncio.Event) -> None:
        while not stopping.is_set():
            index = len(self.turns)
            request_id = f"request-{self.number}-{index}"
            completed = await turn(self.agent, self.fact(index), request_id=request_id)
            assert completed.status == "COMPLETED", completed.error
            assert completed.sequences == list(range(1, len(completed.sequences) + 1)), (
                "an event is missing or repeated"
            )
            self.turns[request_id] = completed
            await self.store_tool(tools)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def provider() -> AsyncIterator[FakeOpenAI]:
    async with FakeOpenAI() as fake:
        fake.script = answer
        yield fake


class Machine:
    """The mesh on a disk that loses its power."""

    def __init__(self, mesh: ProcessMesh, disk: CuttableDisk) -> None:
        self.mesh = mesh
        self.disk = disk

    async def fail(self) -> None:
        """All processes stop at the same time, unflushed data is lost, and the machine restarts."""
        for name in self.mesh.names:
            os.kill(self.mesh.pid(name), signal.SIGSTOP)
        self.disk.cut()
        await asyncio.gather(*(self.mesh.kill(name) for name in self.mesh.names))
        await asyncio.to_thread(self.disk.restore)
        await asyncio.gather(*(self.mesh.start(name) for name in self.mesh.names))


@pytest_asyncio.fixture(loop_scope="module")
async def machine(tmp_path: Path, provider: FakeOpenAI, fork_server: ForkServer) -> AsyncIterator[Machine]:
    with CuttableDisk(tmp_path / "disk.img", tmp_path / "data") as disk:
        async with ProcessMesh(
            tmp_path, openai_base_url=provider.base_url, fork_server=fork_server, one_process=True
        ) as mesh:
            yield Machine(mesh, disk)


async def test_every_acknowledged_turn_survives_in_every_store(machine: Machine) -> None:
    chance = random.Random(7)
    client = machine.mesh.client
    agents = [
        await client.agents.create(name=f"writer-{number}", model=MODEL, blocks={"human": "A human."})
        for number in range(WRITERS)
    ]
    writers = [Writer(agent, number) for number, agent in enumerate(agents)]
    stopping = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        for writer in writers:
            group.create_task(writer.work(client.tools, stopping))
        for _ in range(CUTS):
            await asyncio.sleep(scaled(chance.uniform(0.3, 2.0)))
            await machine.fail()
        stopping.set()
    for writer in writers:
        await _has_each_fact_once(writer)
        tool = await client.tools.get(f"tool_of_{writer.number}")
        assert f"return {writer.stored_turns}\n" in tool.source_code


async def _wait_for_turns(writers: list[Writer], number: int) -> None:
    """Waits until so many more turns are completed."""
    wanted = sum(len(writer.turns) for writer in writers) + number
    while sum(len(writer.turns) for writer in writers) < wanted:
        await asyncio.sleep(0.01)


async def _has_each_fact_once(writer: Writer) -> None:
    agent, facts = writer.agent, writer.facts
    assert [passage.text async for passage in agent.passages(order="asc")] == facts
    assert (await agent.memory()).blocks[0].value.splitlines() == ["A human.", *facts]
    messages = await stored(agent)
    assert_whole(messages)
    said = Counter((message.role, text_of(message.content)) for message in messages)
    for fact in facts:
        assert said[message_pb2.ROLE_USER, fact] == 1
        assert said[message_pb2.ROLE_ASSISTANT, f"Stored: {fact}"] == 1
    for request_id, completed in writer.turns.items():
        index = int(request_id.rpartition("-")[2])
        again = await turn(agent, writer.fact(index), request_id=request_id)
        assert (again.run_id, again.said) == (completed.run_id, completed.said)
        assert again.sequences == completed.sequences
    if facts:
        hits = await agent.search_passages(facts[-1])
        assert facts[-1] in [hit.passage.text for hit in hits]
