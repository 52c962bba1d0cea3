"""SearchMessages: what surrounds a hit, who said it, and the times that queries name."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from mnemesh.recall.v1 import messages_service_pb2 as rpc
from mnemesh.types.v1 import message_pb2 as pb
from mnemesh_kit.ids import new_id

from mnemesh_testkit.suites.recall.calls import Conversation, RecallCases, said
from mnemesh_testkit.suites.recall.searching import at, returned, spoken, store


async def hits_of(chat: Conversation, query: str, **more: Any) -> list[rpc.MessageHit]:
    """Returns the hits that the words of a query find in the agent's messages."""
    given = {"query": query, "agent_id": chat.agent_id, "mode": rpc.SEARCH_MODE_TEXT, **more}
    return list((await chat.stub.SearchMessages(rpc.SearchMessagesRequest(**given))).hits)


class Asking(RecallCases):
    """Neighbours and questions of hits, speakers, senders, and expressions of time."""

    async def test_a_hit_has_the_messages_around_it(self, chat: Conversation) -> None:
        await chat.open()
        await store(
            chat,
            *(spoken("USER" if n % 2 else "ASSISTANT", f"turn {n}", f"2026-01-10T12:{n:02d}+00:00") for n in range(4)),
            returned("zoo", "a result of a tool"),
            spoken("USER", "the walrus sleeps", "2026-01-10T12:10+00:00"),
            spoken("SYSTEM", "a system message"),
            spoken("ASSISTANT", "turn 5", "2026-01-10T12:11+00:00"),
            conversation_id=chat.id,
        )
        await store(chat, spoken("USER", "of no conversation"))
        (hit,) = await hits_of(chat, "walrus", messages_before=2, messages_after=3, limit=1)
        assert (said(hit.before), said(hit.after)) == (["turn 2", "turn 3"], ["turn 5"])
        (hit,) = await hits_of(chat, "walrus", limit=1)
        assert (len(hit.before), len(hit.after), hit.HasField("question")) == (0, 0, False)
        newest = await hits_of(chat, "", messages_before=1, limit=2)
        assert [said(each.before) for each in newest] == [[], ["the walrus sleeps"]]

    async def test_messages_without_a_conversation_surround_each_other(self, chat: Conversation) -> None:
        await store(chat, *(spoken("USER", text) for text in ("one", "two", "the heron", "four")))
        (hit,) = await hits_of(chat, "heron", messages_before=10, messages_after=10, limit=1)
        assert (said(hit.before), said(hit.after)) == (["one", "two"], ["four"])

    async def test_neighbours_beyond_the_size_of_a_response_are_left_out(self, chat: Conversation) -> None:
        arguments = json.dumps({"text": "x" * 900_000})
        for place in range(6):
            calls = [] if place == 3 else [pb.ToolCall(id=new_id("call"), name="dig", arguments=arguments)]
            await store(chat, spoken("ASSISTANT", "a heron" if place == 3 else "digging", tool_calls=calls))
        (hit,) = await hits_of(chat, "heron", messages_before=3, messages_after=3, limit=1)
        assert (len(hit.before), len(hit.after)) == (3, 1)

    async def test_a_hit_has_the_question_that_it_may_answer(self, chat: Conversation) -> None:
        await store(
            chat,
            spoken("USER", "Which instrument do you play?"),
            spoken("ASSISTANT", "The oboe. And you?"),
            spoken("USER", "Nothing at all"),
            spoken("ASSISTANT", "A pity"),
            spoken("USER", "Where is the ferret?"),
            spoken("USER", "The ferret is mine"),
            spoken("ASSISTANT", "Do you see a badger?"),
            spoken("USER", "A badger at last", "2026-01-11T12:00+00:00"),
        )
        questions = {
            each.text: said([each.question])
            for word in ("oboe", "nothing", "pity", "mine", "last")
            for each in await hits_of(chat, word, limit=1)
            if each.HasField("question")
        }
        assert questions == {
            "The oboe. And you?": ["Which instrument do you play?"],
            "Nothing at all": ["The oboe. And you?"],
        }

    async def test_several_queries_find_what_each_of_them_finds(self, chat: Conversation) -> None:
        times = [f"2026-01-{day:02d}T12:00+00:00" for day in range(10, 15)]
        texts = ("The otter swims", "The stoat sleeps", "A gull", "An otter, a stoat", "Nothing")
        await store(chat, *(spoken("USER", text, time) for text, time in zip(texts, times, strict=True)))
        found = await hits_of(chat, "otter swimming", further_queries=["sleeping stoat", " ", "gull", "otter swimming"])
        assert {hit.text for hit in found[:3]} == {"The otter swims", "The stoat sleeps", "A gull"}
        assert [hit.text for hit in found[3:]] == ["An otter, a stoat"]
        assert [hit.text for hit in await hits_of(chat, "", further_queries=["gull"])] == ["A gull"]
        assert len(await hits_of(chat, "", further_queries=["", " "])) == 5

    async def test_speakers_and_senders_are_the_only_ones_found(self, chat: Conversation) -> None:
        await store(
            chat,
            spoken("USER", "purple monkey dishwasher of Zoë", name="Zoë", sender_id="user-1"),
            spoken("USER", "Ada Lovelace: purple monkey dishwasher", sender_id="user-2"),
            spoken("USER", "purple monkey dishwasher of nobody"),
            spoken("USER", "Zoë: purple monkey dishwasher by Ada", name="Ada"),
        )
        async with asyncio.timeout(60):
            while len(await hits_of(chat, "purple monkey", mode=rpc.SEARCH_MODE_VECTOR)) < 4:
                pass  # the index follows in its own time
        for mode in (rpc.SEARCH_MODE_TEXT, rpc.SEARCH_MODE_VECTOR, rpc.SEARCH_MODE_HYBRID):
            for wanted, found in (
                ({"speakers": ["ZOË"]}, {"purple monkey dishwasher of Zoë"}),
                (
                    {"speakers": ["ada lovelace", "Ada"]},
                    {"Ada Lovelace: purple monkey dishwasher", "Zoë: purple monkey dishwasher by Ada"},
                ),
                (
                    {"sender_ids": ["user-1", "user-2"]},
                    {
                        "purple monkey dishwasher of Zoë",
                        "Ada Lovelace: purple monkey dishwasher",
                    },
                ),
                ({"sender_ids": ["user-1"], "speakers": ["Ada"]}, set()),
            ):
                hits = await hits_of(chat, "purple monkey", **{"mode": mode, **wanted})
                assert {hit.text for hit in hits} == found
        assert [hit.text for hit in await hits_of(chat, "", speakers=["zoë"])] == ["purple monkey dishwasher of Zoë"]

    async def test_messages_of_a_named_time_come_first_and_others_are_found(self, chat: Conversation) -> None:
        months = [f"2025-{month:02d}-15T12:00+00:00" for month in (3, 5, 7)]
        await store(chat, *(spoken("USER", "We went to the beach", time) for time in months))

        async def order(query: str, **more: Any) -> list[int]:
            return [hit.message.create_time.ToDatetime().month for hit in await hits_of(chat, query, **more)]

        asked = at("2026-01-20T12:00+00:00")
        # The words of an expression do not count here, because no message has them.
        assert (await order("the beach between February and April", reference_time=asked))[0] == 3
        spring = await order("the beach last spring", reference_time=asked)
        assert (set(spring[:2]), spring[2]) == ({3, 5}, 7)
        assert await order("the beach last spring") == await order("the beach")

    async def test_expressions_of_time_are_resolved_in_the_zone_of_the_search(self, chat: Conversation) -> None:
        request = rpc.SearchMessagesRequest(
            query="What happened yesterday?",
            further_queries=["before 2020", " ", "What happened yesterday?"],
            agent_id=chat.agent_id,
            reference_time=at("2026-01-20T22:30+00:00"),
            time_zone="Pacific/Kiritimati",
        )
        yesterday, earlier = (await chat.stub.SearchMessages(request)).time_ranges
        assert yesterday == rpc.ResolvedTimeRange(
            expression="yesterday", start_time=at("2026-01-19T10:00+00:00"), end_time=at("2026-01-20T10:00+00:00")
        )
        assert (earlier.expression, earlier.HasField("start_time")) == ("before 2020", False)
        request.ClearField("reference_time")
        assert not (await chat.stub.SearchMessages(request)).time_ranges
        request.query = "What happened on 7 May 2023?"
        (day,) = (await chat.stub.SearchMessages(request)).time_ranges
        assert (day.expression, day.start_time) == ("on 7 May 2023", at("2023-05-06T10:00+00:00"))
