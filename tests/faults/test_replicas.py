"""Orchestrators as processes on one PostgreSQL: the runs of a lost replica are completed in order and once."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio
from mnemesh.types.v1 import message_pb2
from mnemesh_client import Agent, Mnemesh
from mnemesh_kit.ids import new_id
from mnemesh_testkit.databases.postgres import PostgresServer
from mnemesh_testkit.fakes.openai import FakeOpenAI
from mnemesh_testkit.fakes.server import Call, Reply
from mnemesh_testkit.mesh.fork_server import ForkServer
from mnemesh_testkit.mesh.processes import ProcessMesh
from mnemesh_testkit.mesh.turns import assert_whole, collect, texts, window_of
from mnemesh_testkit.timeouts import scaled

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(scaled(300))]

MODEL = "openai/fake-model"
LIMIT_SECONDS = scaled(90)
"""A lease of a process that is gone lapses after 30 s."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def mesh(
    tmp_path_factory: pytest.TempPathFactory,
    provider: FakeOpenAI,
    postgres_server: PostgresServer,
    fork_server: ForkServer,
) -> AsyncIterator[ProcessMesh]:
    """Three orchestrators on one database, and one each of the other services."""
    name = await postgres_server.create_database()
    async with ProcessMesh(
        tmp_path_factory.mktemp("replicas"),
        openai_base_url=provider.base_url,
        proxied=("blocks", "recall", "archival"),
        environment={"MNEMESH_ORCHESTRATOR_DATABASE_URL": postgres_server.url(name)},
        replicas={"orchestrator": 3},
        fork_server=fork_server,
    ) as running:
        yield running
    await postgres_server.drop_database(name)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def other(mesh: ProcessMesh) -> AsyncIterator[Mnemesh]:
    """A client of the second orchestrator."""
    async with Mnemesh(mesh.addresses["orchestrator-2"]) as client:
        yield client


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def third(mesh: ProcessMesh) -> AsyncIterator[Mnemesh]:
    """A client of the third."""
    async with Mnemesh(mesh.addresses["orchestrator-3"]) as client:
        yield client


async def create(mesh: ProcessMesh) -> Agent:
    return await mesh.client.agents.create(model=MODEL, blocks={"human": "A human."})


def five_tools(facts: list[str]) -> list[Reply | str]:
    """A turn of four steps with five tool calls."""
    return [
        Reply(tool_calls=[Call("archival_memory_insert", {"content": facts[0]})]),
        Reply(
            tool_calls=[
                Call("archival_memory_insert", {"content": facts[1]}),
                Call("memory_insert", {"label": "human", "new_str": facts[2]}),
            ]
        ),
        Reply(
            tool_calls=[
                Call("memory_insert", {"label": "human", "new_str": facts[3]}),
                Call("conversation_search", {"query": "facts"}),
            ]
        ),
        "All is stored.",
    ]


class Lost:
    """A turn of five tools whose holder is killed during an effect, before it received the response."""

    def __init__(self, mesh: ProcessMesh, provider: FakeOpenAI, client: Mnemesh, agent: Agent) -> None:
        self.mesh, self.provider, self.client, self.agent = mesh, provider, client, agent
        self.facts = [f"Fact {new_id('x')[-8:]}." for _ in range(4)]
        self.input = f"Store {self.facts[0]}"

    async def begin(self) -> None:
        hold = self.mesh.proxies["blocks"].hold("EditBlock", executed=True)
        self.run = await self.client.runs.start(self.agent.id, self.input)
        async with asyncio.timeout(LIMIT_SECONDS):
            await hold.reached.wait()
        self.hold = hold

    def answer(self, body: dict[str, Any]) -> Reply | str | None:
        """Returns the model's response to a request of this turn or of the next one."""
        contents = texts(body)
        if not any(self.input in text for text in contents):
            return None
        if any("Bye." in text for text in contents):
            return "Goodbye."
        return five_tools(self.facts)[[message["role"] for message in body["messages"]].count("assistant")]

    async def is_completed_by(self, survivor: Mnemesh) -> None:
        async with asyncio.timeout(LIMIT_SECONDS):
            self.heard = await collect(survivor.runs.stream(self.run.id))
        self.before = await _window(self.mesh, self.agent)
        assert (self.heard.status, self.heard.said) == ("COMPLETED", "All is stored."), self.heard.error
        assert self.heard.sequences == list(range(1, len(self.heard.sequences) + 1))
        requests = sum(self.answer(request.body) is not None for request in self.provider.requests)
        assert requests == 4, "a journalled answer was asked for again"

    async def is_unharmed(self) -> None:
        """After a whole turn on the one that woke or came back: what it held in its hands has had its chance."""
        async with asyncio.timeout(LIMIT_SECONDS):
            bye = await self.client.runs.start(self.agent.id, "Bye.")
            assert (await collect(self.client.runs.stream(bye.id))).said == "Goodbye."
        window = await _window(self.mesh, self.agent)
        assert window[:-2] == self.before
        assert_whole(window)
        statuses = [item.status for row in window for item in row.tool_returns]
        assert statuses == [message_pb2.TOOL_RETURN_STATUS_SUCCESS] * 5
        assert [passage.text async for passage in self.agent.passages(order="asc")] == self.facts[:2]
        assert (await self.agent.memory()).blocks[0].value.splitlines() == ["A human.", *self.facts[2:]]
        assert (await collect(self.client.runs.stream(self.run.id))).sequences == self.heard.sequences


@pytest.mark.full
async def test_runs_of_killed_and_stalled_replicas_are_completed_by_another(
    mesh: ProcessMesh, other: Mnemesh, third: Mnemesh, provider: FakeOpenAI
) -> None:
    """One replica is killed and one stalls. The third completes the runs of both, and the two return."""
    killed = Lost(mesh, provider, mesh.client, await create(mesh))
    stalled = Lost(mesh, provider, other, await create(mesh))
    provider.script = lambda body: killed.answer(body) or stalled.answer(body) or "Nobody's."
    await killed.begin()
    await mesh.kill("orchestrator")
    killed.hold.release.set()
    try:
        await stalled.begin()
        os.kill(mesh.pid("orchestrator-2"), signal.SIGSTOP)
        try:
            stalled.hold.release.set()
            await asyncio.gather(killed.is_completed_by(third), stalled.is_completed_by(third))
        finally:
            os.kill(mesh.pid("orchestrator-2"), signal.SIGCONT)
    finally:
        await mesh.start("orchestrator")
    await asyncio.gather(killed.is_unharmed(), stalled.is_unharmed())


@pytest.fixture
def count(is_full: bool) -> int:
    """The number of concurrent messages."""
    return 50 if is_full else 20


async def test_senders_through_both_replicas_keep_the_order_of_acceptance(
    mesh: ProcessMesh, other: Mnemesh, provider: FakeOpenAI, count: int
) -> None:
    agent, gate = await create(mesh), asyncio.Event()
    provider.script = lambda body: Reply(text=f"Answer to {texts(body)[-1]}", gates=[gate])
    clients = (mesh.client, other)
    runs = [(await clients[number % 2].runs.start(agent.id, f"Message {number:02}")).id for number in range(count)]
    following = [
        asyncio.create_task(collect(clients[(number + 1) % 2].runs.stream(run))) for number, run in enumerate(runs)
    ]
    gate.set()
    async with asyncio.timeout(LIMIT_SECONDS):
        received = await asyncio.gather(*following)
    assert [item.status for item in received] == ["COMPLETED"] * count
    for number, item in enumerate(received):
        assert f"Message {number:02}" in item.said
        assert item.sequences == [1, 2, 3, 4]
    window = await _window(mesh, agent)
    contents = [row.content[0].text.text for row in window if row.role == message_pb2.ROLE_USER]
    assert contents == [f"Message {number:02}" for number in range(count)]
    assert_whole(window)


async def test_concurrent_messages_through_both_replicas_are_as_many_turns(
    mesh: ProcessMesh, other: Mnemesh, provider: FakeOpenAI, count: int
) -> None:
    agent = await create(mesh)
    provider.script = lambda body: Reply(text="Heard.")
    clients = (mesh.client, other)

    async def send(number: int) -> None:
        run = await clients[number % 2].runs.start(agent.id, f"Message {number:02}")
        result = await collect(clients[number % 2].runs.stream(run.id))
        assert (result.status, result.said, result.sequences) == ("COMPLETED", "Heard.", [1, 2, 3, 4])

    async with asyncio.timeout(LIMIT_SECONDS):
        await asyncio.gather(*(send(number) for number in range(count)))
    window = await _window(mesh, agent)
    roles = [row.role for row in window]
    assert roles == [message_pb2.ROLE_USER, message_pb2.ROLE_ASSISTANT] * count
    contents = [row.content[0].text.text for row in window if row.role == message_pb2.ROLE_USER]
    assert sorted(contents) == [f"Message {number:02}" for number in range(count)]


@pytest.mark.full
async def test_model_call_on_another_replica_is_cancelled_at_once(
    mesh: ProcessMesh, other: Mnemesh, provider: FakeOpenAI
) -> None:
    agent, gate, request = await create(mesh), asyncio.Event(), len(provider.requests)
    provider.script = lambda body: Reply(text="Never.", gates=[gate])
    run = await mesh.client.runs.start(agent.id, "Think.")
    await _until(lambda: len(provider.requests) > request)
    began = time.monotonic()
    await other.runs.cancel(run.id)
    took = time.monotonic() - began
    gate.set()
    result = await collect(other.runs.stream(run.id))
    assert (result.status, result.stop) == ("CANCELLED", "CANCELLED")
    assert took < 5, "about a second, on a machine that does nothing else"


async def _window(mesh: ProcessMesh, agent: Agent) -> list[message_pb2.Message]:
    return await window_of(mesh.client, agent)


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT_SECONDS):
        while not condition():
            await asyncio.sleep(0.005)
