"""Erased and expired data is removed from results, from counts, and after maintenance from every file."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from google.protobuf.timestamp_pb2 import Timestamp
from mnemesh.recall.v1 import episodes_pb2, traces_pb2, traces_service_pb2
from mnemesh.recall.v1 import episodes_service_pb2 as memories
from mnemesh.recall.v1 import messages_service_pb2 as rpc
from mnemesh.types.v1 import message_pb2 as pb
from mnemesh_kit.call_context import DEFAULT_PRINCIPAL
from mnemesh_kit.ids import RandomIds, new_id
from mnemesh_kit.sql import Database
from mnemesh_kit.time import FrozenClock
from mnemesh_recall.config import Config
from mnemesh_recall.main import main
from mnemesh_recall.maintenance import maintain
from mnemesh_recall.model.messages import MessageBatch
from mnemesh_recall.store.indexed import IndexedMessages
from mnemesh_recall.store.messages import MessageStore
from mnemesh_recall.store.tables import index_tables
from mnemesh_recall.store.transaction import MESSAGES
from mnemesh_recall.usecases.messages import Retention
from mnemesh_recall.vectors import MessageSource, MessageVectors
from mnemesh_retrieval.embedder import Vector
from mnemesh_retrieval.embedders.built_in import HashingEmbedder
from mnemesh_retrieval.errors import EmbedderUnavailable as EmbedderUnreachable
from mnemesh_retrieval.flat import FlatIndex
from mnemesh_retrieval.indexing.indexer import Indexer
from mnemesh_retrieval.indexing.outbox import Outbox
from mnemesh_retrieval.registry import HASHING
from mnemesh_testkit.mesh.command_line import run_service
from mnemesh_types.messages import Message, Role, TextPart

CANARY = "canaryZq7xVw3"


def part(text: str) -> pb.ContentPart:
    return pb.ContentPart(text=pb.TextPart(text=text))


def message(text: str, role: int = pb.ROLE_USER, **more: Any) -> pb.Message:
    return pb.Message(id=new_id("message"), role=pb.Role.ValueType(role), content=[part(text)], **more)


def planted(directory: Path) -> list[str]:
    """Returns the files that contain the canary, as written or as the full-text index folds it."""
    files = [file for file in directory.rglob("*") if file.is_file()]
    return [str(file) for file in files if CANARY.lower().encode() in file.read_bytes().lower()]


async def plant_and_erase(recall: Any) -> str:
    """Writes the canary into every text field and erases it in every way. Returns the agent that remains."""
    doomed, kept, conversation, other = new_id("agent"), new_id("agent"), new_id("conv"), new_id("conv")
    call = pb.ToolCall(id=CANARY, name=CANARY, arguments=json.dumps({"message": CANARY}))
    answer = pb.ToolReturn(tool_call_id=CANARY, name=CANARY, content=[part(CANARY)], stdout=[CANARY])
    everywhere = [
        message(f"it is {CANARY} indeed", name=CANARY, otid=CANARY, sender_id=CANARY),
        pb.Message(id=new_id("message"), role=pb.ROLE_ASSISTANT, tool_calls=[call]),
        pb.Message(id=new_id("message"), role=pb.ROLE_TOOL, tool_returns=[answer]),
    ]
    system = message(f"prompt {CANARY}", pb.ROLE_SYSTEM)
    await recall.CreateContext(
        rpc.CreateContextRequest(agent_id=doomed, conversation_id=conversation, messages=[system, *everywhere])
    )
    await recall.AppendMessages(
        rpc.AppendMessagesRequest(agent_id=doomed, messages=[message(CANARY) for _ in range(50)], request_id="r1")
    )
    changed, deleted = message(CANARY), message(CANARY, name=CANARY)
    around = [message("a quiet neighbour"), changed, deleted, message("another neighbour")]
    await recall.AppendMessages(rpc.AppendMessagesRequest(agent_id=kept, messages=around))
    update = rpc.UpdateMessageRequest(message=pb.Message(id=changed.id, content=[part("harmless")]))
    update.update_mask.paths.append("content")
    await recall.UpdateMessage(update)
    await recall.DeleteMessage(rpc.DeleteMessageRequest(message_id=deleted.id))
    await recall.CreateContext(
        rpc.CreateContextRequest(
            agent_id=kept, conversation_id=other, messages=[message("p", pb.ROLE_SYSTEM), message(CANARY)]
        )
    )
    await recall.DeleteContext(rpc.DeleteContextRequest(conversation_id=other, delete_messages=True))
    await plant_memories(recall, doomed)
    gone = await recall.EraseAgent(rpc.EraseAgentRequest(agent_id=doomed))
    assert (gone.deleted_messages, gone.deleted_contexts) == (55, 1)
    assert not (await recall.SearchMessages(rpc.SearchMessagesRequest(query=CANARY, mode=rpc.SEARCH_MODE_TEXT))).hits
    return kept


async def plant_memories(recall: Any, agent: str) -> None:
    """Writes the canary into memories of the agent and of a shared scope, which is erased."""
    shared = episodes_pb2.MemoryScope(name=f"team/{CANARY}")
    for scope in (episodes_pb2.MemoryScope(agent_id=agent), shared):
        fact = episodes_pb2.Fact(text=f"{CANARY} is true", tags=[CANARY], metadata=json.dumps({CANARY: CANARY}))
        done = await recall.episodes.CommitEpisode(
            memories.CommitEpisodeRequest(
                request_id=f"commit/{scope.WhichOneof('scope')}",
                scope=scope,
                episode=episodes_pb2.Episode(summary=f"of {CANARY}", tags=[CANARY], turn_ids=[CANARY]),
                operations=[episodes_pb2.FactOperation(add=fact)],
            )
        )
        end = episodes_pb2.InvalidateOperation(fact_id=done.facts[0].id, reason=CANARY)
        await recall.episodes.InvalidateFact(memories.InvalidateFactRequest(operation=end))
    await recall.episodes.EraseMemoryScope(memories.EraseMemoryScopeRequest(scope=shared))
    await plant_traces(recall, agent)


async def plant_traces(recall: Any, agent: str) -> None:
    """Writes the canary into every field of an imported line."""
    line = traces_pb2.RawTrace(
        id=CANARY, turn_id=CANARY, seq=1, trace_type=traces_pb2.TRACE_TYPE_TOOL_CALL, content=CANARY,
        source_event=CANARY, tool_name=CANARY, tool_call_id=f"{CANARY}2", tool_args=json.dumps({CANARY: CANARY}),
        tags=[CANARY], extra=json.dumps({CANARY: CANARY}), correlation_id=CANARY, create_time=Timestamp(seconds=1),
        media=traces_pb2.TraceMedia(audio=[CANARY]),
    )  # fmt: skip
    header = traces_service_pb2.ImportTracesHeader(agent_id=agent)
    parts = [
        traces_service_pb2.ImportTracesRequest(request_id="import", header=header),
        traces_service_pb2.ImportTracesRequest(record=traces_service_pb2.TraceRecord(raw_trace=line)),
    ]
    done = await recall.traces.ImportTraces(iter(parts))
    assert done.imported_traces == 1


async def told(lines: AsyncIterator[str]) -> list[str]:
    return [line async for line in lines]


async def test_no_erased_byte_is_left_in_the_files(serve: Any, tmp_path: Path, clock: FrozenClock) -> None:
    async with serve() as recall:
        kept = await plant_and_erase(recall)
        assert planted(tmp_path)
    report = await told(maintain(Config(port=0, data_dir=str(tmp_path), embedder=HASHING), clock=clock))
    assert planted(tmp_path) == []
    assert any(line.startswith("recall.db: ") for line in report)
    assert any("messages.3.mnemesh/hashing-256: 3 points kept" in line for line in report)
    async with serve() as recall:
        for mode in (rpc.SEARCH_MODE_TEXT, rpc.SEARCH_MODE_VECTOR):
            request = rpc.SearchMessagesRequest(query="harmless", agent_id=kept, mode=mode)
            assert (await recall.SearchMessages(request)).hits[0].text == "harmless"


@pytest.mark.full
async def test_postgresql_rewrites_its_tables(
    serve: Any, postgres_url: str, tmp_path: Path, clock: FrozenClock
) -> None:
    async with serve(database_url=postgres_url) as recall:
        await plant_and_erase(recall)

    async def files() -> list[int]:
        database = Database.open(postgres_url)
        names = sa.text("SELECT relfilenode FROM pg_class WHERE relname IN ('messages', 'message_terms') ORDER BY 1")
        found = await database.read(lambda conn: list(conn.execute(names).scalars()))
        await database.close()
        return found

    before = await files()
    config = Config(port=0, data_dir=str(tmp_path), database_url=postgres_url, embedder=HASHING)
    report = await told(maintain(config, clock=clock))
    assert not set(before) & set(await files())
    assert any(line.startswith("PostgreSQL database") for line in report)


async def test_maintenance_is_refused_while_the_service_runs(
    serve: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    environment = {**os.environ, "MNEMESH_DATA_DIR": str(tmp_path), "MNEMESH_EMBEDDER": HASHING}

    async def run(command: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = await asyncio.to_thread(run_service, main, command, environment=environment)
        return code, *capfd.readouterr()

    async with serve() as recall:
        await recall.AppendMessages(rpc.AppendMessagesRequest(agent_id=new_id("agent"), messages=[message("fox")]))
        code, out, errors = await run("maintain")
        assert (code, out, len(errors.splitlines())) == (2, "", 1)
        assert "in use by another process" in errors
    code, out, errors = await run("maintain")
    assert code == 0, errors
    assert "MB before" in out
    code, out, errors = await run("rebuild")
    assert code == 0, errors
    assert out.splitlines() == [
        "messages in the word index: 1",
        "memories.mnemesh/hashing-256: 0 points",
        "messages.3.mnemesh/hashing-256: 1 points",
    ]
    code, _, errors = await run("maintian")
    assert (code, "usage" in errors) == (2, True)


async def test_only_messages_in_a_window_outlive_the_retention_period(
    serve: Any, database_url: str, clock: FrozenClock
) -> None:
    agent, conversation = new_id("agent"), new_id("conv")
    clock_now = Timestamp()
    clock_now.FromDatetime(clock.now() - timedelta(days=8))
    old = [message(f"old fox {number}", create_time=clock_now) for number in range(230)]
    shown, young = message("shown fox", create_time=clock_now), message("young fox")
    async with serve(database_url=database_url) as recall:
        system = message("p", pb.ROLE_SYSTEM, create_time=clock_now)
        await recall.CreateContext(
            rpc.CreateContextRequest(agent_id=agent, conversation_id=conversation, messages=[system, shown])
        )
        await recall.AppendMessages(rpc.AppendMessagesRequest(agent_id=agent, messages=[*old, young]))
    database = Database.open(database_url)
    store = MessageStore(database, clock, RandomIds())

    class Listener:
        notified = 0

        def notify(self) -> None:
            self.notified += 1

    listener = Listener()
    policy = Retention(store, listener, clock, 7)  # type: ignore[arg-type]
    assert await Retention(store, listener, clock, 0).sweep() == 0  # type: ignore[arg-type]
    assert (await policy.sweep(), listener.notified) == (230, 1)
    assert await policy.sweep() == 0
    await database.close()
    async with serve(database_url=database_url) as recall:
        request = rpc.SearchMessagesRequest(query="fox", agent_id=agent, mode=rpc.SEARCH_MODE_TEXT)
        assert {hit.text for hit in (await recall.SearchMessages(request)).hits} == {"shown fox", "young fox"}
        window = (await recall.GetContext(rpc.GetContextRequest(conversation_id=conversation))).context
        assert [row.id for row in window.messages] == [system.id, shown.id]
        assert window.agent_message_count == 3


async def test_old_step_records_are_purged_except_for_the_newest(
    serve: Any, database_url: str, clock: FrozenClock
) -> None:
    agent, conversations = new_id("agent"), [new_id("conv"), new_id("conv")]

    def step(conversation: str, version: int) -> rpc.CommitStepRequest:
        return rpc.CommitStepRequest(
            agent_id=agent,
            conversation_id=conversation,
            lease={"run_id": new_id("run"), "epoch": 1},  # type: ignore[arg-type]
            step_id=new_id("step"),
            base_version=version,
            messages=[message("fox")],
        )

    database = Database.open(database_url)
    store = MessageStore(database, clock, RandomIds())
    async with serve(database_url=database_url) as recall:
        steps = {}
        for conversation in conversations:
            await recall.CreateContext(
                rpc.CreateContextRequest(
                    agent_id=agent, conversation_id=conversation, messages=[message("p", pb.ROLE_SYSTEM)]
                )
            )
            for version in (1, 2, 3):
                steps[conversation, version] = step(conversation, version)
                await recall.CommitStep(steps[conversation, version])
        clock.advance(8 * 86_400)
        young = step(conversations[0], 4)
        await recall.CommitStep(young)
        assert await store.purge_steps(clock.now() - timedelta(days=7)) == 5
        assert await store.purge_steps(clock.now() - timedelta(days=7)) == 0
        for known in (young, steps[conversations[1], 3]):
            assert (await recall.CommitStep(known)).replayed
        window = (await recall.GetContext(rpc.GetContextRequest(conversation_id=conversations[0]))).context
        assert (len(window.messages), window.version) == (5, 5)
    await database.close()


async def test_indexer_reports_its_lag(tmp_path: Path) -> None:
    class Away(HashingEmbedder):
        is_away = True

        async def embed(self, texts: Any) -> list[Vector]:
            if self.is_away:
                raise EmbedderUnreachable("away")
            return await super().embed(texts)

    clock = FrozenClock(datetime(2026, 1, 1, tzinfo=UTC))
    database = Database.open(f"sqlite:///{tmp_path / 'recall.db'}")
    await database.migrate("mnemesh_recall")
    index, embedder = await FlatIndex.open(tmp_path / "index"), Away()
    store = MessageStore(database, clock, RandomIds())
    indexer = Indexer(Outbox(database, index_tables, clock), index, clock)
    await indexer.register(MESSAGES, MessageSource(IndexedMessages(database), MessageVectors(index, embedder)))
    await indexer.open()
    assert indexer.lag_seconds() == 0
    agent = new_id("agent")
    row = Message(
        id=new_id("message"), agent_id=agent, role=Role.USER, created_at=clock.now(), content=(TextPart("fox"),)
    )
    await store.append_messages(
        DEFAULT_PRINCIPAL.organization_id, MessageBatch(agent_id=agent, conversation_id=None, messages=(row,)), None
    )
    clock.advance(42)
    assert await indexer.catch_up() == 0
    assert indexer.lag_seconds() == 42
    embedder.is_away = False
    indexer.retry()
    assert await indexer.catch_up() == 1
    assert indexer.lag_seconds() == 0
    await index.close()
    await database.close()
