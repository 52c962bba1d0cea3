"""The episodic mode on the whole mesh: real recall, two providers, two SQL engines, and several months of time."""

import json
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from mnemesh.agents.v1 import agents_pb2
from mnemesh.recall.v1 import episodes_pb2, episodes_service_pb2
from mnemesh.types.v1 import message_pb2
from mnemesh_client import Agent, text_of
from mnemesh_kit.services import STORE_NAMES
from mnemesh_kit.time import SystemClock
from mnemesh_testkit.databases.postgres import PostgresServer
from mnemesh_testkit.fakes.anthropic import FakeAnthropic
from mnemesh_testkit.fakes.fake_summarizer import extract_memories
from mnemesh_testkit.fakes.openai import FakeOpenAI
from mnemesh_testkit.fakes.server import FakeProvider, Reply
from mnemesh_testkit.mesh.in_process import Mesh
from mnemesh_testkit.mesh.turns import assert_whole, turn, window_of

WORDS = "The weather was discussed at length, and so were the trains. " * 20
WINDOW = 7_000
MAY, JUNE, AUGUST = (datetime(2026, month, 10, 12, tzinfo=UTC) for month in (5, 6, 8))


class Calendar(SystemClock):
    """A clock that runs as the system's, from another day."""

    def __init__(self) -> None:
        self._ahead = timedelta(0)

    def turn_to(self, day: datetime) -> None:
        """From now on it is that day."""
        self._ahead = day - super().now()

    def now(self) -> datetime:
        """See Clock."""
        return super().now() + self._ahead


def asks_for_memories(body: dict[str, Any]) -> bool:
    """Returns whether a request asks for episodes and facts."""
    return "keep the long-term memory" in f"{body.get('system')}{body['messages'][0]}"


def said(body: dict[str, Any]) -> str:
    """The last message of a request."""
    content = body["messages"][-1]["content"]
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


@pytest.fixture(params=["openai on sqlite", pytest.param("anthropic on postgresql", marks=pytest.mark.full)])
def place(request: pytest.FixtureRequest) -> str:
    """Provider and database. They are independent, so each is tested with one of the other."""
    return str(request.param)


@pytest.fixture
def provider(place: str, fake_openai: FakeOpenAI, fake_anthropic: FakeAnthropic) -> FakeProvider:
    """A fake, which answers turns and draws memories."""
    fake: FakeProvider = fake_openai if place.startswith("openai") else fake_anthropic
    fake.script = lambda body: json.dumps(extract_memories(said(body))) if asks_for_memories(body) else "I see."
    return fake


@pytest.fixture
def calendar() -> Calendar:
    """The clock of every service."""
    clock = Calendar()
    clock.turn_to(MAY)
    return clock


@pytest.fixture
async def databases(place: str, request: pytest.FixtureRequest) -> AsyncIterator[dict[str, dict[str, str]]]:
    """Of every service: none of its own on SQLite."""
    if place.endswith("sqlite"):
        yield {}
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    names = {service: await server.create_database() for service in STORE_NAMES}
    yield {service: {"database_url": server.url(name)} for service, name in names.items()}
    for name in names.values():
        await server.drop_database(name)


@pytest.fixture
async def mesh(
    tmp_path: Path,
    fake_openai: FakeOpenAI,
    fake_anthropic: FakeAnthropic,
    calendar: Calendar,
    databases: dict[str, dict[str, str]],
) -> AsyncIterator[Mesh]:
    """A mesh whose services have another clock."""
    async with Mesh(
        tmp_path,
        openai_base_url=fake_openai.base_url,
        anthropic_base_url=fake_anthropic.base_url,
        clock=calendar,
        settings=databases,
    ) as mesh:
        yield mesh


async def create(
    mesh: Mesh,
    provider: FakeProvider,
    scope: str | None = None,
    *,
    window: int = WINDOW,
    summariser_window: int | None = None,
) -> Agent:
    handle = "openai/fake-model" if isinstance(provider, FakeOpenAI) else "anthropic/claude-fake"
    settings = agents_pb2.ModelSettings(context_window=window, max_output_tokens=500)
    agent = await mesh.client.agents.create(model=handle, settings=settings, blocks={"human": ""})
    episodic = agents_pb2.CompactionSettings(mode=agents_pb2.COMPACTION_MODE_EPISODIC, memory_scope=scope)
    if summariser_window is not None:
        episodic.model_settings.context_window = summariser_window
    return await agent.update(compaction_settings=episodic)


async def talk(agent: Agent, *messages: str) -> None:
    for message in messages:
        result = await turn(agent, message)
        assert (result.status, result.said) == ("COMPLETED", "I see.")


def own(agent: Agent) -> list[episodes_pb2.MemoryScope]:
    return [episodes_pb2.MemoryScope(agent_id=agent.id)]


async def facts(mesh: Mesh, agent: Agent, **asked: datetime) -> list[str]:
    """Returns the facts that are valid, and those that were."""
    times: dict[str, Any] = {}
    for name, at in asked.items():
        times[name] = Timestamp()
        times[name].FromDatetime(at)
    filter_ = episodes_service_pb2.FactFilter(scopes=own(agent), **times)
    response = await mesh.stubs["mnemesh.recall.v1.EpisodeService"].ListFacts(
        episodes_service_pb2.ListFactsRequest(filter=filter_)
    )
    return [fact.text for fact in response.facts]


async def test_search_finds_facts_that_were_valid_in_june(
    mesh: Mesh, provider: FakeProvider, calendar: Calendar
) -> None:
    agent, stranger = await create(mesh, provider, "crew"), await create(mesh, provider)
    await talk(stranger, "Remember: the boat is stolen.", *("Well.",) * 4)
    await stranger.compact()
    await talk(agent, "Remember: the boat is red.", *("Well.",) * 4)
    await agent.compact()
    calendar.turn_to(AUGUST)
    await talk(agent, "Remember: the boat is blue.", *("Well.",) * 4)
    await agent.compact()
    found = []
    for time in ({}, {"held_at": "2026-06-10"}, {"held_at": "2026-04-10"}):
        request = {"query": "boat things", **time}
        provider.script = [Reply(tool_calls=[("episodic_memory_search", request)]), "I see."]
        result = await turn(agent, "Look it up.")
        (returned,) = result.returns
        found.append(json.loads("".join(part.text.text for part in returned.content)))
    facts_found = [[fact["fact"] for fact in each["facts"]] for each in found]
    assert facts_found == [["the boat is blue."], ["the boat is red."], []]
    assert found[1]["facts"][0]["since"].startswith("2026-05-10T")
    assert found[1]["facts"][0]["until"].startswith("2026-08-10T")
    assert [len(each["episodes"]) for each in found] == [2, 2, 0], "those that had begun by then"
    said_of_boats = await agent.search("stolen boat blue red")
    assert not [hit for hit in said_of_boats if hit.message.role == message_pb2.ROLE_TOOL]


async def test_search_finds_facts_that_were_valid_in_may(
    mesh: Mesh, provider: FakeProvider, calendar: Calendar
) -> None:
    agent = await create(mesh, provider)
    episodes = mesh.stubs["mnemesh.recall.v1.EpisodeService"]
    await talk(agent, "Remember: the boat is red.", *("Well.",) * 4)
    received = (await window_of(mesh.client, agent))[0]
    first = await agent.compact()
    assert "- the boat is red." in first.summary
    calendar.turn_to(AUGUST)
    await talk(agent, "Remember: the boat is blue.", *("Well.",) * 4)
    second = await agent.compact()
    assert "- the boat is blue." in second.summary
    assert "red" not in second.summary
    assert await facts(mesh, agent) == ["the boat is blue."]
    june = {"valid_at_time": JUNE, "known_at_time": JUNE}
    assert await facts(mesh, agent, **june) == ["the boat is red."]
    assert await facts(mesh, agent, valid_at_time=JUNE) == ["the boat is red."]
    assert await facts(mesh, agent, known_at_time=MAY - timedelta(days=1), valid_at_time=MAY) == []
    (now,) = (
        await episodes.ListFacts(
            episodes_service_pb2.ListFactsRequest(filter=episodes_service_pb2.FactFilter(scopes=own(agent)))
        )
    ).facts
    history = (await episodes.ListFactHistory(episodes_service_pb2.ListFactHistoryRequest(fact_id=now.id))).facts
    assert [fact.text for fact in history] == ["the boat is red.", "the boat is blue."]
    assert history[0].superseded_by_id == history[1].id
    assert history[0].invalid_time == history[1].valid_from_time
    assert history[1].valid_from_time.ToDatetime(UTC).month == 8
    assert list(history[0].source.message_ids) == [received.id]
    assert history[0].source.agent_id == agent.id
    assert history[0].source.model in ("openai/fake-model", "anthropic/claude-fake")
    kept = (
        await episodes.ListEpisodes(
            episodes_service_pb2.ListEpisodesRequest(filter=episodes_service_pb2.EpisodeFilter(scopes=own(agent)))
        )
    ).episodes
    assert [fact.source.episode_id for fact in history] == [episode.id for episode in kept]
    assert [list(episode.turn_ids) for episode in kept] == [["turn_0001"], [f"turn_{n:04d}" for n in range(2, 7)]]
    assert kept[0].start_time.ToDatetime(UTC).month == 5


async def test_fact_that_changed_within_the_evicted_turns_has_its_times(
    mesh: Mesh, provider: FakeProvider, calendar: Calendar
) -> None:
    """The turns are read in parts, because they are long. A later part contradicts an earlier one."""
    agent = await create(mesh, provider, window=30_000, summariser_window=3_000)
    await talk(agent, "Remember: the boat is red.", *(f"{number}. {WORDS}" for number in range(5)))
    calendar.turn_to(AUGUST)
    await talk(agent, "Remember: the boat is blue.", *("Well.",) * 4)
    done = await agent.compact()
    assert len([request for request in provider.requests if asks_for_memories(request.body)]) > 1
    assert "- the boat is blue." in done.summary
    assert "red" not in done.summary
    assert await facts(mesh, agent) == ["the boat is blue."]
    assert await facts(mesh, agent, valid_at_time=JUNE) == ["the boat is red."]


async def test_long_conversation_is_remembered_and_its_prompt_prefix_is_stable(
    mesh: Mesh, provider: FakeProvider
) -> None:
    agent = await create(mesh, provider)
    heads: list[tuple[str, str]] = []
    for number in range(36):
        await talk(agent, "Remember: the code is 4711." if number == 3 else f"{number}. {WORDS}")
        window = await window_of(mesh.client, agent)
        assert_whole(window)
        if window[0].role == message_pb2.ROLE_SUMMARY:
            heads.append((window[0].id, text_of(window[0].content)))
    drawings = [request for request in provider.requests if asks_for_memories(request.body)]
    assert 2 < len(drawings) < 20
    assert len(set(heads)) == len({id_ for id_, _ in heads}) == len(drawings), "the head changes at compactions alone"
    head = heads[-1][1]
    assert "- the code is 4711." in head
    for request in provider.requests:
        assert len(request.raw) / 4 < WINDOW * 1.3, "bytes of JSON, four to a token"
    schema = json.dumps(
        [request.body.get("response_format") or request.body.get("output_config") for request in drawings]
    )
    assert schema.count('"additionalProperties": false') == 3 * len(drawings)
    bundle = await mesh.stubs["mnemesh.recall.v1.EpisodeService"].GetMemoryBundle(
        episodes_service_pb2.GetMemoryBundleRequest(scopes=own(agent))
    )
    shown = re.findall(r"^\d\) (.*)$", head, re.MULTILINE)
    assert shown == [episode.summary for episode in bundle.episodes]
    assert re.findall(r"^- (.*)$", head, re.MULTILINE) == [fact.text for fact in bundle.facts]


async def test_compaction_on_demand_equals_its_preview(mesh: Mesh, provider: FakeProvider) -> None:
    agent = await create(mesh, provider)
    await talk(agent, "Remember: the boat is red.", *("Well.",) * 5)
    before = await window_of(mesh.client, agent)
    shown = await agent.compact(dry_run=True)
    assert await window_of(mesh.client, agent) == before
    assert await facts(mesh, agent) == []
    done = await agent.compact(request_id="by-hand")
    assert done.summary == shown.summary
    after = await window_of(mesh.client, agent)
    assert await agent.compact(request_id="by-hand") == done
    assert await window_of(mesh.client, agent) == after
    assert await facts(mesh, agent) == ["the boat is red."]


@pytest.mark.mesh(in_memory=False)
async def test_start_of_a_window_is_unchanged_after_restarts(mesh: Mesh, provider: FakeProvider) -> None:
    agent = await create(mesh, provider)
    await talk(agent, "Remember: the boat is red.", *("Well.",) * 5)
    await agent.compact()
    await talk(agent, "Well.")
    before = provider.requests[-1].raw
    head = before[: before.index(b"the boat is red.")]
    for service in ("recall", "orchestrator"):
        await mesh.restart(service)
    await talk(agent, "Well.")
    assert provider.requests[-1].raw.startswith(head)
    assert before[: before.rindex(b"Well.")] == provider.requests[-1].raw[: before.rindex(b"Well.")]


async def test_agents_share_a_named_scope(mesh: Mesh, provider: FakeProvider) -> None:
    one, two = [await create(mesh, provider, "team/boats") for _ in range(2)]
    await talk(one, "Remember: the boat is red.", *("Well.",) * 4)
    await one.compact()
    await talk(two, "Remember: the car is green.", *("Well.",) * 4)
    done = await two.compact()
    assert {"- the boat is red.", "- the car is green."} <= set(done.summary.splitlines())
    assert await facts(mesh, one) == []


async def test_facts_stay_in_the_window_after_a_failed_extraction(
    mesh: Mesh, provider: FakeProvider, calendar: Calendar
) -> None:
    agent = await create(mesh, provider)
    await talk(agent, "Remember: the boat is red.", "Remember: the car is green.", *("Well.",) * 4)
    await agent.compact()
    scripted = provider.script
    provider.script = lambda body: "I would rather not." if asks_for_memories(body) else "They spoke."
    for _ in range(2):
        for _ in range(4):
            await turn(agent, "Well.")
        done = await agent.compact()
        assert {"- the car is green.", "- the boat is red."} <= set(done.summary.splitlines())
        assert "[NOTES]\nThey spoke.\n\n[RECENT TURNS]" in done.summary
    notes = [said(request.body) for request in provider.requests if "earlier notes: " in said(request.body)]
    assert notes
    assert not [text for text in notes if "the boat is red" in text], "the memory is not part of the notes"
    provider.script = scripted
    calendar.turn_to(AUGUST)
    await talk(agent, "Forget: the boat is red.", *("Well.",) * 4)
    done = await agent.compact()
    assert "- the car is green." in done.summary
    assert "boat" not in done.summary
    drawn = [said(request.body) for request in provider.requests if asks_for_memories(request.body)]
    assert "Earlier notes:\nThey spoke.\n" in drawn[-1]
    assert await facts(mesh, agent) == ["the car is green."]
    assert sorted(await facts(mesh, agent, valid_at_time=JUNE)) == ["the boat is red.", "the car is green."]


async def test_failed_extraction_falls_back_to_a_summary(mesh: Mesh, provider: FakeProvider) -> None:
    agent = await create(mesh, provider)
    await talk(agent, "Remember: the boat is red.", *("Well.",) * 5)
    provider.script = lambda body: "I would rather not." if asks_for_memories(body) else "They spoke of a boat."
    done = await agent.compact()
    assert done.summary == "They spoke of a boat."
    assert len([request for request in provider.requests if asks_for_memories(request.body)]) == 3
    assert await facts(mesh, agent) == []
    provider.script = lambda body: json.dumps(extract_memories(said(body))) if asks_for_memories(body) else "I see."
    await talk(agent, *("Well.",) * 4)
    await agent.compact()
    assert "Earlier notes:\nThey spoke of a boat.\n" in said(
        [request for request in provider.requests if asks_for_memories(request.body)][-1].body
    )
