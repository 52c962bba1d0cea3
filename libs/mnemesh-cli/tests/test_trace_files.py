"""Trace files: schemas, export and import, updates, and crashes of the writer."""

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
from mnemesh_cli.trace_files.directory import ACTIVE, ARCHIVE, EPISODES, FACTS, Mirror, TraceDirectory
from mnemesh_client import Mnemesh
from mnemesh_client.episodes import memory_scope
from mnemesh_kit.ids import derive_id, new_id
from mnemesh_kit.server import RunningServer
from mnemesh_recall.config import Config
from mnemesh_recall.wiring import assemble
from mnemesh_retrieval.registry import HASHING
from mnemesh_testkit.timeouts import scaled

if TYPE_CHECKING:
    from mnemesh_testkit.mesh.fake_mesh import FakeMesh

SCHEMAS = {ACTIVE: "raw_trace", ARCHIVE: "raw_trace", EPISODES: "episode", FACTS: "fact"}


class Crash(BaseException):
    """The crash of a writer."""


@pytest_asyncio.fixture
async def recall(tmp_path: Path) -> AsyncIterator[str]:
    """The address of a recall service."""
    (tmp_path / "recall").mkdir()
    config = Config(port=0, data_dir=str(tmp_path / "recall"), embedder=HASHING, shutdown_grace_seconds=0)
    server = RunningServer()
    yield await server.start(await assemble(config), config)
    await server.stop()


def message(text: str, role: int = pb.ROLE_USER, **more: Any) -> pb.Message:
    content = [pb.ContentPart(text=pb.TextPart(text=text))] if text else []
    return pb.Message(id=new_id("message"), role=pb.Role.ValueType(role), content=content, **more)


class RecallAgent:
    """An agent of the recall service whose turns and compactions a test controls."""

    def __init__(self, mnemesh: Mnemesh, agent_id: str) -> None:
        self.mnemesh, self.agent = mnemesh, agent_id
        self.conversation = derive_id("conv", agent_id)
        self.stub: Any = mnemesh.messages.stub

    async def create(self) -> None:
        await self.stub.CreateContext(
            rpc.CreateContextRequest(
                agent_id=self.agent, conversation_id=self.conversation, messages=[message("prompt", pb.ROLE_SYSTEM)]
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
            message(question),
            message("", pb.ROLE_ASSISTANT, tool_calls=[call]),
            message("", pb.ROLE_TOOL, tool_returns=[answer]),
            message(f"of {question}\u2028this", pb.ROLE_ASSISTANT),
        ]
        await self.stub.AppendMessages(
            rpc.AppendMessagesRequest(agent_id=self.agent, conversation_id=self.conversation, messages=rows)
        )

    async def compact(self, keep: int) -> None:
        """Keeps the last `keep` messages in the window, and stores an episode and a fact about the others."""
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
async def recall_agent(recall: str) -> AsyncIterator[RecallAgent]:
    async with Mnemesh(recall=recall) as mnemesh:
        agent = RecallAgent(mnemesh, new_id("agent"))
        await agent.create()
        yield agent


def ids(directory: TraceDirectory, *names: str) -> list[str]:
    return [line["id"] for name in names for line in directory.lines(name)]


async def test_every_exported_line_is_valid_by_its_schema(recall_agent: RecallAgent, tmp_path: Path) -> None:
    await recall_agent.turn("one")
    await recall_agent.turn("two")
    await recall_agent.compact(keep=4)
    old = (
        await recall_agent.mnemesh.facts.create("Likes tea", agent_id=recall_agent.agent, metadata={"by": "hand"})
    ).fact
    new = await recall_agent.mnemesh.facts.supersede(old.id, "Likes coffee")
    await recall_agent.mnemesh.facts.invalidate(new.id, reason="told so")
    directory = TraceDirectory.of_agent(tmp_path, recall_agent.agent)
    assert directory.path == tmp_path / "agents" / recall_agent.agent
    assert await Mirror(recall_agent.mnemesh.traces, recall_agent.agent, directory).write() == 8 + 1 + 3
    for name, schema in SCHEMAS.items():
        text = resources.files("mnemesh_cli") / "trace_files" / "schemas" / f"{schema}.json"
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


async def test_exported_files_can_be_imported_into_another_agent(recall_agent: RecallAgent, tmp_path: Path) -> None:
    for question in ("one", "two", "three"):
        await recall_agent.turn(question)
    await recall_agent.compact(keep=4)
    first = TraceDirectory.of_agent(tmp_path, recall_agent.agent)
    await Mirror(recall_agent.mnemesh.traces, recall_agent.agent, first).write()
    other = RecallAgent(recall_agent.mnemesh, new_id("agent"))
    await other.create()
    done = await recall_agent.mnemesh.traces.import_(other.agent, list(first.records()), extend_window=True)
    assert (done.imported_traces, done.imported_episodes, done.imported_facts) == (12, 1, 1)
    second = TraceDirectory.of_agent(tmp_path, other.agent)
    await Mirror(recall_agent.mnemesh.traces, other.agent, second).write()
    for name in SCHEMAS:
        one, two = first.lines(name), second.lines(name)
        for line in (*one, *two):
            line.pop("conversation_id", None)
        assert one == two, name
    again = await recall_agent.mnemesh.traces.import_(other.agent, list(second.records()), extend_window=True)
    assert (again.imported_traces, again.skipped_records) == (0, 14)


def crash_at(at: int, steps: list[str]) -> Callable[[str], None]:
    def before(step: str) -> None:
        steps.append(step)
        if len(steps) == at:
            raise Crash

    return before


async def test_crash_between_any_two_steps_loses_no_trace(recall_agent: RecallAgent, tmp_path: Path) -> None:
    for question in ("one", "two", "three"):
        await recall_agent.turn(question)
    before = await recall_agent.traces()
    whole = TraceDirectory.of_agent(tmp_path / "whole", recall_agent.agent)
    await Mirror(recall_agent.mnemesh.traces, recall_agent.agent, whole).write()
    await recall_agent.turn("four")
    await recall_agent.compact(keep=8)
    for full in (True, False):
        for at in range(1, 20):
            steps: list[str] = []
            path = tmp_path / f"{full}{at}"
            path.mkdir()
            for name in (ACTIVE, EPISODES, FACTS):
                (path / name).write_bytes((whole.path / name).read_bytes())
            mirror = Mirror(
                recall_agent.mnemesh.traces, recall_agent.agent, TraceDirectory(path, before=crash_at(at, steps))
            )
            try:
                await (mirror.write() if full else mirror.refresh())
            except Crash:
                left = ids(TraceDirectory(path), ACTIVE, ARCHIVE)
                assert before <= set(left), steps
                # The next writer completes the files.
                await Mirror(recall_agent.mnemesh.traces, recall_agent.agent, TraceDirectory(path)).write()
            else:
                break
            found = ids(TraceDirectory(path), ACTIVE, ARCHIVE)
            assert sorted(found) == sorted(await recall_agent.traces()), steps
            assert not list(path.glob(".*.new"))
        assert steps[0] == f"append to {ARCHIVE}"
        assert at > 6


async def test_refresh_writes_only_changes(recall_agent: RecallAgent, tmp_path: Path) -> None:
    await recall_agent.turn("one")
    steps: list[str] = []
    directory = TraceDirectory(tmp_path, before=steps.append)
    mirror = Mirror(recall_agent.mnemesh.traces, recall_agent.agent, directory)
    await mirror.write()
    steps.clear()
    await mirror.refresh()
    assert steps == []
    await recall_agent.turn("two")
    await mirror.refresh()
    assert steps == [f"append to {ACTIVE}"]
    steps.clear()
    # This turn was created and archived between two refreshes.
    await recall_agent.turn("three")
    await recall_agent.compact(keep=0)
    await mirror.refresh()
    assert steps[0] == f"append to {ARCHIVE}"
    assert (len(ids(directory, ARCHIVE)), ids(directory, ACTIVE)) == (12, [])
    assert set(ids(directory, ARCHIVE)) == await recall_agent.traces()


@pytest.mark.full
async def test_export_watch_updates_files_until_a_signal_and_import_reads_them(
    mesh: "FakeMesh", recall: str, tmp_path: Path
) -> None:
    async with mesh.client(recall=recall) as mnemesh:
        agent = await mnemesh.agents.create("ada", model="mnemesh/rehearsal")
        recall_agent = RecallAgent(mnemesh, agent.id)
        await recall_agent.create()
        await recall_agent.turn("one")
        base = tmp_path / "memory"
        environment = {**mesh.environment(), "MNEMESH_RECALL_TARGET": recall, "AUTOBYTEUS_MEMORY_DIR": str(base)}
        directory = TraceDirectory.of_agent(base, agent.id)
        for number in (signal.SIGINT, signal.SIGTERM):
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "mnemesh_cli", "export", "ada", "--traces", "--watch", "--interval", "0.05"),
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env={"PATH": "", **environment},
            )
            assert process.stdout is not None
            assert str(directory.path).encode() in await process.stdout.readline()
            await recall_agent.turn("another")
            expected = await recall_agent.traces()
            async with asyncio.timeout(scaled(100)):
                while set(ids(directory, ACTIVE)) != expected:
                    await asyncio.sleep(0.02)
            process.send_signal(number)
            out, err = await process.communicate()
            assert (process.returncode, out, err) == (0, b"", b"")
        other = await mnemesh.agents.create("bob", model="mnemesh/rehearsal")
        await RecallAgent(mnemesh, other.id).create()
        variables = {"MNEMESH_RECALL_TARGET": recall}
        code, out, err = await mesh.run("import", str(base), "--agent", "bob", **variables)
        assert (code, err) == (0, "")
        assert "bob: imported 12 traces in 3 new turns, 0 episodes, 0 facts; skipped 0 existing records" in out
        window = await mnemesh.messages.window(derive_id("conv", other.id))
        assert len(window.messages) == 13
        code, out, _ = await mesh.run("import", str(directory.path), **variables)
        assert "ada: imported 0 traces in 0 new turns, 0 episodes, 0 facts; skipped 12 existing records" in out
        code, _, err = await mesh.run("import", str(tmp_path / "mesh"), **variables)
        assert (code, len(err.splitlines())) == (1, 1)
        assert "has no trace files" in err
