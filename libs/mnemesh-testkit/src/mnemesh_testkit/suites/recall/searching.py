"""SearchMessages: its results and their order."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp
from mnemesh.recall.v1 import messages_service_pb2 as rpc
from mnemesh.types.v1 import message_pb2 as pb
from mnemesh_kit.ids import new_id

from mnemesh_testkit.suites.recall.calls import Conversation, RecallCases, message, part

HOSTILE = (
    '"', "'", '"unbalanced', "a AND", "NEAR(", "body:", "scope:x", "*", "-", "^", "(((", "🎸🎸", "'; DROP TABLE", "\\",
    "&|!<->:*",
)  # fmt: skip


HEARTBEAT = json.dumps({"type": "heartbeat", "reason": "zebra", "time": "t"})


def at(text: str) -> Timestamp:
    """A time."""
    stamp = Timestamp()
    stamp.FromDatetime(datetime.fromisoformat(text).astimezone(UTC))
    return stamp


def spoken(role: str, text: str = "", time: str = "2026-01-10T12:00+00:00", **more: Any) -> pb.Message:
    """A message of that time."""
    return message(text, pb.Role.Value(f"ROLE_{role}"), create_time=at(time), **more)


def sent(text: str) -> pb.Message:
    """Returns an assistant's call of `send_message`."""
    call = pb.ToolCall(id=new_id("call"), name="send_message", arguments=json.dumps({"message": text}))
    return spoken("ASSISTANT", tool_calls=[call])


def returned(name: str, text: str) -> pb.Message:
    """Returns the result of a tool."""
    item = pb.ToolReturn(tool_call_id="c", name=name, status=pb.TOOL_RETURN_STATUS_SUCCESS, content=[part(text)])
    return spoken("TOOL", tool_returns=[item])


async def store(chat: Conversation, *messages: pb.Message, agent: str | None = None, **more: Any) -> None:
    """Stores messages of the conversation's agent, or of another."""
    given = {"agent_id": agent or chat.agent_id, "messages": messages, **more}
    await chat.stub.AppendMessages(rpc.AppendMessagesRequest(**given))


class Searching(RecallCases):
    """Words, roles, dates and excluded messages; and vectors, once the index has followed."""

    async def test_words_are_found_at_once_and_ranked(self, chat: Conversation) -> None:
        await store(
            chat,
            spoken("USER", "I play the guitar"),
            sent("What music do you like?"),
            spoken("USER", "Mostly jazz guitar, on an old guitar"),
            sent("And food?"),
            spoken("USER", "Pancakes"),
        )
        hits = await chat.found("who plays guitars?")
        assert hits[0] in ("I play the guitar", "Mostly jazz guitar, on an old guitar")
        assert {"I play the guitar", "Mostly jazz guitar, on an old guitar"} <= set(hits[:3])
        # A neighbour's words count in part: the question is found by its answer, after the answer.
        assert (await chat.found("pancakes"))[0] == "Pancakes"
        assert "And food?" in await chat.found("pancakes")
        assert "I play the guitar" not in await chat.found("pancakes")

    async def test_rare_word_has_a_higher_weight_than_a_common_one(self, chat: Conversation) -> None:
        for number in range(30):
            await store(
                chat,
                spoken("USER", f"work work meeting {number}", f"2026-01-{number % 28 + 1:02d}T12:00+00:00"),
            )
        await store(chat, spoken("USER", "the giraffe came to work", "2026-05-01T12:00+00:00"))
        assert (await chat.found("work giraffe"))[0] == "the giraffe came to work"

    async def test_name_of_the_speaker_and_date_are_searchable(self, chat: Conversation) -> None:
        await store(
            chat,
            spoken("USER", "We went to the beach", "2023-05-08T12:00+00:00", name="Caroline"),
            spoken("USER", "We went to the beach", "2023-07-08T12:00+00:00", name="Melanie"),
            spoken("USER", "We went to the beach", "2023-09-08T12:00+00:00", name="Caroline"),
        )

        async def day(query: str) -> int:
            request = rpc.SearchMessagesRequest(query=query, agent_id=chat.agent_id, mode=rpc.SEARCH_MODE_TEXT)
            (best, *_) = (await chat.stub.SearchMessages(request)).hits
            return int(best.message.create_time.ToDatetime().month)

        assert await day("When did Melanie go to the beach?") == 7
        assert await day("Who went to the beach in May 2023?") == 5
        assert await day("Did Caroline go to the beach in September?") == 9

    async def test_system_messages_events_and_search_calls_are_never_found(self, chat: Conversation) -> None:
        search = pb.ToolCall(id="c", name="conversation_search", arguments='{"query": "zebra"}')
        await store(
            chat,
            spoken("SYSTEM", "zebra prompt"),
            spoken("SUMMARY", "zebra summary"),
            spoken("USER", HEARTBEAT, is_event=True),
            spoken("ASSISTANT", "looking for the zebra", tool_calls=[search]),
            returned("conversation_search", "zebra was found"),
            returned("send_message", "zebra"),
            returned("zoo", "a zebra named Kim"),
            sent("There is a zebra"),
        )
        assert set(await chat.found("zebra")) == {"a zebra named Kim", "There is a zebra"}
        assert await chat.found("zebra", roles=[pb.ROLE_TOOL]) == ["a zebra named Kim"]
        assert await chat.found("zebra", roles=[pb.ROLE_ASSISTANT]) == ["There is a zebra"]
        assert await chat.found("zebra", roles=[pb.ROLE_USER]) == []
        assert len(await chat.found("zebra", limit=1)) == 1
        assert await chat.found("") == ["There is a zebra", "a zebra named Kim"]

    async def test_words_of_a_user_that_look_like_an_event_are_found(self, chat: Conversation) -> None:
        await store(chat, spoken("USER", HEARTBEAT))
        assert await chat.found("zebra") == [HEARTBEAT]

    async def test_search_applies_scopes_dates_and_exclusions(self, chat: Conversation) -> None:
        await chat.open()
        # 23:30 in Berlin on the 20th, and 00:30 on the 21st.
        late = spoken("USER", "tea late", "2026-01-20T22:30+00:00")
        await store(chat, late, spoken("USER", "tea early", "2026-01-20T23:30+00:00"), conversation_id=chat.id)
        await store(chat, spoken("USER", "tea elsewhere", "2025-06-01T12:00+00:00"))
        await store(chat, spoken("USER", "tea of another agent"), agent=new_id("agent"))
        berlin = {"time_zone": "Europe/Berlin"}
        assert await chat.found("tea", start_date="2026-01-20", end_date="2026-01-20", **berlin) == ["tea late"]
        assert await chat.found("tea", start_date="2026-01-21", **berlin) == ["tea early"]
        assert await chat.found("tea", start_date="2026-01-20", end_date="2026-01-20") == [
            "tea early",
            "tea late",
        ]
        assert await chat.found("tea", end_date="2025-12-31") == ["tea elsewhere"]
        scope = rpc.ConversationScope(conversation_id=chat.id)
        assert set(await chat.found("tea", conversation=scope)) == {"tea late", "tea early"}
        assert "tea late" not in await chat.found("tea", exclude_message_ids=[late.id])
        everywhere = rpc.SearchMessagesRequest(query="tea", mode=rpc.SEARCH_MODE_TEXT)
        assert len((await chat.stub.SearchMessages(everywhere)).hits) == 4

    async def test_queries_with_special_characters_are_accepted(self, chat: Conversation) -> None:
        await store(chat, spoken("USER", "nothing but sandpaper"))
        for query in HOSTILE:
            assert await chat.found(query) == []
            assert await chat.found(f"{query} sandpaper") == ["nothing but sandpaper"]

    async def test_scripts_without_spaces_and_accents_are_found(self, chat: Conversation) -> None:
        await store(chat, spoken("USER", "昨日、東京タワーに行きました"), spoken("USER", "Un café à Zürich"))
        assert (await chat.found("東京"))[0].startswith("昨日")
        assert (await chat.found("cafe zurich"))[0] == "Un café à Zürich"
        assert await chat.found("京都") == []

    async def test_text_and_vector_hits_are_fused_with_their_ranks(self, chat: Conversation) -> None:
        await store(chat, spoken("USER", "purple monkey dishwasher"), spoken("USER", "green apple"))
        wanted = rpc.SearchMessagesRequest(query="purple monkey", agent_id=chat.agent_id)
        hits: list[rpc.MessageHit] = []
        async with asyncio.timeout(60):
            while not hits or not hits[0].HasField("vector_rank"):  # the index follows in its own time
                hits = list((await chat.stub.SearchMessages(wanted)).hits)
        assert (hits[0].text, hits[0].vector_rank, hits[0].text_rank) == ("purple monkey dishwasher", 1, 1)
        assert (hits[0].mode, hits[0].score > 0) == (rpc.SEARCH_MODE_HYBRID, True)
        wanted.mode = rpc.SEARCH_MODE_VECTOR
        (best, *_) = (await chat.stub.SearchMessages(wanted)).hits
        assert (best.text, best.vector_rank, best.HasField("text_rank")) == ("purple monkey dishwasher", 1, False)
        # Gone from the store is gone from the hits, whatever the index still holds.
        await chat.stub.DeleteMessage(rpc.DeleteMessageRequest(message_id=best.message.id))
        left = (await chat.stub.SearchMessages(wanted)).hits
        assert best.message.id not in [hit.message.id for hit in left]
