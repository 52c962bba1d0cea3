"""An agent's memory as files: every line by its schema, out and in again whole, whenever the writer is killed."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Callable
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema_rs
import pytest
import pytest_asyncio
from mnemesh.recall.v1 import episodes_pb2
from mnemesh.recall.v1 import messages_service_pb2 as rpc
from mnemesh.types.v1 import message_pb2 as pb
from mnemesh_client import Mnemesh
from mnemesh_client.episodes import memory_scope
from mnemesh_client.trace_files.convert import (
    episode_line,
    episode_record,
    fact_line,
    fact_record,
    trace_line,
    trace_record,
)
from mnemesh_client.trace_files.directory import ACTIVE, ARCHIVE, EPISODES, FACTS, TraceDirectory
from mnemesh_client.trace_files.mirror import Mirror
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.ids import derive_id, new_id
from mnemesh_kit.server import RunningServer
from mnemesh_recall.config import Config
from mnemesh_recall.wiring import assemble
from mnemesh_retrieval.registry import HASHING

if TYPE_CHECKING:
    from .conftest import SmallMesh

SCHEMAS = {ACTIVE: "raw_trace", ARCHIVE: "raw_trace", EPISODES: "episode", FACTS: "fact"}


class Killed(BaseException):
    """The writer is gone."""


@pytest_asyncio.fixture
async def recall(tmp_path: Path) -> AsyncIterator[str]:
    """The address of a recall service."""
    (tmp_path / "recall").mkdir()
    config = Config(port=0, data_dir=str(tmp_path / "recall"), embedder=HASHING, shutdown_grace_seconds=0)
    server = RunningServer()
    yield await server.start(await assemble(config), config)
    await server.stop()


def said(text: str, role: int = pb.ROLE_USER, **more: Any) -> pb.Message:
    content = [pb.ContentPart(text=pb.TextPart(text=text))] if text else []
    return pb.Message(id=new_id("message"), role=pb.Role.ValueType(role), content=content, **more)


class Life:
    """An agent with a window, that lives on as the test says."""

    def __init__(self, mnemesh: Mnemesh, agent_id: str) -> None:
        self.mnemesh, self.agent = mnemesh, agent_id
        self.conversation = derive_id("conv", agent_id)
        self.stub: Any = mnemesh.messages.stub

    async def begin(self) -> None:
        await self.stub.CreateContext(
            rpc.CreateContextRequest(
                agent_id=self.agent, conversation_id=self.conversation, messages=[said("prompt", pb.ROLE_SYSTEM)]
            )
        )

    async def turn(self, question: str) -> None:
        call = pb.ToolCall(id=new_id("call"), name="look", arguments='{"where": "there"}')
        answer = pb.ToolReturn(
            tool_call_id=call.id,
            name="look",
            status=pb.TOOL_RETURN_STATUS_SUCCESS,
            content=[pb.ContentPart(text=pb.TextPart(text='{"seen": ["a", 1.5]}'))],
        )
        rows = [
            said(question),
            said("", pb.ROLE_ASSISTANT, tool_calls=[call]),
            said("", pb.ROLE_TOOL, tool_returns=[answer]),
            said(f"of {question}\u2028this", pb.ROLE_ASSISTANT),
        ]
        await self.stub.AppendMessages(
            rpc.AppendMessagesRequest(agent_id=self.agent, conversation_id=self.conversation, messages=rows)
        )

    async def compact(self, keep: int) -> None:
        """Leaves the last `keep` messages in the window, and an episode and facts of the others."""
        window = await self.mnemesh.messages.window(self.conversation)
        ids = [message.id for message in window.messages]
        fact = episodes_pb2.Fact(text=f"They looked {len(ids)} times", tags=["looks"], confidence=0.5)
        await self.mnemesh.episodes.commit(
            memory_scope(self.agent),
            "They looked around.",
            turn_ids=["turn_0001"],
            tags=["looks"],
            salience=0.25,
            source=episodes_pb2.MemorySource(message_ids=ids[1:3], agent_id=self.agent),
            operations=[episodes_pb2.FactOperation(add=fact)],
        )
        await self.stub.ReplaceContext(
            rpc.ReplaceContextRequest(
                agent_id=self.agent,
                conversation_id=self.conversation,
                base_version=window.version,
                message_ids=[ids[0], *ids[len(ids) - keep :]],
            )
        )

    async def traces(self) -> set[str]:
        kinds = ("raw_trace",)
        return {record.raw_trace.id async for record in self.mnemesh.traces.export(self.agent, kinds=kinds)}


@pytest_asyncio.fixture
async def life(recall: str) -> AsyncIterator[Life]:
    async with Mnemesh(recall=recall) as mnemesh:
        agent = Life(mnemesh, new_id("agent"))
        await agent.begin()
        yield agent


def ids(directory: TraceDirectory, *names: str) -> list[str]:
    return [line["id"] for name in names for line in directory.lines(name)]


async def test_every_line_is_valid_by_its_schema_and_says_what_the_agent_remembers(life: Life, tmp_path: Path) -> None:
    await life.turn("one")
    await life.turn("two")
    await life.compact(keep=4)
    old = (await life.mnemesh.facts.create("Likes tea", agent_id=life.agent, metadata={"by": "hand"})).fact
    new = await life.mnemesh.facts.supersede(old.id, "Likes coffee")
    await life.mnemesh.facts.invalidate(new.id, reason="told so")
    directory = TraceDirectory.of_agent(tmp_path, life.agent)
    assert directory.path == tmp_path / "agents" / life.agent
    assert await Mirror(life.mnemesh.traces, life.agent, directory).write() == 8 + 1 + 3
    for name, schema in SCHEMAS.items():
        text = resources.files("mnemesh_client") / "trace_files" / "schemas" / f"{schema}.json"
        rules = json.loads(text.read_text())
        validator = jsonschema_rs.Draft202012Validator(rules)
        lines = (directory.path / name).read_text(encoding="utf-8").split("\n")
        assert lines.pop() == ""
        assert lines
        for line in lines:
            validator.validate(json.loads(line))
        for required in rules["required"]:
            assert not validator.is_valid(
                {key: value for key, value in json.loads(lines[0]).items() if key != required}
            )
    assert [line["turn_id"] for line in directory.lines(ARCHIVE)] == ["turn_0001"] * 4
    assert [line["turn_id"] for line in directory.lines(ACTIVE)] == ["turn_0002"] * 4
    result = directory.lines(ACTIVE)[2]
    assert (result["trace_type"], result["tool_result"]) == ("tool_result", {"seen": ["a", 1.5]})
    closed = {line["fact"]: line for line in directory.lines(FACTS)}["Likes tea"]
    assert closed["superseded_by_id"] == new.id
    assert closed["invalid_ts"] == closed["close_ts"]


async def test_what_was_written_is_read_into_another_agent_and_written_again_the_same(
    life: Life, tmp_path: Path
) -> None:
    for question in ("one", "two", "three"):
        await life.turn(question)
    await life.compact(keep=4)
    first = TraceDirectory.of_agent(tmp_path, life.agent)
    await Mirror(life.mnemesh.traces, life.agent, first).write()
    other = Life(life.mnemesh, new_id("agent"))
    await other.begin()
    done = await life.mnemesh.traces.import_(other.agent, list(first.records()), extend_window=True)
    assert (done.imported_traces, done.imported_episodes, done.imported_facts) == (12, 1, 1)
    second = TraceDirectory.of_agent(tmp_path, other.agent)
    await Mirror(life.mnemesh.traces, other.agent, second).write()
    for name in SCHEMAS:
        one, two = first.lines(name), second.lines(name)
        for line in (*one, *two):
            line.pop("conversation_id", None)
        assert one == two, name
    again = await life.mnemesh.traces.import_(other.agent, list(second.records()), extend_window=True)
    assert (again.imported_traces, again.skipped_records) == (0, 14)


@pytest.mark.parametrize("line", [
    {"id": "rt_001", "ts": 1738100000.12, "turn_id": "turn_0001", "seq": 1, "trace_type": "user",
     "content": "Please refactor the parser.", "source_event": "LLMUserMessageReadyEvent",
     "media": {"images": [], "audio": [], "video": []}, "tags": ["processed"]},
    {"id": "rt_002", "ts": 1738100002.456789, "turn_id": "turn_0001", "seq": 2, "trace_type": "tool_call",
     "content": "", "source_event": "PendingToolInvocationEvent", "tool_name": "list", "tool_args": {"path": "src"}},
    {"id": "rt_003", "ts": 1738100003, "turn_id": "turn_0001", "seq": 3, "trace_type": "tool_result", "content": "",
     "source_event": "ToolResultEvent", "tool_name": "x", "tool_result": ["app.py", None], "mood": {"calm": True},
     "conversation_id": "not ours", "tags": "none"},
])  # fmt: skip
def test_a_line_comes_out_as_it_came_in(line: dict[str, Any]) -> None:
    assert trace_line(trace_record(line, archived=False).raw_trace) == line


def test_episodes_and_facts_of_other_makers_come_out_as_they_came_in() -> None:
    episode = {
        "id": "ep_0001", "ts": 1738100500.0, "turn_ids": ["turn_0001"], "summary": "…", "tags": ["a"], "salience": 0.7,
        "source": "elsewhere", "weather": "fine",
    }  # fmt: skip
    assert episode_line(episode_record(episode).episode) == episode
    fact = {
        "id": "sem_0001", "ts": 1738100501.0, "fact": "Use pytest.", "tags": ["testing"], "confidence": 0.8,
        "salience": 0.9, "valid_from_ts": -5.25,
    }  # fmt: skip
    assert fact_line(fact_record(fact).fact) == fact


def test_lines_that_are_none_are_refused_by_file_and_place(tmp_path: Path) -> None:
    good = {"id": "a", "ts": 1.0, "turn_id": "t", "seq": 1, "trace_type": "user", "content": "", "source_event": ""}
    for name, bad, where in (
        (ACTIVE, "{", "line 2: not JSON"),
        (ACTIVE, "[]", "line 2: not an object"),
        (ACTIVE, json.dumps({**good, "id": "b", "seq": "1"}), "record 2: seq"),
        (ACTIVE, json.dumps({**good, "id": "b", "trace_type": "x"}), "record 2: trace_type"),
    ):
        (tmp_path / name).write_text(f"{json.dumps(good)}\n{bad}\n")
        with pytest.raises(InvalidArgument) as error:
            list(TraceDirectory(tmp_path).records())
        assert error.value.message.startswith(f"{name}, {where}")


def killer(at: int, steps: list[str]) -> Callable[[str], None]:
    def before(step: str) -> None:
        steps.append(step)
        if len(steps) == at:
            raise Killed

    return before


async def test_killed_between_any_two_steps_nothing_is_lost(life: Life, tmp_path: Path) -> None:
    for question in ("one", "two", "three"):
        await life.turn(question)
    before = await life.traces()
    whole = TraceDirectory.of_agent(tmp_path / "whole", life.agent)
    await Mirror(life.mnemesh.traces, life.agent, whole).write()
    await life.turn("four")
    await life.compact(keep=8)
    for full in (True, False):
        for at in range(1, 20):
            steps: list[str] = []
            path = tmp_path / f"{full}{at}"
            path.mkdir()
            for name in (ACTIVE, EPISODES, FACTS):
                (path / name).write_bytes((whole.path / name).read_bytes())
            mirror = Mirror(life.mnemesh.traces, life.agent, TraceDirectory(path, before=killer(at, steps)))
            try:
                await (mirror.write() if full else mirror.refresh())
            except Killed:
                left = ids(TraceDirectory(path), ACTIVE, ARCHIVE)
                assert before <= set(left), steps
                # Who comes next makes it whole.
                await Mirror(life.mnemesh.traces, life.agent, TraceDirectory(path)).write()
            else:
                break
            found = ids(TraceDirectory(path), ACTIVE, ARCHIVE)
            assert sorted(found) == sorted(await life.traces()), steps
            assert not list(path.glob(".*.new"))
        assert steps[0] == f"append to {ARCHIVE}"
        assert at > 6


def test_a_line_that_a_crash_cut_short_is_passed_over_and_taken_away(tmp_path: Path) -> None:
    directory = TraceDirectory(tmp_path)
    one = {"id": "a", "ts": 1.0, "turn_id": "t", "seq": 1, "trace_type": "user", "content": "", "source_event": ""}
    two = {**one, "id": "b", "seq": 2}
    directory.update([one, two], [], [], [])
    (tmp_path / ARCHIVE).write_text(json.dumps(one)[:20])
    assert [record.raw_trace.id for record in directory.records()] == ["a", "b"]
    directory.update([two], [one], [], [])
    assert (directory.lines(ARCHIVE), directory.lines(ACTIVE)) == ([one], [two])


async def test_a_look_at_nothing_new_writes_nothing_and_what_grew_is_added(life: Life, tmp_path: Path) -> None:
    await life.turn("one")
    steps: list[str] = []
    directory = TraceDirectory(tmp_path, before=steps.append)
    mirror = Mirror(life.mnemesh.traces, life.agent, directory)
    await mirror.write()
    steps.clear()
    await mirror.refresh()
    assert steps == []
    await life.turn("two")
    await mirror.refresh()
    assert steps == [f"append to {ACTIVE}"]
    steps.clear()
    # Came and left between two looks.
    await life.turn("three")
    await life.compact(keep=0)
    await mirror.refresh()
    assert steps[0] == f"append to {ARCHIVE}"
    assert (len(ids(directory, ARCHIVE)), ids(directory, ACTIVE)) == (12, [])
    assert set(ids(directory, ARCHIVE)) == await life.traces()


async def test_the_command_keeps_files_current_until_it_is_told_to_stop(
    mesh: SmallMesh, recall: str, tmp_path: Path
) -> None:
    async with mesh.client(recall=recall) as mnemesh:
        agent = await mnemesh.agents.create("ada", model="mnemesh/rehearsal")
        life = Life(mnemesh, agent.id)
        await life.begin()
        await life.turn("one")
        base = tmp_path / "memory"
        environment = {**mesh.environment(), "MNEMESH_RECALL_TARGET": recall, "AUTOBYTEUS_MEMORY_DIR": str(base)}
        directory = TraceDirectory.of_agent(base, agent.id)
        for number in (signal.SIGINT, signal.SIGTERM):
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "mnemesh_client", "export", "ada", "--watch", "--interval", "0.05"),
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env={"PATH": "", **environment},
            )
            assert process.stdout is not None
            assert str(directory.path).encode() in await process.stdout.readline()
            await life.turn("another")
            wanted = await life.traces()
            async with asyncio.timeout(60):
                while set(ids(directory, ACTIVE)) != wanted:
                    await asyncio.sleep(0.02)
            process.send_signal(number)
            out, err = await process.communicate()
            assert (process.returncode, out, err) == (0, b"", b"")
        other = await mnemesh.agents.create("bob", model="mnemesh/rehearsal")
        await Life(mnemesh, other.id).begin()
        variables = {"MNEMESH_RECALL_TARGET": recall}
        code, told, err = await mesh.run("import", str(base), "--agent", "bob", **variables)
        assert (code, err) == (0, "")
        assert "bob: 12 traces in 3 new turns, 0 episodes, 0 facts; 0 were there already" in told
        window = await mnemesh.messages.window(derive_id("conv", other.id))
        assert len(window.messages) == 13
        code, told, _ = await mesh.run("import", str(directory.path), **variables)
        assert "ada: 0 traces in 0 new turns, 0 episodes, 0 facts; 12 were there already" in told
        code, _, err = await mesh.run("import", str(tmp_path / "mesh"), **variables)
        assert (code, len(err.splitlines())) == (1, 1)
        assert "holds no trace files" in err
