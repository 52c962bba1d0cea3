"""The search tools of agents in a mesh: from the arguments of the model to the results that it reads."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from mnemesh.recall.v1 import messages_service_pb2
from mnemesh.types.v1 import message_pb2
from mnemesh_client import Agent
from mnemesh_client.inputs import optional_timestamp, text_part
from mnemesh_kit.ids import new_id
from mnemesh_testkit.fakes.openai import FakeOpenAI
from mnemesh_testkit.fakes.server import Reply
from mnemesh_testkit.mesh.in_process import Mesh
from mnemesh_testkit.mesh.turns import turn


async def searched(agent: Agent, fake_openai: FakeOpenAI, tool: str, arguments: dict[str, Any]) -> tuple[bool, str]:
    """Lets the model call a tool. Returns whether it succeeded, and its text."""
    fake_openai.script = [Reply(tool_calls=[(tool, arguments)]), "I see."]
    (returned,) = (await turn(agent, "Look it up.")).returns
    is_success = returned.status == message_pb2.TOOL_RETURN_STATUS_SUCCESS
    return is_success, "".join(part.text.text for part in returned.content)


async def remembering(mesh: Mesh) -> Agent:
    """Returns an agent that heard a dialogue of two people two days ago."""
    agent = await mesh.client.agents.create(model="openai/fake-model", time_zone="Asia/Tokyo", blocks={"human": ""})
    told = datetime.now(UTC) - timedelta(days=2)
    texts = [
        ("Zoë", "Where do you live now?"),
        ("Ada", "In a lighthouse."),
        ("Zoë", "Alone?"),
        ("Bob", "I like boats."),
    ]
    said = [
        message_pb2.Message(
            id=new_id("message"), role=message_pb2.ROLE_USER, name=name, content=[text_part(text)],
            create_time=optional_timestamp(told + timedelta(minutes=place)),
        )
        for place, (name, text) in enumerate(texts)
    ]  # fmt: skip
    request = messages_service_pb2.AppendMessagesRequest(agent_id=agent.id, messages=said)
    await mesh.client.messages.stub.AppendMessages(request)
    return agent


async def test_model_reads_who_said_what_when_and_around_what(mesh: Mesh, fake_openai: FakeOpenAI) -> None:
    agent = await remembering(mesh)
    arguments = {"query": "lighthouse yesterday", "queries": ["sailing a boat"], "surrounding": 1, "limit": 2}
    ok, text = await searched(agent, fake_openai, "conversation_search", arguments)
    assert ok, text
    answer = json.loads(text)
    (day,) = answer["times"]
    begins, ends = (datetime.fromisoformat(day[bound]) for bound in ("from", "until"))
    assert (day["expression"], ends - begins) == ("yesterday", timedelta(days=1))
    assert (begins.hour, begins.utcoffset()) == (0, timedelta(hours=9))
    results = {each["content"]: each for each in answer["results"]}
    assert results.keys() == {"In a lighthouse.", "I like boats."}
    found = results["In a lighthouse."]
    assert (found["speaker"], found["role"], found["time_ago"]) == ("Ada", "user", "1d ago")
    assert found["before"] == [{"role": "user", "speaker": "Zoë", "content": "Where do you live now?"}]
    assert found["after"] == [{"role": "user", "speaker": "Zoë", "content": "Alone?"}]
    ok, text = await searched(agent, fake_openai, "conversation_search", {"query": "lighthouse", "speakers": ["ADA"]})
    (found,) = json.loads(text)["results"]
    assert found["question"] == {"role": "user", "speaker": "Zoë", "content": "Where do you live now?"}
    assert found["content"] == "In a lighthouse."


async def test_arguments_out_of_bounds_are_refused_by_name(mesh: Mesh, fake_openai: FakeOpenAI) -> None:
    agent = await mesh.client.agents.create(model="openai/fake-model", blocks={"human": ""})
    for tool, arguments, problem in (
        ("conversation_search", {"queries": ["x"] * 10}, "queries must be at most 9."),
        ("conversation_search", {"queries": ["x" * 10_001]}, "queries[0]"),
        ("conversation_search", {"speakers": [" "]}, "speakers[0]"),
        ("conversation_search", {"surrounding": -1}, "surrounding must be between 0 and 10."),
        ("archival_memory_search", {"queries": "x"}, "queries must be a list"),
    ):
        ok, text = await searched(agent, fake_openai, tool, {"query": "x", **arguments})
        assert not ok
        assert problem in text


async def test_client_searches_with_the_same_options(mesh: Mesh, fake_openai: FakeOpenAI) -> None:
    agent = await remembering(mesh)
    now = datetime.now(UTC)
    options = {"further_queries": ["boats"], "speakers": ["ada", "bob"], "before": 1, "after": 1, "reference_time": now}
    hits = await agent.search("lighthouse yesterday", mode="text", **options)
    assert {hit.text for hit in hits} == {"In a lighthouse.", "I like boats."}
    assert {(len(hit.before), len(hit.after)) for hit in hits} == {(1, 1), (1, 0)}
    (day,) = hits.time_ranges
    assert (day.expression, hits.degraded, hits.reranked) == ("yesterday", False, False)
    assert day.start_time.ToDatetime(UTC) < now
