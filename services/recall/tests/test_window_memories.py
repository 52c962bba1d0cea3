"""The memories of messages that leave a window are stored with the new window, or neither is."""

from typing import Any

import pytest
from mnemesh.recall.v1 import contexts_pb2, episodes_pb2
from mnemesh.recall.v1 import episodes_service_pb2 as rpc
from mnemesh.recall.v1 import messages_service_pb2 as messages
from mnemesh.types.v1 import message_pb2
from mnemesh_kit.errors import InvalidArgument, MnemeshError
from mnemesh_kit.ids import new_id
from mnemesh_kit.time import FrozenClock
from mnemesh_testkit.errors import catch_refusal

from .episode_requests import AGENT, CONVERSATION, DAY, MINE, TEAM, held, learn, open_window, supersede

Commit = episodes_pb2.EpisodeCommit
Operation = episodes_pb2.FactOperation


def memory(summary: str, *operations: Operation, scope: episodes_pb2.MemoryScope = MINE) -> Commit:
    return Commit(scope=scope, episode=episodes_pb2.Episode(summary=summary), operations=operations)


def added(text: str) -> Operation:
    return Operation(add=episodes_pb2.Fact(text=text))


async def kept(recall: Any, *scopes: episodes_pb2.MemoryScope) -> list[str]:
    wanted = rpc.EpisodeFilter(scopes=scopes or [MINE])
    listed = await recall.episodes.ListEpisodes(rpc.ListEpisodesRequest(filter=wanted))
    return [episode.summary for episode in listed.episodes]


async def window(recall: Any) -> tuple[int, list[str]]:
    shown = await recall.GetContext(messages.GetContextRequest(conversation_id=CONVERSATION))
    return shown.context.version, [message.content[0].text.text for message in shown.context.messages]


async def replacing(recall: Any, *memories: Commit, **more: Any) -> messages.ReplaceContextRequest:
    """Returns a request that replaces the first message after the prompt by a summary."""
    system, _, last = await open_window(recall, "one", "two")
    summary = message_pb2.Message(
        id=new_id("message"),
        role=message_pb2.ROLE_SUMMARY,
        content=[message_pb2.ContentPart(text=message_pb2.TextPart(text="so far"))],
    )
    arguments: dict[str, Any] = {
        "request_id": "r-1",
        "agent_id": AGENT,
        "conversation_id": CONVERSATION,
        "base_version": 1,
        "message_ids": [system, summary.id, last],
        "new_messages": [summary],
        "memories": memories,
    }
    return messages.ReplaceContextRequest(**{**arguments, **more})


async def test_window_and_memories_are_written_together_and_a_repeat_is_idempotent(
    recall: Any, clock: FrozenClock
) -> None:
    red = await learn(recall, "the boat is red")
    blue = Operation(
        supersede=episodes_pb2.SupersedeOperation(fact_id=red.id, fact=episodes_pb2.Fact(text="the boat is blue"))
    )
    request = await replacing(
        recall, memory("of boats", blue, added("Ada sails")), memory("of a team", added("they meet"), scope=TEAM)
    )
    first = await recall.ReplaceContext(request)
    assert (await recall.ReplaceContext(request)) == first
    assert await window(recall) == (2, ["prompt", "so far", "two"])
    assert (await kept(recall), await kept(recall, TEAM)) == (["of boats"], ["of a team"])
    assert sorted(await held(recall)) == ["Ada sails", "the boat is blue"]
    assert await held(recall, scopes=[TEAM]) == ["they meet"]
    found = await recall.episodes.SearchFacts(rpc.SearchFactsRequest(query="sails", filter={"scopes": [MINE]}))
    (hit,) = found.hits
    assert hit.fact.source.episode_id.startswith("episode-")


async def test_second_replacement_with_another_request_id_is_refused(recall: Any, clock: FrozenClock) -> None:
    request = await replacing(recall, memory("of boats", added("Ada sails")))
    await recall.ReplaceContext(request)
    clock.advance(30 * DAY)
    request.request_id = "what-another-calls-it"
    assert (await catch_refusal(recall.ReplaceContext(request))).reason == "WINDOW_MOVED"
    assert await kept(recall) == ["of boats"]
    assert await held(recall) == ["Ada sails"]


async def test_no_memory_is_stored_if_the_window_moved_or_the_lease_is_lost(recall: Any) -> None:
    request = await replacing(recall, memory("of boats", added("Ada sails")), base_version=7)
    assert (await catch_refusal(recall.ReplaceContext(request))).reason == "WINDOW_MOVED"
    lease = contexts_pb2.WriterLease(run_id=new_id("run"), epoch=3)
    commit = rpc.CommitEpisodeRequest(
        scope=MINE, operations=[added("it rains")], conversation_id=CONVERSATION, lease=lease
    )
    await recall.episodes.CommitEpisode(commit)
    lease.epoch = 2
    late = messages.ReplaceContextRequest()
    late.CopyFrom(request)
    late.base_version = 1
    late.lease.CopyFrom(lease)
    assert (await catch_refusal(recall.ReplaceContext(late))).reason == "LEASE_LOST"
    assert await kept(recall) == []
    assert await held(recall) == ["it rains"]
    assert (await window(recall))[1] == ["prompt", "one", "two"]


@pytest.mark.parametrize("place", [0, 1])
async def test_refused_memory_leaves_the_window_unchanged(recall: Any, place: int) -> None:
    red = await learn(recall, "the boat is red")
    await supersede(recall, red, "the boat is blue")
    stale = memory("stale", Operation(confirm=episodes_pb2.ConfirmOperation(fact_id=red.id)))
    good = memory("good", added("Ada sails"))
    request = await replacing(recall, *((stale, good) if place == 0 else (good, stale)))
    error = await catch_refusal(recall.ReplaceContext(request))
    assert (error.reason, error.metadata["fact_id"]) == ("FACT_CLOSED", red.id)
    assert await kept(recall) == []
    assert await held(recall) == ["the boat is blue"]
    assert await window(recall) == (1, ["prompt", "one", "two"])
    del request.memories[place]
    await recall.ReplaceContext(request)
    assert await kept(recall) == ["good"], "what was refused was not kept under the request's id"
    assert (await window(recall))[1] == ["prompt", "so far", "two"]


@pytest.mark.parametrize(
    ("commit", "field"),
    [
        (Commit(scope=MINE), "memories[1].episode"),
        (Commit(scope=MINE, episode={"summary": ""}), "memories[1].episode.summary"),
        (Commit(scope=MINE, operations=[Operation()]), "memories[1].operations[0]"),
        (Commit(episode={"summary": "without a scope"}), "episode.scope"),
        (Commit(scope=MINE, operations=[added("x")] * 1_001), "memories[1].operations"),
    ],
)
async def test_invalid_memories_are_refused_by_field(recall: Any, commit: Commit, field: str) -> None:
    request = await replacing(recall, memory("good", added("Ada sails")), commit)
    error: MnemeshError = await catch_refusal(recall.ReplaceContext(request))
    assert isinstance(error, InvalidArgument)
    assert error.field == field
    assert (await kept(recall), await held(recall)) == ([], [])
    assert (await window(recall))[0] == 1


async def test_more_than_a_hundred_memories_are_refused(recall: Any) -> None:
    request = await replacing(recall, *[memory(f"{number}") for number in range(101)])
    assert (await catch_refusal(recall.ReplaceContext(request))).field == "memories"
    del request.memories[100]
    await recall.ReplaceContext(request)
    assert len(await kept(recall)) == 50, "a page of them"
