"""Databases and indexes of earlier releases are upgraded."""

from __future__ import annotations

import asyncio
import importlib.util
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import mnemesh_recall
import sqlalchemy as sa
from alembic.migration import MigrationContext
from alembic.operations import Operations
from mnemesh.recall.v1 import contexts_pb2, traces_service_pb2
from mnemesh.recall.v1 import messages_service_pb2 as rpc
from mnemesh.types.v1 import message_pb2 as pb
from mnemesh_kit.ids import new_id
from mnemesh_kit.principal import DEFAULT_PRINCIPAL
from mnemesh_kit.sql import Database
from mnemesh_recall.vectors.vector_points import collection
from mnemesh_retrieval.edge import EdgeIndex
from mnemesh_retrieval.registry import HASHING
from mnemesh_testkit.databases.revisions import downgrade

ORG = DEFAULT_PRINCIPAL.organization_id
FIRST = Path(mnemesh_recall.__file__).parent / "store" / "migrations" / "versions" / "0001_recall.py"
AGENT, CONVERSATION = new_id("agent"), new_id("conv")
NOW = "2026-01-10 12:00:00.000000"
SAID = ("prompt", "I play the guitar", "Do you practise daily?", "Only on Sundays")


def of_the_first_version(conn: sa.Connection) -> None:
    """Creates the schema of revision 0001 with rows of that release."""
    spec = importlib.util.spec_from_file_location("first", FIRST)
    assert spec is not None
    assert spec.loader is not None
    first = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(first)
    with Operations.context(MigrationContext.configure(conn)):
        first.upgrade()
    for statement in (
        "CREATE TABLE alembic_version (version_num VARCHAR(32) PRIMARY KEY)",
        "INSERT INTO alembic_version VALUES ('0001')",
        f"INSERT INTO agents VALUES ('{AGENT}', '{ORG}', 4, 4, '{NOW}', NULL)",
    ):
        conn.execute(sa.text(statement))
    ids = [new_id("message") for _ in SAID]
    conn.execute(
        sa.text(
            "INSERT INTO contexts (conversation_id, organization_id, agent_id, version, epoch, system_message_id,"
            f" next_position, created_at, updated_at) VALUES ('{CONVERSATION}', '{ORG}', '{AGENT}', 3, 2, '{ids[0]}',"
            f" 4, '{NOW}', '{NOW}')"
        )
    )
    for place, (id_, text) in enumerate(zip(ids, SAID, strict=True)):
        role = ("system", "user", "assistant", "user")[place]
        values = {
            "id": id_, "role": role, "number": place + 1, "content": f'[{{"type":"text","text":"{text}"}}]',
            "search": text.casefold() if place else None,
        }  # fmt: skip
        conn.execute(
            sa.text(
                "INSERT INTO messages (id, organization_id, agent_id, sequence_id, conversation_id, role, created_at,"
                f" content, search_text) VALUES (:id, '{ORG}', '{AGENT}', :number, '{CONVERSATION}', :role, '{NOW}',"
                " :content, :search)"
            ),
            values,
        )
        conn.execute(sa.text(f"INSERT INTO context_entries VALUES ('{CONVERSATION}', {place}, :id)"), {"id": id_})


async def test_database_of_the_first_release_can_be_searched_and_used(serve: Any, database_url: str) -> None:
    database = Database.open(database_url)
    await database.write(of_the_first_version)
    await database.close()
    for _ in range(2):
        async with serve(database_url=database_url) as recall:
            window = (await recall.GetContext(rpc.GetContextRequest(conversation_id=CONVERSATION))).context
            assert [message.content[0].text.text for message in window.messages] == list(SAID)
            assert (window.version, window.epoch, window.agent_message_count) == (3, 2, 4)
            assert [message.turn_id for message in window.messages] == ["", "turn_0001", "turn_0001", "turn_0002"]
            listed = await recall.traces.ListTurns(traces_service_pb2.ListTurnsRequest(agent_id=AGENT))
            assert [(turn.id, turn.index, turn.message_count) for turn in listed.turns] == [
                ("turn_0001", 1, 2), ("turn_0002", 2, 1),
            ]  # fmt: skip
            for query, best in (("guitars", SAID[1]), ("January 2026 practising", SAID[3])):
                request = rpc.SearchMessagesRequest(query=query, agent_id=AGENT, mode=rpc.SEARCH_MODE_TEXT)
                hits = (await recall.SearchMessages(request)).hits
                assert hits[0].text == best
                assert len(hits) == 3


async def said_once(recall: Any) -> None:
    said = pb.Message(id=new_id("message"), role=pb.ROLE_USER)
    said.content.add().text.text = SAID[1]
    await recall.AppendMessages(rpc.AppendMessagesRequest(agent_id=AGENT, messages=[said]))


async def test_vector_index_of_an_older_format_is_rebuilt(serve: Any, tmp_path: Path) -> None:
    async with serve() as recall:
        await said_once(recall)
        await found_by_meaning(recall)
    directory = tmp_path / "recall-index"
    with closing(sqlite3.connect(directory / "vectors.db")) as vectors, vectors:
        vectors.execute("UPDATE collections SET name = replace(name, 'messages.3.', 'messages.')")
    async with serve() as recall:
        await found_by_meaning(recall)
    with closing(sqlite3.connect(directory / "vectors.db")) as vectors:
        names = [name for (name,) in vectors.execute("SELECT name FROM collections WHERE name LIKE 'messages%'")]
    assert names == [f"messages.3.{HASHING}"]


async def test_vector_index_of_another_engine_is_rebuilt_while_full_text_works(serve: Any, tmp_path: Path) -> None:
    directory = tmp_path / "recall-index"
    async with serve() as recall:
        await said_once(recall)
    (directory / "vectors.db").unlink()
    earlier = await EdgeIndex.open(directory)
    await earlier.ensure_collection(collection(HASHING, 256))
    await earlier.close()
    async with serve() as recall:
        request = rpc.SearchMessagesRequest(query=SAID[1], agent_id=AGENT)
        assert (await recall.SearchMessages(request)).hits[0].text_rank == 1
        await found_by_meaning(recall)
    assert sorted(path.name for path in directory.iterdir()) == ["index.lock", "index.mark", "vectors.db"]


async def found_by_meaning(recall: Any) -> None:
    """Waits until the vector index contains the message."""
    request = rpc.SearchMessagesRequest(query=SAID[1], agent_id=AGENT, mode=rpc.SEARCH_MODE_VECTOR)
    while not (await recall.SearchMessages(request)).hits:
        await asyncio.sleep(0.02)


async def test_returns_of_failed_tools_of_earlier_releases_are_shown(serve: Any, database_url: str) -> None:
    call = pb.Message(id=new_id("message"), role=pb.ROLE_ASSISTANT)
    call.tool_calls.add(id="c1", name="dig", arguments="{}")
    failed, broken = (pb.Message(id=new_id("message"), role=pb.ROLE_TOOL) for _ in range(2))
    for message, status in ((failed, pb.TOOL_RETURN_STATUS_ERROR), (broken, pb.TOOL_RETURN_STATUS_SUCCESS)):
        item = message.tool_returns.add(tool_call_id="c1", name="dig", status=status)
        item.content.add().text.text = "There is a rock"
        message.is_err = True
    async with serve(database_url=database_url) as recall:
        await said_once(recall)
        await recall.AppendMessages(rpc.AppendMessagesRequest(agent_id=AGENT, messages=[call, failed, broken]))
    await downgrade(database_url, "mnemesh_recall", "0008")
    async with serve(database_url=database_url) as recall:
        listed = (await recall.ListMessages(rpc.ListMessagesRequest(agent_ids=[AGENT], tool_call_id="c1"))).messages
        assert [message.id for message in listed] == [call.id, failed.id]
        for query, text in (("rocks", "There is a rock"), ("guitars", SAID[1])):
            request = rpc.SearchMessagesRequest(query=query, agent_id=AGENT, mode=rpc.SEARCH_MODE_TEXT)
            assert [hit.text for hit in (await recall.SearchMessages(request)).hits] == [text]


async def test_step_committed_before_the_upgrade_is_replayed_after_it(serve: Any, database_url: str) -> None:
    """Fingerprints of an earlier release are unknown and match any content."""
    system = pb.Message(id=new_id("message"), role=pb.ROLE_SYSTEM)
    user = pb.Message(id=new_id("message"), role=pb.ROLE_USER)
    user.content.add().text.text = SAID[1]
    step = rpc.CommitStepRequest(
        agent_id=AGENT,
        conversation_id=CONVERSATION,
        lease=contexts_pb2.WriterLease(run_id=new_id("run"), epoch=1),
        step_id=new_id("step"),
        base_version=1,
        messages=[user],
    )
    async with serve(database_url=database_url) as recall:
        await recall.CreateContext(
            rpc.CreateContextRequest(agent_id=AGENT, conversation_id=CONVERSATION, messages=[system])
        )
        first = await recall.CommitStep(step)
    database = Database.open(database_url)
    earlier = sa.text("UPDATE step_commits SET fingerprint = 'hash of an earlier encoding'")
    await database.write(lambda conn: conn.execute(earlier))
    await database.close()
    await downgrade(database_url, "mnemesh_recall", "0007")
    async with serve(database_url=database_url) as recall:
        replay = await recall.CommitStep(step)
        assert (replay.replayed, replay.version, replay.sequence_ids) == (True, first.version, first.sequence_ids)
        window = (await recall.GetContext(rpc.GetContextRequest(conversation_id=CONVERSATION))).context
        assert [message.id for message in window.messages] == [system.id, user.id]


async def test_speakers_of_messages_of_earlier_releases_are_known(serve: Any, database_url: str) -> None:
    texts = {"Ada": "I play", "": "Melanie: so do I", "Zoë": "Note: you do not"}
    messages = []
    for name, text in texts.items():
        said = pb.Message(id=new_id("message"), role=pb.ROLE_USER, name=name or None)
        said.content.add().text.text = text
        messages.append(said)
    async with serve(database_url=database_url) as recall:
        await said_once(recall)
        await recall.AppendMessages(rpc.AppendMessagesRequest(agent_id=AGENT, messages=messages))
    await downgrade(database_url, "mnemesh_recall", "0015")
    async with serve(database_url=database_url) as recall:
        for speakers, found in ((["ADA"], ["Ada"]), (["melanie", "ZOË"], ["Zoë", ""]), (["Note"], [])):
            request = rpc.SearchMessagesRequest(agent_id=AGENT, speakers=speakers)
            assert [hit.message.name for hit in (await recall.SearchMessages(request)).hits] == found
