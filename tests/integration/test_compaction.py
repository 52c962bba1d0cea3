"""Compaction on the whole mesh: real recall, real HTTP, two providers, and processes that crash."""

from typing import Any

import grpc
import pytest
from mnemesh.agents.v1 import agents_pb2, agents_service_pb2, runs_pb2
from mnemesh.types.v1 import message_pb2
from mnemesh_client import Agent, text_of
from mnemesh_kit.errors import MnemeshError
from mnemesh_testkit.fakes import server
from mnemesh_testkit.fakes.anthropic import FakeAnthropic
from mnemesh_testkit.fakes.openai import FakeOpenAI
from mnemesh_testkit.fakes.server import Call, FakeProvider, Reply, Usage
from mnemesh_testkit.mesh.in_process import Mesh
from mnemesh_testkit.mesh.turns import assert_whole, stored, texts, turn, window_of

SELF = agents_pb2.COMPACTION_MODE_SELF_COMPACT_ALL
WORDS = "The weather was discussed at length, and so were the trains. " * 20
NEEDLE = "The wine cellar opens with the number 4711."
WINDOW = 7_000


def is_summary(body: dict[str, Any]) -> bool:
    """Returns whether a request asks for a summary."""
    shown = f"{body.get('system')}{body['messages'][0]}{body['messages'][-1]}"
    return "leaves it" in shown or "about to leave your context" in shown or "leaves its context" in shown


@pytest.fixture(params=["openai", "anthropic"])
def provider(request: pytest.FixtureRequest, fake_openai: FakeOpenAI, fake_anthropic: FakeAnthropic) -> FakeProvider:
    """A fake, which answers turns and writes summaries."""
    fake: FakeProvider = {"openai": fake_openai, "anthropic": fake_anthropic}[request.param]
    fake.script = lambda body: "They spoke of weather." if is_summary(body) else "I see."
    return fake


async def create(mesh: Mesh, provider: FakeProvider, compaction: agents_pb2.CompactionSettings | None = None) -> Agent:
    handle = "openai/fake-model" if isinstance(provider, FakeOpenAI) else "anthropic/claude-fake"
    settings = agents_pb2.ModelSettings(context_window=WINDOW, max_output_tokens=500)
    agent = await mesh.client.agents.create(model=handle, settings=settings, blocks={"human": ""})
    return agent if compaction is None else await agent.update(compaction_settings=compaction)


async def test_fact_of_turn_3_is_found_after_it_left_the_window(mesh: Mesh, provider: FakeProvider) -> None:
    agent = await create(mesh, provider)
    for number in range(40):
        result = await turn(agent, NEEDLE if number == 3 else f"{number}. {WORDS}")
        assert (result.status, result.said) == ("COMPLETED", "I see."), number
        assert_whole(await window_of(mesh.client, agent))
    window = await window_of(mesh.client, agent)
    assert window[0].role == message_pb2.ROLE_SUMMARY
    assert "They spoke of weather." in text_of(window[0].content)
    assert len(window) < 40
    compactions = [r for r in provider.requests if is_summary(r.body)]
    assert 1 < len(compactions) < 12
    for request in provider.requests:
        assert len(request.raw) / 4 < WINDOW * 1.3, "bytes of JSON, four to a token"

    def search(body: dict[str, Any]) -> Reply:
        if "4711" in "\n".join(texts(body)) or "4711" in str(body["messages"][-1]):
            return Reply(text="4711")
        return Reply(tool_calls=[Call("conversation_search", {"query": "number of the wine cellar"})])

    provider.script = search
    assert (await turn(agent, "How does the cellar open?")).said == "4711"


@pytest.mark.mesh(in_memory=False)
async def test_compaction_events_are_sent_if_requested_and_replayed(mesh: Mesh, provider: FakeProvider) -> None:
    agent = await create(mesh, provider)
    for number in range(4):
        await turn(agent, f"{number}. {WORDS}")
    provider.script = lambda body: (
        "They spoke of weather." if is_summary(body) else Reply(text="I see.", usage=Usage(input=6_000, output=5))
    )
    turn_result = await turn(agent, "And?", config=runs_pb2.RunConfig(include_compaction_events=True))
    kinds = [event.WhichOneof("event") for event in turn_result.events]
    place = kinds.index("compaction")
    result = turn_result.events[place].compaction.result
    assert turn_result.events[place + 1].message.summary.text.endswith("They spoke of weather.")
    assert turn_result.events[place + 1].message.message_id == result.summary_message_id
    assert result.summary == "They spoke of weather."
    assert (result.messages_before, result.tokens_before) > (result.messages_after, result.tokens_after)
    durable = [event for event in turn_result.events if event.HasField("sequence")]
    assert [event.sequence for event in durable] == list(range(1, len(durable) + 1))
    again = [event async for event in mesh.client.runs.stream(turn_result.run_id)]
    assert [e for e in again if e.HasField("sequence")] == durable
    silent = await turn(agent, "And now?")
    assert "compaction" not in [event.WhichOneof("event") for event in silent.events]
    place = agents_service_pb2.GetContextWindowRequest(agent_id=agent.id)
    estimate = (await mesh.stubs.agents.GetContextWindow(place)).context_window.estimate
    assert estimate.answer_count == 6
    assert 0.9 <= estimate.factor <= 3
    assert estimate.error != 0
    await mesh.restart("orchestrator")
    again = (await mesh.stubs.agents.GetContextWindow(place)).context_window.estimate
    assert again == estimate


async def test_compaction_on_demand_equals_its_preview(mesh: Mesh, provider: FakeProvider) -> None:
    agent = await create(mesh, provider)
    with pytest.raises(MnemeshError) as refused:
        await agent.compact(dry_run=True)
    assert refused.value.reason == "NOTHING_TO_COMPACT"
    for number in range(5):
        await turn(agent, f"{number}. {WORDS}")
    before = await window_of(mesh.client, agent)
    shown = await agent.compact(dry_run=True)
    assert await window_of(mesh.client, agent) == before
    done = await agent.compact(request_id="by-hand")
    assert done.summary == shown.summary == "They spoke of weather."
    after = await window_of(mesh.client, agent)
    assert len(after) + 1 == done.messages_after == shown.messages_after < len(before) + 1
    assert await agent.compact(request_id="by-hand") == done
    changes = [entry async for entry in mesh.client.audit.list(method="CompactConversation")]
    assert [entry.request_id for entry in changes] == ["by-hand"]
    assert await window_of(mesh.client, agent) == after


async def test_self_compaction_request_has_the_prefix_of_a_normal_request(mesh: Mesh, provider: FakeProvider) -> None:
    agent = await create(mesh, provider, agents_pb2.CompactionSettings(mode=SELF))
    for number in range(4):
        await turn(agent, f"{number}. {WORDS}")
    await agent.compact(dry_run=True)
    ours = provider.requests[-1]
    await turn(agent, "Next.")
    theirs = provider.requests[-1]
    assert is_summary(ours.body)
    assert not is_summary(theirs.body)
    assert ours.body["messages"][:-1] == theirs.body["messages"][:-1]
    place = ours.raw.rindex(b'{"role":"user"')
    assert theirs.raw[:place] == ours.raw[:place]
    assert b'"tools":' in ours.raw
    assert ours.body["tools"] == theirs.body["tools"]
    assert ours.body.get("system") == theirs.body.get("system")


async def test_provider_that_rejects_two_requests(mesh: Mesh, provider: FakeProvider) -> None:
    agent = await create(mesh, provider)
    for number in range(5):
        await turn(agent, f"{number}. {WORDS}")
    rejected: list[int] = []

    def reject(body: dict[str, Any]) -> Any:
        if is_summary(body):
            return "They spoke of weather."
        if len(rejected) < 2:
            rejected.append(len(body["messages"]))
            return server.context_overflow(9_000, 7_000)
        return "At last."

    provider.script = reject
    result = await turn(agent, "Hello?")
    assert (result.status, result.said) == ("COMPLETED", "At last.")
    window = await window_of(mesh.client, agent)
    assert_whole(window)
    assert window[0].role == message_pb2.ROLE_SUMMARY
    assert window[0].id in [row.id for row in await stored(agent)], "the summary is a row of recall"


async def test_updated_settings_take_effect(mesh: Mesh, provider: FakeProvider) -> None:
    agent = await create(mesh, provider)
    changed = agents_pb2.CompactionSettings(
        mode=SELF, clip_chars=100, sliding_window_percentage=0.2, trigger_ratio=0.5, prompt="p"
    )
    stub = mesh.client.agents.stub
    wanted = agents_pb2.Agent(id=agent.id, compaction_settings=changed)
    request = agents_service_pb2.UpdateAgentRequest(agent=wanted)
    request.update_mask.paths.append("compaction_settings")
    updated = (await stub.UpdateAgent(request)).agent
    assert updated.compaction_settings == changed
    wanted.compaction_settings.trigger_ratio = 3
    with pytest.raises((MnemeshError, grpc.aio.AioRpcError)) as refused:
        await stub.UpdateAgent(agents_service_pb2.UpdateAgentRequest(agent=wanted, update_mask=request.update_mask))
    assert "trigger_ratio" in str(refused.value)
    again = await stub.GetAgent(agents_service_pb2.GetAgentRequest(agent_id=agent.id))
    assert again.agent.compaction_settings == changed
