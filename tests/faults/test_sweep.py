"""kill -9 at every point of a turn, by the process itself: of the orchestrator, and of each room that it calls."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any, Final

import pytest
import pytest_asyncio
from mnemesh.recall.v1.messages_service_pb2 import ListMessagesRequest
from mnemesh.types.v1 import message_pb2
from mnemesh_client import Agent
from mnemesh_kit.errors import MnemeshError
from mnemesh_kit.services import SERVICE_NAMES
from mnemesh_testkit.failpoints.kill_orders import Deaths, Point
from mnemesh_testkit.fakes.openai import FakeOpenAI
from mnemesh_testkit.fakes.script import Call, Reply
from mnemesh_testkit.mesh.fork_server import ForkServer
from mnemesh_testkit.mesh.processes import ProcessMesh
from mnemesh_testkit.mesh.turns import assert_whole, turn, window_of

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]

PATIENCE: Final = 60.0

INPUT: Final = "Do it all."
OUTPUT: Final = "All is done."
V3, V2 = "letta_v1", "memgpt_v2"
SHARES: Final = {"orchestrator": 6, "blocks": 2, "recall": 2, "archival": 2, "tools": 1}
"""Into how many tests the points of a room are divided, for as many processes as there are to run them."""
SWEPT: Final = [
    (kind, room, share)
    # What blocks, archival and tools are asked is the same in both.
    for kind, rooms in ((V3, SHARES), (V2, ("orchestrator", "recall")))
    for room in rooms
    for share in range(SHARES[room])
]

SOURCES: Final = {
    "launch": '''
def launch(agent_state: "AgentState") -> str:
    """Launches something, once more each time."""
    notes = agent_state.memory.get_block("notes").value
    agent_state.memory.update_block_value("notes", notes + "launched\\n")
    return "launched"
''',
    "measure": '''
def measure() -> str:
    """Measures something, and changes nothing."""
    return "42"
''',
}
CALLS: Final[Sequence[Sequence[tuple[str, dict[str, str]]]]] = (
    (
        ("archival_memory_insert", {"content": "The key is under the mat."}),
        ("memory_insert", {"label": "human", "new_str": "Her name is Ada."}),
    ),
    (
        ("archival_memory_search", {"query": "key"}),
        ("conversation_search", {"query": "all"}),
        ("memory_replace", {"label": "human", "old_str": "A human.", "new_str": "A woman."}),
    ),
    (("launch", {}), ("measure", {})),
)
"""What the model calls, answer by answer, before it says that all is done."""
NAMES: Final = [name for answer in CALLS for name, _ in answer]

COMMIT: Final = "after the commit of SqlRunStore.write"
JOURNALLED: Final = (COMMIT, "after calling CommitStep")
AWAY: Final = "cannot be reached at the moment"
HEARD: Final = "when the model begins to answer"


def model(body: dict[str, Any]) -> Reply | str:
    """What the model answers, by how far the turn is: the same however often it is asked."""
    is_v2 = any(tool["function"]["name"] == "send_message" for tool in body["tools"])
    said = [json.dumps(message) if message["role"] == "user" else "" for message in body["messages"]]
    place, text = max((place, text) for text in (INPUT, "Farewell") for place, line in enumerate(said) if text in line)
    returned, done = sum(message["role"] == "tool" for message in body["messages"][place:]), 0
    while done < len(CALLS) and returned >= len(CALLS[done]):
        returned -= len(CALLS[done])
        done += 1
    thinking = {"thinking": "Go on."} if is_v2 else {}
    if text == INPUT and done < len(CALLS):
        heartbeat = {"request_heartbeat": True} if is_v2 else {}
        return Reply(tool_calls=[Call(name, {**arguments, **thinking, **heartbeat}) for name, arguments in CALLS[done]])
    answer = OUTPUT if text == INPUT else "Goodbye."
    return Reply(tool_calls=[Call("send_message", {"message": answer, **thinking})]) if is_v2 else answer


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a turn leaves behind, times and ids left out."""

    history: list[tuple[str, list[str], list[str]]]
    blocks: dict[str, str]
    passages: list[str]


@dataclass(frozen=True, slots=True)
class Undisturbed:
    """A turn in which nobody dies."""

    points: dict[str, list[Point]]
    requests: int
    outcome: Outcome


class Sweep:
    """One mesh, in which a process dies again and again."""

    def __init__(self, mesh: ProcessMesh, provider: FakeOpenAI, deaths: Deaths) -> None:
        self.mesh, self.provider, self.deaths = mesh, provider, deaths
        self._undisturbed: dict[str, Undisturbed] = {}

    async def agent(self, kind: str) -> Agent:
        blocks = {"human": "A human.", "notes": ""}
        return await self.mesh.client.agents.create(model="openai/fake-model", type=kind, blocks=blocks, tools=NAMES)

    async def undisturbed(self, kind: str) -> Undisturbed:
        """The points of a turn, and what comes of it."""
        known = self._undisturbed.get(kind)
        if known is None:
            agent = await self.agent(kind)
            asked = len(self.provider.requests)
            self.deaths.begin(*SERVICE_NAMES)
            heard = await turn(agent, INPUT, stream_tokens=True)
            points = {room: self.deaths.points(room) for room in SERVICE_NAMES}
            assert (heard.status, heard.said) == ("COMPLETED", OUTPUT), heard.error
            outcome = await self._outcome(agent)
            assert outcome.passages == ["The key is under the mat."]
            assert outcome.blocks == {"human": "A woman.\nHer name is Ada.", "notes": "launched\n"}
            known = Undisturbed(points, len(self.provider.requests) - asked, outcome)
            self._undisturbed[kind] = known
        return known

    async def survives(self, kind: str, point: Point) -> None:
        """A turn in which a process kills itself at the point, and what must hold of it."""
        whole, agent = await self.undisturbed(kind), await self.agent(kind)
        asked = len(self.provider.requests)
        self.deaths.begin(*SERVICE_NAMES)
        self.deaths.order(point)
        async with asyncio.timeout(PATIENCE):
            heard = await turn(agent, INPUT, stream_tokens=True)
        passed = self.deaths.met(point)
        assert (heard.status, heard.said) == ("COMPLETED", OUTPUT), heard.error
        assert heard.sequences == list(range(1, len(heard.sequences) + 1)), "the client missed or repeated an event"
        again = len(self.provider.requests) - asked - whole.requests
        assert again in asked_again(point, passed), f"the model was asked {again} times more than in a quiet turn"
        custom = custom_outcomes(point, passed, whole)
        outcome = await self._outcome(agent)
        assert outcome in [with_custom(whole.outcome, *pair, notes) for *pair, notes in custom], outcome
        self._ran_once(outcome)
        await self._goes_on(agent, point)

    async def _outcome(self, agent: Agent) -> Outcome:
        window = await window_of(self.mesh.client, agent)
        assert_whole(window)
        stub = self.mesh.client.messages.stub
        stored = await stub.ListMessages(ListMessagesRequest(agent_ids=[agent.id], include_err=True))
        assert [row.id for row in stored.messages if row.role != message_pb2.ROLE_SYSTEM] == [row.id for row in window]
        history = [
            (
                message_pb2.Role.Name(row.role).removeprefix("ROLE_"),
                [call.name for call in row.tool_calls],
                [told(item) for item in row.tool_returns],
            )
            for row in window
        ]
        blocks = {block.label: block.value for block in (await agent.memory()).blocks}
        return Outcome(history, blocks, [passage.text async for passage in agent.passages()])

    def _ran_once(self, outcome: Outcome) -> None:
        """No tool ran twice that does not say that it may."""
        runs = self.deaths.passed("tools").count("before Sandbox.run of launch")
        assert runs <= 1, f"launch ran {runs} times"
        assert runs == 1 or "launch: SUCCESS" not in outcome.history[-2][2]

    async def _goes_on(self, agent: Agent, point: Point) -> None:
        """The next turn works, and sees what the last one saw, byte for byte."""
        sent = [json.dumps(message) for message in self.provider.requests[-1].body["messages"]]
        # That a room is away is said in one request alone.
        before = [message for message in sent if AWAY not in message]
        assert before == sent or point.room in {"archival", "tools"}
        async with asyncio.timeout(PATIENCE):
            heard = await turn(agent, "Farewell.")
        assert heard.said == "Goodbye.", heard.error
        after = [json.dumps(message) for message in self.provider.requests[-1].body["messages"]]
        assert after[: len(before)] == before


def told(item: message_pb2.ToolReturn) -> str:
    status = message_pb2.ToolReturnStatus.Name(item.status).removeprefix("TOOL_RETURN_STATUS_")
    is_unknown = item.status != message_pb2.TOOL_RETURN_STATUS_SUCCESS and "unknown" in item.content[0].text.text
    return f"{item.name}: {'INTERRUPTED' if is_unknown else status}"


def asked_again(point: Point, passed: Sequence[str]) -> set[int]:
    """How often the model may be asked beyond the answers of the turn."""
    if point.room != "orchestrator" or HEARD not in passed:
        return {0}
    since = passed[len(passed) - passed[::-1].index(HEARD) :]
    if any(name in JOURNALLED for name in since):
        return {0}
    # Where the process dies as it tells of an event, it may be just about to store the next answer.
    return {0, 1} if point.name.endswith(" leaves") else {1}


def custom_outcomes(point: Point, passed: Sequence[str], whole: Undisturbed) -> list[tuple[str, str, str]]:
    """What may have come of `launch`, of `measure`, and of the block that `launch` writes."""
    good = ("SUCCESS", "SUCCESS", "launched\n")
    if point.room == "tools":
        absent = ("ERROR", "ERROR", "")  # the turn began while nobody answered, and went on without them
        return [[good, absent], [("INTERRUPTED", "SUCCESS", "")], [good]][passed.count("when ExecuteTool comes")]
    if point.room != "orchestrator":
        return [good]
    names = [known.name for known in whole.points["orchestrator"]]
    started = names[: names.index("before calling ExecuteTool")].count(COMMIT)
    unknown = [("INTERRUPTED", "SUCCESS", "launched\n"), ("INTERRUPTED", "SUCCESS", "")]
    if passed.count(COMMIT) == started:
        # Dying as it tells of an event, it may be just about to store what comes next.
        return [*unknown, good] if point.name.endswith(" leaves") else unknown
    is_close = passed.count(COMMIT) == started - 1 and point.name.endswith(" leaves")
    return [good, *unknown] if is_close else [good]


def with_custom(outcome: Outcome, launch: str, measure: str, notes: str) -> Outcome:
    """The outcome of a quiet turn, but for what came of the tools that users wrote."""
    told = [f"launch: {launch}", f"measure: {measure}"]
    history = [
        (role, calls, told if "launch: SUCCESS" in returns else returns) for role, calls, returns in outcome.history
    ]
    return replace(outcome, history=history, blocks={**outcome.blocks, "notes": notes})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sweep(
    tmp_path_factory: pytest.TempPathFactory, provider: FakeOpenAI, forks: ForkServer
) -> AsyncIterator[Sweep]:
    """A mesh whose processes are started again whenever they end."""
    directory = tmp_path_factory.mktemp("sweep")
    deaths = Deaths(directory / "points")
    provider.script = model
    async with (
        ProcessMesh(directory, openai_base_url=provider.base_url, forks=forks, deaths=deaths) as mesh,
        AsyncExitStack() as kept,
    ):
        for room in SERVICE_NAMES:
            await kept.enter_async_context(mesh.kept(room))
        for name, source in SOURCES.items():
            await mesh.client.tools.upsert(source, idempotent=name == "measure")
        yield Sweep(mesh, provider, deaths)


async def test_a_turn_has_its_points(sweep: Sweep) -> None:
    """What is swept: every write of the journal, every effect, every commit, in each room."""
    points = (await sweep.undisturbed(V3)).points
    names = {room: Counter(point.name for point in points[room]) for room in SERVICE_NAMES}
    entries = len(CALLS) + len(NAMES) + len(SOURCES)  # answers, results, and the starts of what users wrote
    for place in ("before the transaction of", "before the commit of", "after the commit of"):
        assert names["orchestrator"][f"{place} SqlRunStore.write"] == entries
        assert names["orchestrator"][f"{place} SqlRunStore.finish"] == 1
        assert names["blocks"][f"{place} SqlBlockStore.write_once"] == 3
        assert names["recall"][f"{place} SqlMessageStore.commit_step"] == len(CALLS) + 1
    for place in ("before calling", "after calling"):
        for method in ("EditBlock", "InsertPassages", "SearchPassages", "SearchMessages", "ExecuteTool", "CommitStep"):
            assert names["orchestrator"][f"{place} {method}"] >= 1
    assert names["orchestrator"][HEARD] == len(CALLS) + 1
    assert sum(times for name, times in names["archival"].items() if name.startswith("after EdgeIndex.write")) == 1
    assert names["tools"]["after Sandbox.run of launch"] == names["tools"]["after Sandbox.run of measure"] == 1


@pytest.mark.parametrize(("kind", "room", "share"), SWEPT)
async def test_a_turn_survives_a_death_at_every_point(sweep: Sweep, kind: str, room: str, share: int) -> None:
    failures = []
    for point in (await sweep.undisturbed(kind)).points[room][share :: SHARES[room]]:
        try:
            await sweep.survives(kind, point)
        except (AssertionError, TimeoutError, MnemeshError) as error:
            failures.append(f"{point}: {error}")
    assert not failures, "\n".join(failures)
