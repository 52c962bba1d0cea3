"""Searches of messages by words and by similarity, and their ranking."""

import asyncio
import json
from datetime import UTC, datetime
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp
from mnemesh.recall.v1 import messages_service_pb2 as rpc
from mnemesh.types.v1 import message_pb2 as pb
from mnemesh_kit.ids import new_id

from mnemesh_testkit.suites.recall.calls import Conversation, RecallCases, message, part, said

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

    async def test_dates_limit_what_is_found_by_similarity(self, chat: Conversation) -> None:
        # More messages of the last day are nearest to the query than a search of one hit compares.
        late = [spoken("USER", "purple monkey", "2026-01-30T12:00+00:00") for _ in range(30)]
        early = spoken("USER", "purple monkey dishwasher", "2026-01-10T12:00+00:00")
        await store(chat, early, *late)

        async def found(limit: int, **more: Any) -> list[str]:
            hits = await hits_of(chat, "purple monkey", mode=rpc.SEARCH_MODE_VECTOR, limit=limit, **more)
            return [hit.text for hit in hits]

        async with asyncio.timeout(60):
            while len(await found(50)) < 31:
                pass  # the index follows in its own time
        assert await found(1, end_date="2026-01-20") == ["purple monkey dishwasher"]
        assert await found(1, start_date="2026-01-20") == ["purple monkey"]
        assert await found(50, end_date="2026-01-20") == ["purple monkey dishwasher"]

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


class Ranking(RecallCases):
    """What a message receives from the messages beside it, its speaker, and texts that equal the query."""

    async def test_the_answer_to_a_question_is_found_by_the_words_of_the_question(self, chat: Conversation) -> None:
        await store(
            chat,
            spoken("USER", "What did you plant in the garden?"),
            spoken("ASSISTANT", "An oak, last spring."),
            spoken("USER", "The garden was empty before."),
            spoken("ASSISTANT", "It needs water."),
        )
        found = await chat.found("plant garden")
        assert found.index("An oak, last spring.") < found.index("It needs water.")
        assert found[0] in ("An oak, last spring.", "What did you plant in the garden?")

    async def test_the_name_of_a_speaker_counts_for_its_own_messages(self, chat: Conversation) -> None:
        await store(
            chat,
            spoken("USER", "I moved house.", name="Wilhelmina"),
            spoken("ASSISTANT", "That is good news.", name="Theodor"),
            spoken("USER", "Ottokar: The cellar is wet."),
            spoken("ASSISTANT", "Call a plumber."),
        )
        assert await chat.found("wilhelmina") == ["I moved house."]
        assert await chat.found("ottokar") == ["Ottokar: The cellar is wet."]
        assert (await chat.found("theodor news"))[0] == "That is good news."

    async def test_a_text_that_equals_the_query_is_first(self, chat: Conversation) -> None:
        await store(chat, spoken("USER", "Tea, then?"), spoken("USER", "\U0001f44d"))
        for number in range(3):
            more = [spoken("USER", f"Then tea {'tea ' * place}for {number} of us") for place in range(40)]
            await store(chat, *more)
        for query, first in (("tea then", "Tea, then?"), ("TEA  — then!", "Tea, then?"), ("\U0001f44d", "\U0001f44d")):
            assert (await chat.found(query, limit=3))[0] == first
        wanted = rpc.SearchMessagesRequest(query="tea then", agent_id=chat.agent_id, limit=3)
        assert (await chat.stub.SearchMessages(wanted)).hits[0].text == "Tea, then?"
        assert (await chat.found("tea then", start_date="2026-01-11")) == []

    async def test_hits_have_the_scores_of_which_they_consist(self, chat: Conversation) -> None:
        await store(chat, spoken("USER", "an oak and an elm"), spoken("USER", "an oak"))
        wanted = rpc.SearchMessagesRequest(query="oak elm", agent_id=chat.agent_id, mode=rpc.SEARCH_MODE_TEXT)
        first, second = (await chat.stub.SearchMessages(wanted)).hits
        assert first.score == 1.0
        assert second.score * first.text_score == second.text_score
        assert not first.HasField("vector_score")
