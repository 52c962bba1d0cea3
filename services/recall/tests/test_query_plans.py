"""No call reads a whole table, and none reads more rows because other agents have more messages."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest
import sqlalchemy as sa
from mnemesh.recall.v1 import messages_service_pb2 as rpc
from mnemesh.types.v1 import message_pb2 as pb
from mnemesh_kit.ids import derive_id, new_id
from mnemesh_kit.sql import Database
from mnemesh_testkit.databases.query_plans import PlannedEngine, Watch, grown, seen

EACH: Final = 60
FEW, MANY = 3, 40
"""The number of agents at the first and the second measurement of a call."""
BIG: Final = ("messages", "message_words", "message_terms", "tool_call_rows", "context_entries", "step_commits")
COLOURS: Final = ["red", "green", "blue", "yellow", "black", "white", "brown", "orange", "purple", "grey"]
BEGAN: Final = datetime(2026, 1, 1, tzinfo=UTC)

Serve = Callable[..., AbstractAsyncContextManager[Any]]
Call = Callable[[Any], Awaitable[Any]]


def agent(number: int) -> str:
    return derive_id("agent", str(number))


def conversation(number: int, name: str = "") -> str:
    return derive_id("conv", str(number), name)


def said(number: int, place: int) -> pb.Message:
    """Returns the message at a position of an agent's history. Every seventh has a call; its return follows."""
    text = f"{COLOURS[place % 10]} thing {place} of number{number}, seen with {COLOURS[(place * 3) % 10]} eyes"
    created = pb.Message(
        id=derive_id("message", str(number), str(place)),
        agent_id=agent(number),
        conversation_id=conversation(number),
        role=pb.ROLE_ASSISTANT if place % 2 else pb.ROLE_USER,
        run_id=derive_id("run", str(number), str(place // 10)),
        step_id=derive_id("step", str(number), str(place)),
        turn_id=derive_id("turn", str(number), str(place // 10)),
        otid=derive_id("otid", str(number), str(place)),
    )
    created.create_time.FromDatetime(BEGAN + timedelta(days=number, minutes=place))
    if place % 14 == 7:
        created.tool_calls.add(id=derive_id("call", str(number), str(place)), name="look", arguments="{}")
    created.content.add().text.text = text
    return created


async def fill(recall: Any, numbers: range) -> None:
    for number in numbers:
        system = pb.Message(id=derive_id("message", str(number), "system"), agent_id=agent(number), role=pb.ROLE_SYSTEM)
        system.content.add().text.text = "Remember."
        await recall.CreateContext(
            rpc.CreateContextRequest(
                agent_id=agent(number),
                conversation_id=conversation(number),
                messages=[system, *(said(number, place) for place in range(10))],
            )
        )
        rest = [said(number, place) for place in range(10, EACH)]
        await recall.AppendMessages(rpc.AppendMessagesRequest(agent_id=agent(number), messages=rest))
    for number in numbers:
        await indexed(recall, number)


async def indexed(recall: Any, number: int) -> None:
    """Waits until the last message of an agent is in the vector index."""
    wanted = rpc.SearchMessagesRequest(
        query=said(number, EACH - 1).content[0].text.text, mode=rpc.SEARCH_MODE_VECTOR, agent_id=agent(number)
    )
    while derive_id("message", str(number), str(EACH - 1)) not in {
        hit.message.id for hit in (await recall.SearchMessages(wanted)).hits
    }:
        await asyncio.sleep(0.02)


def listing(**wanted: Any) -> Call:
    return lambda recall: recall.ListMessages(rpc.ListMessagesRequest(page_size=5, **wanted))


def searching(query: str, mode: int = rpc.SEARCH_MODE_HYBRID, **wanted: Any) -> Call:
    return lambda recall: recall.SearchMessages(rpc.SearchMessagesRequest(query=query, mode=mode, limit=5, **wanted))


def scope(**which: Any) -> rpc.ConversationScope:
    return rpc.ConversationScope(**which)


def middle(number: int = 1) -> str:
    return derive_id("message", str(number), str(EACH // 2))


MINE: Final = {"agent_ids": [agent(1)]}
READS: Final[dict[str, Call]] = {
    "GetContext": lambda recall: recall.GetContext(rpc.GetContextRequest(conversation_id=conversation(1))),
    "GetContext, not modified": lambda recall: recall.GetContext(
        rpc.GetContextRequest(conversation_id=conversation(1), if_version=1)
    ),
    "BatchGetContextIds": lambda recall: recall.BatchGetContextIds(
        rpc.BatchGetContextIdsRequest(conversation_ids=[conversation(1), conversation(2)])
    ),
    "GetMessages": lambda recall: recall.GetMessages(rpc.GetMessagesRequest(message_ids=[middle(1), middle(2)])),
    "List of an agent": listing(**MINE),
    "List of an agent, newest first": listing(**MINE, order=2),
    "List of an agent, after": listing(**MINE, after_id=middle()),
    "List of an agent, before, newest first": listing(**MINE, before_id=middle(), order=2),
    "List of an agent, between sequence ids": listing(**MINE, after_sequence_id=30, until_sequence_id=40),
    "List of several agents, after": listing(agent_ids=[agent(1), agent(2)], after_id=middle()),
    "List of a role": listing(**MINE, roles=[pb.ROLE_USER], after_id=middle()),
    "List of a time": listing(
        **MINE, start_time=BEGAN + timedelta(days=1, minutes=20), end_time=BEGAN + timedelta(days=1, minutes=40)
    ),
    "List of a text": listing(**MINE, text_search="thing 33"),
    "List of a conversation": listing(**MINE, conversation=scope(conversation_id=conversation(1))),
    "List of a conversation alone": listing(conversation=scope(conversation_id=conversation(1)), after_id=middle()),
    "List of a run": listing(run_id=derive_id("run", "1", "2"), order=2),
    "List of a step": listing(step_id=derive_id("step", "1", "20"), order=2),
    "List of a turn": listing(turn_id=derive_id("turn", "1", "2"), order=2),
    "List of an otid": listing(otid=derive_id("otid", "1", "20"), order=2),
    "List of a tool call": listing(tool_call_id=derive_id("call", "1", "21"), order=2),
    "List of the organization": listing(),
    "List of the organization, after": listing(after_id=middle(), order=1),
    "List of the organization, newest first": listing(before_id=middle(), order=2),
    "List of the organization, of a time": listing(
        start_time=BEGAN + timedelta(days=1, minutes=20), end_time=BEGAN + timedelta(days=1, minutes=40)
    ),
    "Search, a rare word": searching("thing 33", agent_id=agent(1)),
    "Search, words": searching("the red thing with blue eyes", rpc.SEARCH_MODE_TEXT, agent_id=agent(1)),
    "Search, meaning": searching("the red thing with blue eyes", rpc.SEARCH_MODE_VECTOR, agent_id=agent(1)),
    "Search, both": searching("the red thing with blue eyes", agent_id=agent(1)),
    "Search of a role and time": searching(
        "red thing", agent_id=agent(1), roles=[pb.ROLE_USER], start_date="2026-01-02", end_date="2026-01-02T00:30"
    ),
    "Search of a conversation": searching(
        "red thing", agent_id=agent(1), conversation=scope(conversation_id=conversation(1))
    ),
    "Search without known messages": searching("red thing", agent_id=agent(1), exclude_message_ids=[middle()]),
    "Search with the messages around hits": searching(
        "red thing", agent_id=agent(1), messages_before=3, messages_after=3
    ),
    "Search of a sender": searching("red thing", agent_id=agent(1), sender_ids=["someone"], speakers=["Ada"]),
    "Search, the newest": searching("", agent_id=agent(1)),
    "Search of the organization, a rare word": searching("number1", rpc.SEARCH_MODE_TEXT),
    "Search of the organization, the newest": searching(""),
}


def step(name: str) -> Call:
    def call(recall: Any) -> Awaitable[Any]:
        answer = said(1, 0)
        answer.id, answer.otid, answer.step_id = new_id("message"), "", derive_id("step", name)
        answer.ClearField("otid")
        request = rpc.CommitStepRequest(
            agent_id=agent(1), conversation_id=conversation(1), step_id=derive_id("step", name), base_version=1
        )
        request.messages.append(answer)
        request.lease.run_id, request.lease.epoch = derive_id("run", name), 1
        return recall.CommitStep(request)  # type: ignore[no-any-return]

    return call


@dataclass
class Writes:
    """Writing calls. Each repetition changes another row."""

    place: int = 40
    made: dict[str, Call] = field(default_factory=dict)

    def next(self) -> dict[str, Call]:
        """Returns one call of each kind."""
        self.place += 1
        place, name = self.place, f"write {self.place}"
        changed = said(1, place)
        changed.content[0].text.text = f"changed thing {place}"
        fork = pb.Message(id=new_id("message"), agent_id=agent(1), role=pb.ROLE_SYSTEM)
        fork.content.add().text.text = "Fork."
        update = rpc.UpdateMessageRequest(message=changed)
        update.update_mask.paths.append("content")
        fresh = said(1, 0)
        fresh.id = new_id("message")
        erased = agent(place - 41 + 900)
        return {
            "CommitStep": step(name),
            "AppendMessages": lambda recall: recall.AppendMessages(
                rpc.AppendMessagesRequest(agent_id=agent(1), messages=[fresh])
            ),
            "UpdateMessage": lambda recall: recall.UpdateMessage(update),
            "DeleteMessage": lambda recall: recall.DeleteMessage(
                rpc.DeleteMessageRequest(message_id=derive_id("message", "1", str(place - 20)))
            ),
            "ForkContext": lambda recall: recall.ForkContext(
                rpc.ForkContextRequest(
                    source_conversation_id=conversation(1), conversation_id=conversation(1, name), system_message=fork
                )
            ),
            "DeleteContext": lambda recall: recall.DeleteContext(
                rpc.DeleteContextRequest(conversation_id=conversation(1, name), delete_messages=True)
            ),
            "EraseAgent": lambda recall: recall.EraseAgent(rpc.EraseAgentRequest(agent_id=erased)),
        }


@pytest.fixture(params=["sqlite", "postgresql"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> PlannedEngine:
    if request.param == "sqlite":
        return PlannedEngine("mnemesh_recall", f"sqlite:///{tmp_path / 'recall.db'}", slack=2_000)
    return PlannedEngine("mnemesh_recall", str(request.getfixturevalue("postgres_url")), slack=300)


async def watched_twice(
    serve: Serve, engine: PlannedEngine, calls: Callable[[], dict[str, Call]]
) -> tuple[dict[str, Watch], dict[str, Watch]]:
    """Measures every call with few agents and with many."""
    await engine.prepare()
    found = []
    async with serve(database_url=engine.url) as recall:
        for numbers in (range(FEW), range(FEW, MANY)):
            await fill(recall, numbers)
            await engine.analyze()
            found.append({name: await seen(lambda call=call: call(recall)) for name, call in calls().items()})
    few, many = found
    return few, many


async def test_cost_of_a_call_does_not_grow_with_other_agents(serve: Serve, engine: PlannedEngine) -> None:
    writes = Writes()
    few, many = await watched_twice(serve, engine, lambda: {**READS, **writes.next()})
    assert not (found := grown(few, many, BIG, engine.slack, more_than=EACH * FEW)), "\n".join(found)


@pytest.mark.full
@pytest.mark.parametrize("index", ["ix_messages_run_id", pytest.param("ux_messages_sequence", marks=pytest.mark.sweep)])
async def test_missing_index_is_detected(serve: Serve, engine: PlannedEngine, index: str) -> None:
    await engine.execute(f"DROP INDEX {index}")
    few, many = await watched_twice(serve, engine, lambda: READS)
    assert grown(few, many, BIG, engine.slack, more_than=EACH * FEW)


async def test_pending_list_of_the_full_text_index_is_bounded(serve: Serve, postgres_url: str) -> None:
    async with serve(database_url=postgres_url) as recall:
        for batch in range(10):
            messages = [said(1, place) for place in range(batch * 30, batch * 30 + 30)]
            for place, message in enumerate(messages):
                # All words are new, and each is also in the context of four other messages.
                message.content[0].text.text = " ".join(f"w{batch}x{place}x{word}" for word in range(60))
            await recall.AppendMessages(rpc.AppendMessagesRequest(agent_id=agent(1), messages=messages))
    database = Database.open(postgres_url)
    pages = await database.write(lambda conn: conn.scalar(sa.text("SELECT gin_clean_pending_list('ix_message_terms')")))
    await database.close()
    assert pages < 100
