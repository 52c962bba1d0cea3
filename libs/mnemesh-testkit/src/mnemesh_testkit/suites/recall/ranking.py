"""SearchMessages: the order of hits in a dialogue."""

from __future__ import annotations

from mnemesh.recall.v1 import messages_service_pb2 as rpc

from mnemesh_testkit.suites.recall.calls import Conversation, RecallCases
from mnemesh_testkit.suites.recall.searching import spoken, store


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
