"""Hits of large messages: each has what is around it, on whichever page it is."""

from typing import Any

import pytest
from mnemesh.recall.v1 import messages_service_pb2 as rpc
from mnemesh.types.v1 import message_pb2 as pb
from mnemesh_kit import paging
from mnemesh_kit.ids import new_id
from mnemesh_kit.paging import whole_answer
from mnemesh_recall.store import messages

AGENT = new_id("agent")


async def say(recall: Any, *texts: str) -> None:
    """Stores messages of a user."""
    messages = [pb.Message(id=new_id("message"), role=pb.ROLE_USER) for _ in texts]
    for message, text in zip(messages, texts, strict=True):
        message.content.add().text.text = text
    await recall.AppendMessages(rpc.AppendMessagesRequest(agent_id=AGENT, messages=messages))


def search(**fields: Any) -> rpc.SearchMessagesRequest:
    """Returns a request for messages about oaks."""
    return rpc.SearchMessagesRequest(query="oak", mode=rpc.SEARCH_MODE_TEXT, agent_id=AGENT, limit=50, **fields)


def around(hit: rpc.MessageHit) -> tuple[str, list[str], list[str]]:
    """Returns the text of a hit, and the first letters of the texts before and after it."""
    before, after = ([each.content[0].text.text[:1] for each in side] for side in (hit.before, hit.after))
    return hit.text, before, after


async def test_every_hit_has_its_surroundings_although_a_read_of_them_is_bounded(
    recall: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [text for number in range(8) for text in (f"{number}" * 3_000, f"oak {number}")]
    await say(recall, *texts)
    request = search(messages_before=1)
    whole = list(map(around, (await recall.SearchMessages(request)).hits))
    assert sorted(whole[:8]) == [(f"oak {number}", [f"{number}"], []) for number in range(8)]
    monkeypatch.setattr(paging, "MAX_PAGE_BYTES", 8_000)
    monkeypatch.setattr(messages, "MAX_TOTAL_BYTES", 12_000)
    first = await recall.SearchMessages(request)
    assert len(first.hits) == 2
    found = await whole_answer(recall.SearchMessages, request, seconds=10)
    assert list(map(around, found.hits)) == whole


async def test_the_nearest_messages_around_a_hit_fit_into_a_size(recall: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "MAX_BYTES", 5_000)
    await say(recall, "a" * 6_000, "b" * 2_000, "oak 1", "c" * 2_000, "d" * 6_000, "e", "f", "oak 2", "g")
    found = await recall.SearchMessages(search(messages_before=2, messages_after=2))
    assert sorted(map(around, found.hits[:2])) == [("oak 1", ["b"], ["c"]), ("oak 2", ["e", "f"], ["g"])]
