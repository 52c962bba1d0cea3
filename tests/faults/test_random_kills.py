"""kill -9 at random moments while agents write to each other, groups run, and partners read along.

Afterwards, what recall holds is counted: every message once, every turn of a member once, and each message of an agent
with a partner in one transcript.
"""

from __future__ import annotations

import ast
import asyncio
import random
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeVar

import pytest
import pytest_asyncio
from mnemesh.agents.v1 import runs_pb2
from mnemesh.types.v1 import message_pb2
from mnemesh_client import Agent, Mnemesh, text_of
from mnemesh_client.group import Group
from mnemesh_kit.errors import DeadlineExceeded, Unavailable
from mnemesh_kit.ids import new_id
from mnemesh_testkit.databases.postgres import PostgresServer
from mnemesh_testkit.fakes.openai import FakeOpenAI
from mnemesh_testkit.fakes.script import Call, Reply
from mnemesh_testkit.mesh.fork_server import ForkServer
from mnemesh_testkit.mesh.processes import ProcessMesh
from mnemesh_testkit.mesh.turns import assert_whole, texts, window_of
from mnemesh_testkit.timeouts import scaled

T = TypeVar("T")

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(scaled(600))]

MODEL = "openai/fake-model"
LIMIT_SECONDS = scaled(300)
ASK = "send_message_to_agent_and_wait_for_reply"
SEND = "send_message_to_agent_async"
TO_GROUP = "send_message_to_all_agents_in_group"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def mesh(
    tmp_path_factory: pytest.TempPathFactory, provider: FakeOpenAI, fork_server: ForkServer
) -> AsyncIterator[ProcessMesh]:
    """A mesh whose runs may be resumed any number of times: kills come faster than a run makes progress."""
    async with ProcessMesh(
        tmp_path_factory.mktemp("mesh"),
        openai_base_url=provider.base_url,
        environment={"MNEMESH_TAKEOVERS_WITHOUT_PROGRESS": "1000"},
        fork_server=fork_server,
    ) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replicas(
    tmp_path_factory: pytest.TempPathFactory,
    provider: FakeOpenAI,
    postgres_server: PostgresServer,
    fork_server: ForkServer,
) -> AsyncIterator[ProcessMesh]:
    """A mesh with two orchestrators on one database."""
    name = await postgres_server.create_database()
    async with ProcessMesh(
        tmp_path_factory.mktemp("replicas"),
        openai_base_url=provider.base_url,
        environment={
            "MNEMESH_TAKEOVERS_WITHOUT_PROGRESS": "1000",
            "MNEMESH_ORCHESTRATOR_DATABASE_URL": postgres_server.url(name),
        },
        orchestrators=2,
        fork_server=fork_server,
    ) as running:
        yield running
    await postgres_server.drop_database(name)


async def persist(call: Callable[[], Awaitable[T]]) -> T:
    """Returns the result of a call that is repeated while the service is away. The call must be repeatable."""
    while True:
        try:
            return await call()
        except (Unavailable, DeadlineExceeded):
            await asyncio.sleep(0.05)


async def finished(client: Mnemesh, start: Callable[[str], Awaitable[runs_pb2.Run]]) -> runs_pb2.Run:
    """Starts a run under one request id, and waits for its end."""
    request_id = new_id("request").partition("-")[2]
    run = await persist(lambda: start(request_id))
    return await persist(lambda: client.runs.wait(run.id))


async def everything(agent: Agent) -> list[message_pb2.Message]:
    """Returns every message of an agent in recall, system messages included."""
    return [message async for message in agent.messages()]


def words(messages: list[message_pb2.Message], role: message_pb2.Role.ValueType, pattern: str) -> Counter[str]:
    """Returns how often a pattern occurs in the messages of a role."""
    return Counter(
        found for message in messages if message.role == role for found in re.findall(pattern, text_of(message.content))
    )


def once(*expected: str) -> Counter[str]:
    return Counter(dict.fromkeys(expected, 1))


class Load(Protocol):
    """Something that runs while processes are killed."""

    async def prepare(self, client: Mnemesh) -> None:
        """Creates agents and groups."""
        ...

    def answer(self, name: str, body: dict[str, Any]) -> Reply | str | None:
        """Returns the answer of the agent with a name; None if it is another load's."""
        ...

    async def drive(self, client: Mnemesh, rounds: int) -> None:
        """Starts runs one after another, and waits for each."""
        ...

    async def verify(self, client: Mnemesh, rounds: int) -> None:
        """Counts what recall has."""
        ...


class Messages:
    """Two agents that ask the same third one, which tells a fourth one without waiting."""

    def __init__(self) -> None:
        self.mark = new_id("x")[-6:]
        self.senders = [f"Sender{letter}-{self.mark}" for letter in "AB"]
        self.agents: dict[str, Agent] = {}
        self.at: dict[str, int] = {}

    async def prepare(self, client: Mnemesh) -> None:
        """See Load."""
        for name in (*self.senders, f"Helper-{self.mark}", f"Listener-{self.mark}"):
            self.agents[name.partition("-")[0]] = await client.agents.create(
                name, model=MODEL, system=f"{name} is your name.", tools=[ASK, SEND], include_base_tools=False
            )

    def answer(self, name: str, body: dict[str, Any]) -> Reply | str | None:
        """See Load."""
        kind, _, mark = name.partition("-")
        if mark != self.mark:
            return None
        last, text = body["messages"][-1], texts(body)[-1]
        is_returned = last["role"] == "tool"
        if kind in ("SenderA", "SenderB"):
            if is_returned:
                return "I thank you."
            question = f"question {re.findall(r'Round ([0-9]+)', text)[-1]} of {kind}"
            return self._call(ASK, "Helper", question)
        if kind == "Helper":
            if is_returned:
                return f"answer to {re.findall(r'question [0-9]+ of [A-Za-z]+', str(body['messages']))[-1]}"
            return self._call(SEND, "Listener", f"report on {re.findall(r'question [0-9]+ of [A-Za-z]+', text)[-1]}")
        return "I hear."

    def _call(self, tool: str, other: str, message: str) -> Reply:
        return Reply(tool_calls=[Call(tool, {"message": message, "other_agent_id": self.agents[other].id})])

    async def drive(self, client: Mnemesh, rounds: int) -> None:
        """See Load."""

        async def rounds_of(kind: str) -> None:
            agent = self.agents[kind]
            for number in range(rounds):
                self.at[kind] = number
                run = await finished(
                    client, lambda key, n=number: client.runs.start(agent.id, f"Round {n}.", request_id=key)
                )
                assert run.status == runs_pb2.RUN_STATUS_COMPLETED, run
                assert len(run.child_run_ids) == 1, run

        await asyncio.gather(*(rounds_of(name.partition("-")[0]) for name in self.senders))

    async def verify(self, client: Mnemesh, rounds: int) -> None:
        """See Load."""
        questions = [f"question {number} of {kind}" for kind in ("SenderA", "SenderB") for number in range(rounds)]
        helper, listener = await everything(self.agents["Helper"]), await everything(self.agents["Listener"])
        question = r"question [0-9]+ of [A-Za-z]+"
        assert words(helper, message_pb2.ROLE_SYSTEM, question) == once(*questions)
        assert words(helper, message_pb2.ROLE_ASSISTANT, question) == once(*questions)
        assert words(listener, message_pb2.ROLE_SYSTEM, question) == once(*questions)
        for kind in ("SenderA", "SenderB"):
            returned = [item for message in await everything(self.agents[kind]) for item in message.tool_returns]
            replies = [ast.literal_eval(text_of(item.content))["response"] for item in returned]
            assert replies == [[f"answer to question {number} of {kind}"] for number in range(rounds)]
        for agent in self.agents.values():
            assert_whole(message for message in await window_of(client, agent))


class MutualQuestions:
    """Two agents that ask each other at the same time: one of them gets an error, or both are answered in turn."""

    def __init__(self) -> None:
        self.mark = new_id("x")[-6:]
        self.agents: dict[str, Agent] = {}
        self.at: dict[str, int] = {}

    async def prepare(self, client: Mnemesh) -> None:
        """See Load."""
        for kind in ("Xena", "Yann"):
            name = f"{kind}-{self.mark}"
            self.agents[kind] = await client.agents.create(
                name, model=MODEL, system=f"{name} is your name.", tools=[ASK], include_base_tools=False
            )

    def answer(self, name: str, body: dict[str, Any]) -> Reply | str | None:
        """See Load."""
        kind, _, mark = name.partition("-")
        if mark != self.mark:
            return None
        if body["messages"][-1]["role"] == "tool":
            return "Over."
        if query := re.findall(r"query [0-9]+ of [A-Za-z]+", texts(body)[-1]):
            return f"reply to {query[-1]}"
        other = self.agents["Yann" if kind == "Xena" else "Xena"]
        arguments = {"message": f"query {last_round(body)} of {kind}", "other_agent_id": other.id}
        return Reply(tool_calls=[Call(ASK, arguments)])

    async def drive(self, client: Mnemesh, rounds: int) -> None:
        """See Load."""
        for number in range(rounds):
            self.at[""] = number
            ended = await asyncio.gather(
                *(
                    finished(
                        client, lambda key, a=agent, n=number: client.runs.start(a.id, f"Round {n}.", request_id=key)
                    )
                    for agent in self.agents.values()
                )
            )
            assert all(run.status == runs_pb2.RUN_STATUS_COMPLETED for run in ended), ended

    async def verify(self, client: Mnemesh, rounds: int) -> None:
        """See Load."""
        for kind, other in (("Xena", "Yann"), ("Yann", "Xena")):
            asked = await everything(self.agents[other])
            answered = words(asked, message_pb2.ROLE_ASSISTANT, rf"reply to (query [0-9]+ of {kind})")
            received = words(asked, message_pb2.ROLE_SYSTEM, rf"query [0-9]+ of {kind}")
            assert set(received.values()) <= {1}
            returned = [item for message in await everything(self.agents[kind]) for item in message.tool_returns]
            assert len(returned) == rounds
            replies = [ast.literal_eval(text_of(item.content)) for item in returned]
            replied = [reply["response"][0].removeprefix("reply to ") for reply in replies if "response" in reply]
            assert once(*replied) == answered
            errors = {reply["type"] for reply in replies if "error" in reply}
            assert errors <= {"MESSAGE_CYCLE", "CANCELLED"}, replies
            assert_whole(await window_of(client, self.agents[kind]))


class Members:
    """A group whose agents say, once per round, that they are there. Subclasses choose the manager."""

    manager: Mapping[str, Any] = {}
    manager_name = ""

    def __init__(self) -> None:
        self.mark = new_id("x")[-6:]
        self.agents: dict[str, Agent] = {}
        self.at: dict[str, int] = {}
        self.group: Group | None = None

    async def prepare(self, client: Mnemesh) -> None:
        """See Load."""
        for kind in ("Ann", "Ben", "Cleo", *([self.manager_name] if self.manager_name else [])):
            self.agents[kind] = await client.agents.create(
                f"{kind}-{self.mark}", model=MODEL, system=f"{kind}-{self.mark} is your name.", include_base_tools=False
            )
        manager = {"manager_agent_id": self.agents[self.manager_name].id} if self.manager_name else {}
        members = [self.agents[kind].id for kind in ("Ann", "Ben", "Cleo")]
        self.group = await client.groups.create(members, **self.manager, **manager)

    def answer(self, name: str, body: dict[str, Any]) -> Reply | str | None:
        """See Load."""
        kind, _, mark = name.partition("-")
        if mark != self.mark:
            return None
        if kind == self.manager_name:
            return self.manage(body)
        return f"{kind} is here in round {last_round(body)}."

    def manage(self, body: dict[str, Any]) -> Reply | str:
        """Returns the answer of the manager."""
        raise NotImplementedError

    async def drive(self, client: Mnemesh, rounds: int) -> None:
        """See Load."""
        assert self.group is not None
        for number in range(rounds):
            self.at[""] = number
            run = await finished(
                client,
                lambda key, n=number: client.runs.start("", f"Round {n}.", group_id=self.group.id, request_id=key),
            )
            assert run.status == runs_pb2.RUN_STATUS_COMPLETED, run
            turns = Counter(child.agent_id for child in await persist(lambda r=run: listed(client, r.id)))
            assert turns == self.turns(), turns
            await self.verify_events(client, run)

    def turns(self) -> Counter[str]:
        """Returns the turns of each agent in a round."""
        return Counter(self.agents[kind].id for kind in ("Ann", "Ben", "Cleo"))

    async def verify_events(self, client: Mnemesh, run: runs_pb2.Run) -> None:
        """Checks the events of a group run: each turn begins and ends once, without gaps in the numbers."""
        events = [event async for event in client.runs.stream(run.id)]
        durable = [event.sequence for event in events if event.HasField("sequence")]
        assert durable == list(range(1, len(durable) + 1))
        for field in ("member_turn_started", "member_turn_ended"):
            numbers = [getattr(event, field).number for event in events if event.HasField(field)]
            assert numbers == list(range(1, self.turns().total() + 1)), (field, numbers)

    async def verify(self, client: Mnemesh, rounds: int) -> None:
        """See Load."""
        for place, kind in enumerate(("Ann", "Ben", "Cleo")):
            messages = await everything(self.agents[kind])
            numbers = [str(number) for number in range(rounds)]
            assert words(messages, message_pb2.ROLE_ASSISTANT, r"is here in round ([0-9]+)") == once(*numbers)
            self.verify_inputs(messages, place, numbers)
            assert_whole(await window_of(client, self.agents[kind]))

    def verify_inputs(self, messages: list[message_pb2.Message], place: int, numbers: list[str]) -> None:
        """Checks what a member received."""
        assert words(messages, message_pb2.ROLE_USER, r"Round ([0-9]+)") == once(*numbers)
        before = [f"{kind} is here in round {number}" for kind in ("Ann", "Ben", "Cleo")[:place] for number in numbers]
        assert words(messages, message_pb2.ROLE_SYSTEM, r"[A-Z][a-z]+ is here in round [0-9]+") == once(*before)


class RoundRobin(Members):
    """The members speak one after another."""


class Dynamic(Members):
    """The manager lets the members speak in their order, and ends the round."""

    manager: Mapping[str, Any] = {"manager_type": "dynamic", "max_turns": 5}
    manager_name = "Dora"

    def manage(self, body: dict[str, Any]) -> Reply | str:
        """See Members."""
        said = re.findall(r"([A-Z][a-z]+) is here in round", texts(body)[-1])
        following = {"": "Ann", "Ann": "Ben", "Ben": "Cleo"}.get(said[-1] if said else "")
        return "DONE!" if following is None else f"{following}-{self.mark}"

    def turns(self) -> Counter[str]:
        """See Members."""
        return super().turns() + Counter({self.agents["Dora"].id: 4})


class Supervisor(Members):
    """The manager asks all members at once, and answers."""

    manager: Mapping[str, Any] = {"manager_type": "supervisor"}
    manager_name = "Sue"

    def manage(self, body: dict[str, Any]) -> Reply | str:
        """See Members."""
        if body["messages"][-1]["role"] == "tool":
            return f"All are there in round {last_round(body)}."
        return Reply(tool_calls=[Call(TO_GROUP, {"message": f"Round {last_round(body)}: who is there?"})])

    def turns(self) -> Counter[str]:
        """See Members."""
        return Counter({self.agents["Sue"].id: 1})

    def verify_inputs(self, messages: list[message_pb2.Message], place: int, numbers: list[str]) -> None:
        """See Members."""
        assert words(messages, message_pb2.ROLE_SYSTEM, r"Round ([0-9]+): who is there") == once(*numbers)

    async def verify(self, client: Mnemesh, rounds: int) -> None:
        """See Members."""
        await super().verify(client, rounds)
        numbers = [str(number) for number in range(rounds)]
        messages = await everything(self.agents["Sue"])
        assert words(messages, message_pb2.ROLE_ASSISTANT, r"All are there in round ([0-9]+)") == once(*numbers)
        returned = [item for message in messages for item in message.tool_returns]
        for number, item in enumerate(returned):
            replies = [reply["response"] for reply in ast.literal_eval(text_of(item.content))]
            assert replies == [[f"{kind} is here in round {number}."] for kind in ("Ann", "Ben", "Cleo")]
        assert len(returned) == rounds


class Partners:
    """An agent with two partners, which write down the facts that they read."""

    def __init__(self) -> None:
        self.mark = new_id("x")[-6:]
        self.agents: dict[str, Agent] = {}
        self.at: dict[str, int] = {}
        self.group: Group | None = None

    async def prepare(self, client: Mnemesh) -> None:
        """See Load."""
        for kind in ("Front", "Pat", "Pam"):
            self.agents[kind] = await client.agents.create(
                f"{kind}-{self.mark}",
                model=MODEL,
                type="letta_v1" if kind == "Front" else "sleeptime_agent",
                system=f"{kind}-{self.mark} is your name.",
                blocks={f"notes_of_{kind}": "Facts:"},
            )
        partners = [self.agents[kind].id for kind in ("Pat", "Pam")]
        self.group = await client.groups.create(
            partners,
            manager_type="sleeptime",
            manager_agent_id=self.agents["Front"].id,
            sleeptime_agent_frequency=3,
        )

    def answer(self, name: str, body: dict[str, Any]) -> Reply | str | None:
        """See Load."""
        kind, _, mark = name.partition("-")
        if mark != self.mark:
            return None
        if kind == "Front":
            return f"I note it, {last_round(body)}."
        if body["messages"][-1]["role"] == "tool":
            return "All is written down."
        facts = " ".join(re.findall(r"Round ([0-9]+)", texts(body)[-1]))
        return Reply(tool_calls=[Call("memory_insert", {"label": f"notes_of_{kind}", "new_str": facts})])

    async def drive(self, client: Mnemesh, rounds: int) -> None:
        """See Load."""
        agent = self.agents["Front"]
        for number in range(rounds):
            self.at[""] = number
            run = await finished(
                client, lambda key, n=number: client.runs.start(agent.id, f"Round {n}.", request_id=key)
            )
            assert run.status == runs_pb2.RUN_STATUS_COMPLETED, run
            assert len(run.child_run_ids) == (2 if number % 3 == 2 else 0), run
        request_id = new_id("request").partition("-")[2]
        await persist(lambda: client.sleeptime.start(agent_id=agent.id, request_id=request_id))

    async def verify(self, client: Mnemesh, rounds: int) -> None:
        """See Load."""
        numbers = [str(number) for number in range(rounds)]
        front = await everything(self.agents["Front"])
        assert words(front, message_pb2.ROLE_USER, r"Round ([0-9]+)") == once(*numbers)
        assert words(front, message_pb2.ROLE_ASSISTANT, r"I note it, ([0-9]+)") == once(*numbers)
        for kind in ("Pat", "Pam"):
            messages = await everything(self.agents[kind])
            assert words(messages, message_pb2.ROLE_USER, r"Round ([0-9]+)") == once(*numbers)
            assert words(messages, message_pb2.ROLE_USER, r"I note it, ([0-9]+)") == once(*numbers)
            blocks = {block.label: block.value for block in (await self.agents[kind].memory()).blocks}
            assert blocks[f"notes_of_{kind}"].removeprefix("Facts:").split() == numbers
            assert_whole(await window_of(client, self.agents[kind]))


def last_round(body: dict[str, Any]) -> str:
    """Returns the number of the last round that a request names."""
    found: list[str] = re.findall(r"Round ([0-9]+)", "\n".join(texts(body)))
    return found[-1]


async def listed(client: Mnemesh, run_id: str) -> list[runs_pb2.Run]:
    return [run async for run in client.runs.children(run_id)]


LOADS: tuple[Callable[[], Load], ...] = (Messages, MutualQuestions, RoundRobin, Dynamic, Supervisor, Partners)


@asynccontextmanager
async def killing(
    mesh: ProcessMesh, chance: random.Random, services: Sequence[str], kills: Counter[str]
) -> AsyncIterator[None]:
    """Kills and restarts services at random moments, and counts how often."""
    stopping = asyncio.Event()

    async def kill() -> None:
        while not stopping.is_set():
            await asyncio.sleep(chance.uniform(0.1, 1.5))
            service = chance.choice(services)
            await mesh.kill(service)
            kills[service] += 1
            await asyncio.sleep(chance.uniform(0, 0.2))
            await mesh.start(service)

    killer = asyncio.create_task(kill())
    try:
        yield
    finally:
        stopping.set()
        await killer


async def idle(client: Mnemesh) -> None:
    """Waits until no run is active."""
    while [run async for run in client.runs.list(statuses=["created", "running"])]:
        await asyncio.sleep(0.1)


@pytest.mark.parametrize(
    ("seed", "rounds"), [(1, 2), *(pytest.param(seed, 15, marks=pytest.mark.full) for seed in range(2, 5))]
)
async def test_everything_happens_once(mesh: ProcessMesh, provider: FakeOpenAI, seed: int, rounds: int) -> None:
    await run_and_count(mesh, provider, seed, rounds, ("orchestrator", "orchestrator", "recall"))


@pytest.mark.full
@pytest.mark.parametrize("seed", [5, 6])
async def test_everything_happens_once_in_replicas(replicas: ProcessMesh, provider: FakeOpenAI, seed: int) -> None:
    await run_and_count(replicas, provider, seed, 8, ("orchestrator", "orchestrator-2", "recall"))


async def run_and_count(
    mesh: ProcessMesh, provider: FakeOpenAI, seed: int, rounds: int, services: Sequence[str]
) -> None:
    """Runs every load while services are killed, and counts what happened."""
    loads = [load() for load in LOADS]
    for load in loads:
        await load.prepare(mesh.client)

    def answer(body: dict[str, Any]) -> Reply | str:
        name = texts(body)[0].split()[0]
        answers = [answer for load in loads if (answer := load.answer(name, body)) is not None]
        assert len(answers) == 1, f"{name} belongs to {len(answers)} loads"
        return answers[0]

    provider.script = answer
    kills: Counter[str] = Counter()
    try:
        async with asyncio.timeout(LIMIT_SECONDS):
            async with killing(mesh, random.Random(seed), services, kills):
                await asyncio.gather(*(load.drive(mesh.client, rounds) for load in loads))
            await idle(mesh.client)
    except TimeoutError:
        unfinished = [run async for run in mesh.client.runs.list(statuses=["created", "running"])]
        at = {type(load).__name__: getattr(load, "at", None) for load in loads}
        pytest.fail(f"after {dict(kills)} kills, in the rounds {at}, these runs have not ended: {unfinished}")
    assert sum(kills.values()) > 0
    for load in loads:
        await load.verify(mesh.client, rounds)
