"""Requests of EpisodeService, for its tests."""

from datetime import UTC, datetime
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp
from mnemesh.recall.v1 import episodes_pb2
from mnemesh.recall.v1 import episodes_service_pb2 as rpc
from mnemesh.recall.v1 import messages_service_pb2 as messages
from mnemesh.types.v1 import message_pb2
from mnemesh_kit.ids import new_id

AGENT, PEER, CONVERSATION = new_id("agent"), new_id("agent"), new_id("conv")
MINE, TEAM = episodes_pb2.MemoryScope(agent_id=AGENT), episodes_pb2.MemoryScope(name="team/support")
DAY = 86_400.0
Operation = episodes_pb2.FactOperation


def rests_on(*message_ids: str, **more: Any) -> episodes_pb2.MemorySource:
    return episodes_pb2.MemorySource(message_ids=message_ids, **more)


def at(moment: datetime) -> Timestamp:
    stamp = Timestamp()
    stamp.FromDatetime(moment)
    return stamp


def fact(text: str, scope: episodes_pb2.MemoryScope = MINE, **more: Any) -> episodes_pb2.Fact:
    return episodes_pb2.Fact(text=text, scope=scope, **more)


async def learn(recall: Any, text: str, **more: Any) -> episodes_pb2.Fact:
    created = await recall.episodes.CreateFact(rpc.CreateFactRequest(fact=fact(text, **more)))
    return created.fact  # type: ignore[no-any-return]


async def supersede(recall: Any, old: episodes_pb2.Fact, text: str, **more: Any) -> rpc.SupersedeFactResponse:
    operation = episodes_pb2.SupersedeOperation(fact_id=old.id, fact=episodes_pb2.Fact(text=text, **more))
    return await recall.episodes.SupersedeFact(rpc.SupersedeFactRequest(operation=operation))  # type: ignore[no-any-return]


async def held(recall: Any, **filters: Any) -> list[str]:
    wanted = rpc.FactFilter(**{"scopes": [MINE], **filters})
    listed = await recall.episodes.ListFacts(rpc.ListFactsRequest(filter=wanted))
    return [item.text for item in listed.facts]


async def open_window(recall: Any, *texts: str, agent: str = AGENT, conversation: str = CONVERSATION) -> list[str]:
    rows = [
        message_pb2.Message(
            id=new_id("message"),
            role=message_pb2.ROLE_USER if place else message_pb2.ROLE_SYSTEM,
            content=[message_pb2.ContentPart(text=message_pb2.TextPart(text=text))],
            create_time=at(datetime(2026, 1, 1 + place, tzinfo=UTC)),
        )
        for place, text in enumerate(("prompt", *texts))
    ]
    await recall.CreateContext(
        messages.CreateContextRequest(agent_id=agent, conversation_id=conversation, messages=rows)
    )
    return [row.id for row in rows]


def look_back(**more: Any) -> rpc.CommitEpisodeRequest:
    return rpc.CommitEpisodeRequest(**{"scope": MINE, **more})


def summary(text: str = "They spoke of travel.", **more: Any) -> episodes_pb2.Episode:
    return episodes_pb2.Episode(summary=text, **more)
