"""The erasure of an agent and of a sender, with the memories that derive from their messages, on each SQL engine."""

from typing import Any

import pytest
from mnemesh.recall.v1 import episodes_pb2
from mnemesh.recall.v1 import episodes_service_pb2 as memories
from mnemesh.recall.v1 import messages_service_pb2 as rpc
from mnemesh.recall.v1 import traces_service_pb2 as traces
from mnemesh.types.v1 import message_pb2 as pb
from mnemesh_kit.call_context import Principal, as_principal
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.ids import derive_id, new_id

ADA, BOB = new_id("identity"), new_id("identity")
TEAM = episodes_pb2.MemoryScope(name="team")


def said(text: str, role: int = pb.ROLE_USER, **more: Any) -> pb.Message:
    content = [pb.ContentPart(text=pb.TextPart(text=text))]
    return pb.Message(id=new_id("message"), role=pb.Role.ValueType(role), content=content, **more)


async def talk(recall: Any, agent: str, *messages: pb.Message, create: bool = True) -> None:
    conversation = derive_id("conv", agent)
    if create:
        system = said("prompt", pb.ROLE_SYSTEM)
        await recall.CreateContext(
            rpc.CreateContextRequest(agent_id=agent, conversation_id=conversation, messages=[system])
        )
    await recall.AppendMessages(
        rpc.AppendMessagesRequest(agent_id=agent, conversation_id=conversation, messages=messages)
    )


async def learn(recall: Any, agent: str, scope: episodes_pb2.MemoryScope, text: str, *sources: pb.Message) -> None:
    source = episodes_pb2.MemorySource(agent_id=agent, message_ids=[message.id for message in sources])
    await recall.episodes.CommitEpisode(
        memories.CommitEpisodeRequest(
            scope=scope,
            episode=episodes_pb2.Episode(summary=f"Of {text}", source=source),
            operations=[episodes_pb2.FactOperation(add=episodes_pb2.Fact(text=text, source=source))],
        )
    )


async def known(recall: Any) -> tuple[list[str], list[str]]:
    """Returns the texts of all facts and of all episodes."""
    facts = await recall.episodes.ListFacts(memories.ListFactsRequest(page_size=100))
    episodes = await recall.episodes.ListEpisodes(memories.ListEpisodesRequest(page_size=100))
    return sorted(fact.text for fact in facts.facts), sorted(episode.summary for episode in episodes.episodes)


async def texts(recall: Any, agent: str) -> list[str]:
    listed = await recall.ListMessages(rpc.ListMessagesRequest(agent_ids=[agent], page_size=100))
    return [message.content[0].text.text for message in listed.messages if message.role != pb.ROLE_SYSTEM]


async def test_erased_agent_leaves_no_memory_in_named_scopes(recall: Any) -> None:
    one, two = new_id("agent"), new_id("agent")
    of_one, of_two = said("The boat is red."), said("The boat is red, and the car is green.")
    await talk(recall, one, of_one)
    await talk(recall, two, of_two)
    await learn(recall, one, TEAM, "The boat is red", of_one)
    await learn(recall, one, TEAM, "The bike is blue", of_one)
    await learn(recall, one, episodes_pb2.MemoryScope(agent_id=one), "The plane is white", of_one)
    await learn(recall, two, TEAM, "The boat is red", of_two)
    await learn(recall, two, TEAM, "The car is green", of_two)
    done = await recall.EraseAgent(rpc.EraseAgentRequest(request_id="e", agent_id=one))
    assert (done.deleted_messages, done.deleted_episodes, done.deleted_facts) == (2, 3, 2)
    assert await recall.EraseAgent(rpc.EraseAgentRequest(request_id="e", agent_id=one)) == done
    assert await known(recall) == (
        ["The boat is red", "The car is green"],
        ["Of The boat is red", "Of The car is green"],
    )
    facts = (await recall.episodes.ListFacts(memories.ListFactsRequest())).facts
    (boat,) = [fact for fact in facts if fact.text == "The boat is red"]
    assert (list(boat.source.message_ids), boat.source.agent_id) == ([of_two.id], "")


async def test_senders_messages_are_erased_in_all_agents_with_what_derives_from_them(recall: Any) -> None:
    one, two = new_id("agent"), new_id("agent")
    adas, bobs = said("I am Ada, born in May.", sender_id=ADA), said("I am Bob.", sender_id=BOB)
    call = said("Looking.", pb.ROLE_ASSISTANT, tool_calls=[pb.ToolCall(id="c1", name="look", arguments="{}")])
    answer = pb.ToolReturn(tool_call_id="c1", name="look", status=pb.TOOL_RETURN_STATUS_SUCCESS)
    returned = said("", pb.ROLE_TOOL, tool_returns=[answer])
    early, later = said("Before.", pb.ROLE_SUMMARY), said("They spoke of May.", pb.ROLE_SUMMARY)
    await talk(recall, one, early, adas, call, returned, bobs, said("Hello, Bob.", pb.ROLE_ASSISTANT), later)
    await talk(recall, two, said("Hi."), said("Hm.", pb.ROLE_ASSISTANT), said("Ada again.", sender_id=ADA))
    own = episodes_pb2.MemoryScope(agent_id=one)
    await learn(recall, one, own, "Ada was born in May", adas)
    await learn(recall, one, TEAM, "Ada and Bob know each other", adas, bobs)
    await learn(recall, one, own, "Bob is Bob", bobs)
    with as_principal(Principal(new_id("org"), new_id("user"))):
        foreign = await recall.EraseSender(rpc.EraseSenderRequest(sender_id=ADA))
        assert foreign == rpc.EraseSenderResponse()
    done = await recall.EraseSender(rpc.EraseSenderRequest(sender_id=ADA))
    assert (done.deleted_messages, done.deleted_episodes, done.deleted_facts, done.remaining) == (5, 2, 2, False)
    assert await texts(recall, one) == ["Before.", "I am Bob.", "Hello, Bob."]
    assert await texts(recall, two) == ["Hi.", "Hm."]
    assert await known(recall) == (["Bob is Bob"], ["Of Bob is Bob"])
    window = (await recall.GetContext(rpc.GetContextRequest(conversation_id=derive_id("conv", one)))).context
    assert [message.content[0].text.text for message in window.messages[1:]] == ["Before.", "I am Bob.", "Hello, Bob."]
    assert window.version == 3
    found = await recall.SearchMessages(rpc.SearchMessagesRequest(query="born in May", mode=rpc.SEARCH_MODE_TEXT))
    assert not [hit for hit in found.hits if "May" in hit.text]
    listed = await recall.traces.ListTurns(traces.ListTurnsRequest(agent_id=one))
    assert [turn.id for turn in listed.turns] == ["turn_0002"]
    assert await recall.EraseSender(rpc.EraseSenderRequest(sender_id=ADA)) == rpc.EraseSenderResponse()
    with pytest.raises(InvalidArgument):
        await recall.EraseSender(rpc.EraseSenderRequest())


async def test_sender_with_many_messages_is_erased_in_batches(recall: Any) -> None:
    agent = new_id("agent")
    await talk(recall, agent, *(said(f"{number}", sender_id=ADA) for number in range(60)))
    calls = []
    while True:
        done = await recall.EraseSender(rpc.EraseSenderRequest(sender_id=ADA))
        calls.append(done.deleted_messages)
        if not done.remaining:
            break
    assert calls == [50, 10]
    assert await texts(recall, agent) == []
