"""episodic_memory_search: its requests and its results."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from mnemesh_kit.ids import new_id
from mnemesh_orchestrator.builtin.executor import BuiltinTools
from mnemesh_orchestrator.model.core_memory import memory_access
from mnemesh_orchestrator.model.episodes import Episode, Fact, MemoryHits, MemoryScope

from .conftest import NOW, Make, Services

OWN = MemoryScope("agent-1")
MAY, AUGUST = datetime(2026, 5, 10, 12, tzinfo=UTC), datetime(2026, 8, 10, 12, tzinfo=UTC)


async def test_result_for_the_model(tools: BuiltinTools, tiers: Services, call: Make) -> None:
    tiers.memories = MemoryHits(
        (
            Fact("fact-1", "The boat is red.", NOW, ("boat",), 0.5, MAY, AUGUST),
            Fact("fact-2", "Ada sails.", NOW - timedelta(days=2)),
        ),
        (Episode("episode-1", "They bought a boat.", NOW, ("boat", "money"), 0.5, MAY, AUGUST),),
    )
    result = await tools.execute(call("episodic_memory_search", query="boat"))
    assert result.ok
    assert json.loads(result.text) == {
        "message": "Showing 2 facts and 1 episodes:",
        "facts": [
            {
                "id": "fact-1",
                "fact": "The boat is red.",
                "since": "2026-05-10T14:00:00+02:00",
                "until": "2026-08-10T14:00:00+02:00",
                "learned": "2026-01-20T13:00:00+01:00",
                "time_ago": "0s ago",
                "tags": ["boat"],
            },
            {"id": "fact-2", "fact": "Ada sails.", "learned": "2026-01-18T13:00:00+01:00", "time_ago": "2d ago"},
        ],
        "episodes": [
            {
                "summary": "They bought a boat.",
                "from": "2026-05-10T14:00:00+02:00",
                "to": "2026-08-10T14:00:00+02:00",
                "time_ago": "0s ago",
                "tags": ["boat", "money"],
            }
        ],
    }
    options = {"limit": 5, "held_at": None, "asked_at": NOW, "time_zone": "Europe/Berlin"}
    assert tiers.asked == [("remember", (OWN,), "boat", options)]


async def test_nothing_found(tools: BuiltinTools, call: Make) -> None:
    result = await tools.execute(call("episodic_memory_search", query="boat"))
    assert json.loads(result.text) == {"message": "No results found.", "facts": [], "episodes": []}


async def test_shared_scope_is_searched_with_own_scope(tools: BuiltinTools, tiers: Services, call: Make) -> None:
    shared = replace(
        call("episodic_memory_search", query="boat", limit=7), memory=memory_access("agent-1", "crew", None)
    )
    await tools.execute(shared)
    scopes = (OWN, MemoryScope("agent-1", "crew"))
    assert [(asked[1], asked[3]["limit"]) for asked in tiers.asked] == [(scopes, 7)]


@pytest.mark.parametrize(
    ("is_knowledge", "message"),
    [
        (False, "Showing 1 facts and 0 episodes, those that held 'in May' first:"),
        (True, "Showing 1 facts and 0 episodes known 'in May':"),
    ],
)
async def test_times_of_the_query_are_named(
    tools: BuiltinTools, tiers: Services, call: Make, is_knowledge: bool, message: str
) -> None:
    tiers.memories = MemoryHits((Fact("fact-2", "Ada sails.", NOW - timedelta(days=2)),), (), "in May", is_knowledge)
    result = await tools.execute(call("episodic_memory_search", query="boat in May"))
    assert json.loads(result.text)["message"] == message


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("episodic_memory_correct", {"fact_id": "f1", "statement": "x"}, "'f1' is not an id of a fact."),
        ("episodic_memory_correct", {"fact_id": new_id("fact"), "statement": "  "}, "statement must not be empty."),
        ("episodic_memory_forget", {"fact_id": ""}, "'' is not an id of a fact."),
    ],
)
async def test_invalid_corrections_are_refused(
    tools: BuiltinTools, tiers: Services, call: Make, name: str, arguments: dict[str, str], message: str
) -> None:
    result = await tools.execute(call(name, arguments))
    assert not result.ok
    assert result.text.startswith(message)
    assert tiers.asked == []


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("2026-05-10", datetime(2026, 5, 10, 21, 59, 59, 999999, tzinfo=UTC)),
        ("2026-05-10T09:30", datetime(2026, 5, 10, 7, 30, tzinfo=UTC)),
        ("2026-05-10T09:30+00:00", datetime(2026, 5, 10, 9, 30, tzinfo=UTC)),
    ],
)
async def test_time_is_in_zone_of_agent(
    tools: BuiltinTools, tiers: Services, call: Make, text: str, meant: datetime
) -> None:
    await tools.execute(call("episodic_memory_search", query="boat", held_at=text))
    assert tiers.asked[0][3]["held_at"] == meant


@pytest.mark.parametrize("text", ["May", "2026-13-01", "9999-12-31", "0001-01-01T00:00"])
async def test_invalid_time_is_refused(tools: BuiltinTools, tiers: Services, call: Make, text: str) -> None:
    result = await tools.execute(call("episodic_memory_search", query="boat", held_at=text))
    assert not result.ok
    assert result.text.startswith(f"held_at '{text}' is not a time.")
    assert tiers.asked == []


@pytest.mark.parametrize("arguments", [{}, {"query": "boat", "limit": 0}])
async def test_arguments_out_of_bounds(tools: BuiltinTools, call: Make, arguments: dict[str, object]) -> None:
    assert not (await tools.execute(call("episodic_memory_search", arguments))).ok
