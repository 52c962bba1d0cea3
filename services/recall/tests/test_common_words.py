"""Common words of an organization are found in its newest messages and in old ones."""

from typing import Any

import pytest
from mnemesh.recall.v1 import messages_service_pb2 as rpc
from mnemesh.types.v1 import message_pb2 as pb
from mnemesh_kit.ids import derive_id
from mnemesh_recall.store.fulltext import selection, words


async def say(recall: Any, agent: str, word: str, times: int) -> None:
    messages = [pb.Message(id=derive_id("message", agent, str(place)), role=pb.ROLE_USER) for place in range(times)]
    for place, message in enumerate(messages):
        message.content.add().text.text = f"The {word} of day {place}."
    await recall.AppendMessages(rpc.AppendMessagesRequest(agent_id=derive_id("agent", agent), messages=messages))


@pytest.mark.parametrize("word", ["oak", "elm"])
async def test_common_word_is_found_in_the_organization(
    recall: Any, monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    monkeypatch.setattr(selection, "MOST_HOLDERS", 20)
    monkeypatch.setattr(selection, "FEW_HOLDERS", 10)
    monkeypatch.setattr(words, "RECENT", 120)
    monkeypatch.setattr(words, "ENOUGH_RECENT", 20)
    await say(recall, "old", "oak", 40)
    await say(recall, "new", "elm", 130)
    found = await recall.SearchMessages(rpc.SearchMessagesRequest(query=word, mode=rpc.SEARCH_MODE_TEXT, limit=7))
    assert [hit.text for hit in found.hits] == [hit.text for hit in found.hits if f"The {word} of" in hit.text]
    assert len(found.hits) == 7
