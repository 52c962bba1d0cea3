"""A database that a Letta server 0.16.7 filled comes over to a mesh, with everything that it has."""

import asyncio
import gzip
import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest
from mnemesh.agents.v1 import agents_pb2, agents_service_pb2, conversations_service_pb2
from mnemesh.types.v1 import message_pb2
from mnemesh_kit.errors import FailedPrecondition
from mnemesh_kit.ids import derive_id
from mnemesh_letta.database.database import open_database
from mnemesh_letta.database.report import Report, table_lines
from mnemesh_testkit.fakes.openai import FakeOpenAI
from mnemesh_testkit.fakes.server import Reply
from mnemesh_testkit.mesh.in_process import Mesh
from mnemesh_testkit.mesh.turns import turn

from .letta_database import DUMP, Silent, migrate, rows


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "letta.db"
    path.write_bytes(gzip.decompress(DUMP.read_bytes()))
    return path


@pytest.fixture
async def mesh(tmp_path: Path, provider: FakeOpenAI) -> AsyncIterator[Mesh]:
    (tmp_path / "mesh").mkdir()
    async with Mesh(tmp_path / "mesh", openai_base_url=provider.base_url, in_memory=True) as mesh:
        yield mesh


@pytest.fixture
async def provider() -> AsyncIterator[FakeOpenAI]:
    async with FakeOpenAI(models=("gpt-4o-mini",)) as provider:
        yield provider


def of_letta(content: str) -> list[str]:
    """The texts of a content in Letta's form."""
    return [part.get("text") or part.get("reasoning") for part in json.loads(content) if part["type"] != "image"]


def texts(message: message_pb2.Message) -> list[str]:
    """The texts of a message, of its content or of its returns."""
    parts = [*message.content, *(part for item in message.tool_returns for part in item.content)]
    return [part.text.text or part.reasoning.text for part in parts if part.WhichOneof("part") != "image"]


async def test_everything_comes_along_once_and_agents_go_on(mesh: Mesh, database: Path, provider: FakeOpenAI) -> None:
    report = await migrate(mesh, database)

    counts = {name: (row.letta, row.created, row.existing, row.skipped) for name, row in report.counts.items()}
    assert {name: row for name, row in counts.items() if row[1] != row[0]} == {"organizations": (1, 0, 1, 0)}
    assert report.is_complete
    assert counts["messages"][0] == 60
    assert max(map(len, table_lines(report))) <= 80
    await has_the_same_messages(mesh, database)
    await has_the_same_memory(mesh, database, report)
    await has_the_same_history(mesh, database)
    secrets = [problem.reason for problem in report.problems]
    assert any("HARBOUR_KEY" in reason for reason in secrets)
    assert not any("fixture-secret" in reason for reason in secrets)

    again = await migrate(mesh, database)
    assert {name: row.created for name, row in again.counts.items() if row.created} == {}
    assert {name: row.existing for name, row in again.counts.items()} == {name: row[0] for name, row in counts.items()}
    await has_the_same_messages(mesh, database)

    pilot = await mesh.client.agents.find("Pilot")
    provider.script = [Reply(text="The bar is open.")]

    run = await turn(pilot, "Is the bar open today?")

    assert run.said == "The bar is open."
    sent = json.dumps(provider.requests[-1].body["messages"])
    assert "The harbour has eight berths." in sent
    assert "What did we speak about?" in sent


async def has_the_same_messages(mesh: Mesh, database: Path) -> None:
    """Every agent has its messages in order with their roles, calls, runs, steps and texts, and its windows."""
    for agent_id, window in rows(database, "SELECT id, message_ids FROM agents"):
        query = """SELECT id, role, tool_calls, run_id, step_id, content FROM messages WHERE agent_id = ?
            ORDER BY sequence_id"""
        expected = rows(database, query, agent_id)
        found = [message async for message in mesh.client.messages.list(agent_id=agent_id, order="asc")]
        assert [message.id for message in found] == [row[0] for row in expected]
        for message, (_, role, calls, run_id, step_id, content) in zip(found, expected, strict=True):
            assert message_pb2.Role.Name(message.role) == f"ROLE_{role.upper()}"
            assert [call.id for call in message.tool_calls] == [call["id"] for call in json.loads(calls)]
            assert [message.run_id, message.step_id] == [run_id or "", step_id or ""]
            if role not in ("tool", "system"):
                assert texts(message) == of_letta(content)
        shown = await mesh.client.agents.stub.GetAgent(
            agents_service_pb2.GetAgentRequest(agent_id=agent_id, view=agents_service_pb2.AgentView(message_ids=True))
        )
        assert list(shown.agent.message_ids) == json.loads(window)


async def has_the_same_memory(mesh: Mesh, database: Path, report: Report) -> None:
    """Blocks with their revisions, passages, folders, identities and groups."""
    for block_id, value in rows(database, "SELECT id, value FROM block WHERE label <> 'unused'"):
        assert (await mesh.client.blocks.get(block_id)).value == value
    ((shared, steps),) = rows(database, "SELECT block_id, count(*) FROM block_history GROUP BY block_id")
    history = [revision.value async for revision in mesh.client.blocks.revisions(shared)]
    checkpoints = rows(database, "SELECT value FROM block_history ORDER BY sequence_number DESC")
    assert [history, len(history)] == [[value for (value,) in checkpoints], steps]
    for passage_id, text, tags in rows(database, "SELECT id, text, tags FROM archival_passages"):
        passage = await mesh.client.passages.get(passage_id)
        assert [passage.text, list(passage.tags)] == [text, json.loads(tags) or []]
    folder = await mesh.client.folders.find("Pilot books")
    files = {file.name: file.id async for file in mesh.client.files.list(folder_id=folder.id)}
    assert set(files) == {"pilot.md", "lights.txt"}
    ((pilot, clerk),) = rows(
        database, "SELECT a.id, b.id FROM agents a, agents b WHERE a.name = 'Pilot' AND b.name = 'Clerk'"
    )
    ((group_id,),) = rows(database, "SELECT id FROM groups WHERE manager_type = 'supervisor'")
    group = (await mesh.client.groups.get(report.ids[group_id])).proto
    assert [list(group.agent_ids), group.manager_config.supervisor.manager_agent_id] == [[clerk], pilot]
    ((group_id, count),) = rows(database, "SELECT id, turns_counter FROM groups WHERE manager_type = 'sleeptime'")
    assert (await mesh.client.groups.get(report.ids[group_id])).proto.turns_counter == count


async def has_the_same_history(mesh: Mesh, database: Path) -> None:
    """Runs and steps with their tokens, and conversations with their windows."""
    for run_id, agent_id, reason in rows(
        database, "SELECT id, agent_id, stop_reason FROM runs WHERE status = 'completed'"
    ):
        run = await mesh.client.runs.get(run_id)
        steps = rows(database, "SELECT id, total_tokens FROM steps WHERE run_id = ? ORDER BY created_at, id", run_id)
        assert [run.agent_id, run.step_count, run.usage.total_tokens] == [
            agent_id,
            len(steps),
            sum(s[1] for s in steps),
        ]
        assert agents_pb2.StopReason.Name(run.stop_reason) == f"STOP_REASON_{(reason or 'unspecified').upper()}"
    for conversation_id, summary in rows(database, "SELECT id, summary FROM conversations"):
        query = (
            "SELECT message_id FROM conversation_messages WHERE conversation_id = ? AND in_context ORDER BY position"
        )
        request = conversations_service_pb2.GetConversationRequest(
            conversation_id=conversation_id, include_message_ids=True
        )
        found = (await mesh.client.conversations.stub.GetConversation(request)).conversation
        window = [message_id for (message_id,) in rows(database, query, conversation_id)]
        assert [found.summary, list(found.message_ids)] == [summary or "", window]


@pytest.mark.full
async def test_an_interrupted_migration_is_continued(mesh: Mesh, database: Path) -> None:
    add_messages(database, 1200)
    with pytest.raises(ConnectionError):
        await migrate(mesh, database, Silent(messages=800))

    report = await migrate(mesh, database)

    assert report.is_complete
    assert [row.letta for row in report.counts.values()] == [
        row.created + row.existing for row in report.counts.values()
    ]
    await has_the_same_messages(mesh, database)


@pytest.mark.full
async def test_a_repeated_migration_has_the_whole_report(mesh: Mesh, database: Path) -> None:
    """An agent that has arrived is answered at once, before its records that come after the messages are sent."""
    add_messages(database, 1200, agent="Pilot")
    first = await migrate(mesh, database)

    again = await migrate(mesh, database)

    assert {name: row.existing for name, row in again.counts.items()} == {
        name: row.letta for name, row in first.counts.items()
    }
    assert again.problems == first.problems
    assert again.ids == first.ids
    ((unused,),) = rows(database, "SELECT id FROM block WHERE label = 'unused'")
    assert (await mesh.client.blocks.get(again.ids[unused])).label == "unused"


@pytest.mark.full
async def test_a_reader_that_is_cancelled_does_not_cost_the_connection(database: Path) -> None:
    """gRPC cancels the reader of a call that ends early. Others read on, and the database is closed."""
    add_messages(database, 1200)
    for steps in (0, 1, 3, 10):
        async with asyncio.timeout(30), open_database(f"sqlite:///{database}") as letta:
            reader = asyncio.create_task(letta.all("messages"))
            for _ in range(steps):
                await asyncio.sleep(0.001)
            reader.cancel()
            if steps % 2:
                assert await letta.count("messages") == 1260


def add_messages(database: Path, count: int, *, agent: str = "Sleeper-sleeptime") -> None:
    """Gives an agent so many more messages: more than one request of an import takes."""
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.row_factory = sqlite3.Row
        row = dict(connection.execute("SELECT * FROM messages WHERE role = 'user' LIMIT 1").fetchone())
        ((agent_id,),) = connection.execute("SELECT id FROM agents WHERE name = ?", (agent,)).fetchall()
        marks = ", ".join(f":{key}" for key in row)
        for number in range(count):
            values = {"id": derive_id("message", str(number)), "agent_id": agent_id, "sequence_id": 1000 + number}
            connection.execute(
                f"INSERT INTO messages VALUES ({marks})",
                {**row, **values, "run_id": None, "step_id": None, "otid": None},
            )


async def test_an_agent_whose_model_is_unknown_stops_the_migration_before_it_begins(mesh: Mesh, database: Path) -> None:
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("UPDATE agents SET llm_config = replace(llm_config, 'gpt-4o-mini', 'gpt-9')")

    with pytest.raises(FailedPrecondition, match=r"openai/gpt-9.*--model"):
        await migrate(mesh, database)

    assert [agent async for agent in mesh.client.agents.list()] == []


@pytest.mark.full
async def test_what_only_letta_accepts_costs_no_agent(mesh: Mesh, database: Path) -> None:
    ids = dict(rows(database, "SELECT name, id FROM agents"))
    with closing(sqlite3.connect(database)) as connection, connection:
        change = connection.execute
        for table in ("block", "blocks_agents"):
            label = "label" if table == "block" else "block_label"
            change(f"UPDATE {table} SET {label} = 'Notes: Häfen' WHERE {label} = 'harbour'")
        change("UPDATE agents SET metadata_ = ? WHERE name = 'Clerk'", ['{"lone \\ud800": ["nul \\u0000"]}'])
        change("UPDATE agents SET timezone = 'Mars/Olympus' WHERE name = 'Clerk'")
        change("UPDATE tools SET source_code = NULL, json_schema = NULL WHERE name = 'read_barometer'")
        change("UPDATE agents SET agent_type = 'oracle_agent' WHERE name = 'Sleeper-sleeptime'")

    report = await migrate(mesh, database)

    skipped = {(problem.type, problem.id): problem.reason for problem in report.problems if problem.is_loss}
    (tool,) = [id_ for kind, id_ in skipped if kind == "tools"]
    (group,) = [id_ for kind, id_ in skipped if kind == "groups"]
    assert skipped == {
        ("agents", ids["Sleeper-sleeptime"]): "the agent cannot be read: the agent type 'oracle_agent' is not known",
        ("tools", tool): "the tool has no source code",
        ("groups", group): f"{ids['Sleeper-sleeptime']} does not exist. The group is created when the last of its "
        "agents is imported.",
    }
    changed = [problem.reason for problem in report.problems if not problem.is_loss]
    assert "the tool read_barometer is not attached: it has no source code" in changed
    assert "the time zone Mars/Olympus is not known here; it is UTC" in changed
    (renamed,) = {reason for reason in changed if reason.startswith("the label")}
    clerk = (await mesh.client.agents.find("Clerk")).proto
    assert [json.loads(clerk.metadata), clerk.time_zone] == [{"lone \ufffd": ["nul \ufffd"]}, "UTC"]
    labels = [block.label async for block in mesh.client.blocks.list(agent_id=clerk.id)]
    assert [f"the label 'Notes: Häfen' is {label} here" for label in labels if label.startswith("Notes")] == [renamed]
    pilot = (await mesh.client.agents.find("Pilot")).proto
    assert "read_barometer" not in [tool.name for tool in pilot.tools]


@pytest.mark.full
async def test_a_group_that_cannot_exist_is_skipped_with_its_reason(mesh: Mesh, database: Path) -> None:
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute(
            "UPDATE groups SET manager_type = 'dynamic', max_turns = -1 WHERE manager_type = 'supervisor'"
        )

    report = await migrate(mesh, database)

    (reason,) = [problem.reason for problem in report.problems if problem.is_loss]
    assert "max_turns" in reason


async def test_an_approval_that_still_waits_is_reported(mesh: Mesh, database: Path) -> None:
    request, answer = "role = 'approval' AND tool_calls <> '[]'", "role = 'approval' AND tool_calls = '[]'"
    ((newest,),) = rows(database, f"SELECT id FROM messages WHERE {request} ORDER BY sequence_id DESC LIMIT 1")
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute(
            "DELETE FROM messages WHERE conversation_id IS NULL AND agent_id = (SELECT agent_id FROM messages WHERE"
            " id = ?) AND sequence_id > (SELECT sequence_id FROM messages WHERE id = ?)",
            [newest, newest],
        )
    assert rows(database, f"SELECT count(*) FROM messages WHERE {answer}")[0][0] == 1

    report = await migrate(mesh, database)

    reported = {problem.id: problem.reason for problem in report.problems if problem.type == "messages"}
    assert reported == {newest: "nothing waits for this approval here: send a message instead"}


@pytest.mark.full
async def test_a_fork_shows_the_messages_that_it_shares(mesh: Mesh, database: Path) -> None:
    fork = "conv-00000000-0000-4000-8000-0000000000f0"
    ((source,),) = rows(database, "SELECT id FROM conversations WHERE summary IS NOT NULL")
    with closing(sqlite3.connect(database)) as connection, connection:
        for table, new, equal in (
            ("conversations", {"id": "?1", "summary": "'A fork'"}, "id"),
            ("conversation_messages", {"id": "'fork-' || id", "conversation_id": "?1"}, "conversation_id"),
        ):
            names = [name for (_, name, *_) in connection.execute(f"PRAGMA table_info({table})")]
            values = ", ".join(new.get(name, name) for name in names)
            connection.execute(f"INSERT INTO {table} SELECT {values} FROM {table} WHERE {equal} = ?2", [fork, source])

    await migrate(mesh, database)

    request = conversations_service_pb2.GetConversationRequest(conversation_id=fork, include_message_ids=True)
    found = (await mesh.client.conversations.stub.GetConversation(request)).conversation
    assert (found.summary, found.forked_from_id, len(found.message_ids) > 1) == ("A fork", source, True)
    request.conversation_id = source
    original = (await mesh.client.conversations.stub.GetConversation(request)).conversation
    assert (original.message_ids, original.HasField("forked_from_id")) == (found.message_ids, False)


@pytest.mark.full
async def test_what_no_agent_holds_is_reported_as_created_once(mesh: Mesh, database: Path) -> None:
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("DELETE FROM identities_agents")
        connection.execute("DELETE FROM archives_agents")
    first = await migrate(mesh, database)

    again = await migrate(mesh, database)

    kinds = ("identities", "archives", "passages", "blocks")
    created = {kind: first.counts[kind].created for kind in kinds}
    assert all(created.values())
    assert {kind: first.counts[kind].letta for kind in kinds} == created
    assert {kind: again.counts[kind].existing for kind in kinds} == created
    assert {kind: again.counts[kind].created for kind in kinds} == dict.fromkeys(kinds, 0)


@pytest.mark.full
async def test_errors_of_runs_and_steps_are_those_of_letta(mesh: Mesh, database: Path) -> None:
    (run_id, step_id), *_ = rows(database, "SELECT run_id, id FROM steps WHERE run_id IS NOT NULL ORDER BY id")
    with closing(sqlite3.connect(database)) as connection, connection:
        failed = ["failed", '{"error": "The model was busy."}', run_id]
        connection.execute("UPDATE runs SET status = ?, metadata_ = ? WHERE id = ?", failed)
        error = ["FAILED", "LLMServerError", '{"message": "Busy.", "traceback": "…"}', step_id]
        connection.execute("UPDATE steps SET status = ?, error_type = ?, error_data = ? WHERE id = ?", error)

    await migrate(mesh, database)

    run = await mesh.client.runs.get(run_id)
    steps = [step async for step in mesh.client.runs.steps(run_id)]
    assert run.error.message == "The model was busy."
    assert [(step.error.reason, step.error.message) for step in steps if step.id == step_id] == [
        ("LLMServerError", "Busy.")
    ]
