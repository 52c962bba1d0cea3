"""conversation_search and archival_memory_search: their requests and their results."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from mnemesh_orchestrator.builtin.executor import BuiltinTools
from mnemesh_orchestrator.builtin.search import time_ago
from mnemesh_orchestrator.model.conversations import MessageHit, NamedTime
from mnemesh_orchestrator.model.episodes import PassageHit
from mnemesh_types.messages import Message, ReasoningPart, Role, TextPart, ToolCall

from .conftest import NOW, RUN, Make, Services


def said(text: str, role: Role = Role.USER, **more: Any) -> Message:
    return Message("message-1", role, NOW - timedelta(days=1), (TextPart(text),), **more)


def hit(text: str, role: Role, ago: timedelta, *, thinking: str = "", name: str = "", **more: Any) -> MessageHit:
    parts = (ReasoningPart(thinking), TextPart(text)) if thinking else (TextPart(text),)
    place = {key: more.pop(key) for key in ("conversation_id",) if key in more}
    return MessageHit(Message("message-1", role, NOW - ago, parts, name=name or None, **place), text, 0.5, **more)


async def test_conversation_search_returns_json(tools: BuiltinTools, tiers: Services, call: Make) -> None:
    tiers.hits = (
        hit("I love Köln.", Role.USER, timedelta(hours=3), vector_rank=1, text_rank=2),
        hit("Noted!", Role.ASSISTANT, timedelta(days=2), thinking="Nice.", text_rank=1, mode="text"),
    )
    result = await tools.execute(call("conversation_search", query="city", roles=["user", "assistant"], limit=7))
    assert result.ok
    assert "Köln" in result.text
    assert json.loads(result.text) == {
        "message": "Showing 2 results:",
        "results": [
            {
                "timestamp": "2026-01-20T10:00:00+01:00",
                "time_ago": "3h ago",
                "role": "user",
                "relevance": {"rrf_score": 0.5, "vector_rank": 1, "fts_rank": 2, "search_mode": "hybrid"},
                "content": "I love Köln.",
            },
            {
                "timestamp": "2026-01-18T13:00:00+01:00",
                "time_ago": "2d ago",
                "role": "assistant",
                "relevance": {"rrf_score": 0.5, "fts_rank": 1, "search_mode": "text"},
                "thinking": "Nice.",
                "content": "Noted!",
            },
        ],
    }
    options = {
        "further_queries": (), "roles": ["user", "assistant"], "speakers": (), "limit": 7, "surrounding": 0,
        "start_date": None, "end_date": None, "time_zone": "Europe/Berlin", "now": NOW,
    }  # fmt: skip
    assert tiers.asked == [("search", "agent-1", "city", options)]


async def test_result_says_who_where_and_in_reply_to_what(tools: BuiltinTools, tiers: Services, call: Make) -> None:
    question = said("Where do you live?" + "!" * 500, Role.ASSISTANT)
    tiers.hits = (
        hit("In Köln.", Role.USER, timedelta(hours=3), name="Zoë", conversation_id="conv-2", question=question),
        hit("In Rome.", Role.USER, timedelta(hours=4), conversation_id=RUN.conversation_id),
    )
    tiers.times = (
        NamedTime("last week", datetime(2026, 1, 11, 23, tzinfo=UTC), datetime(2026, 1, 18, 23, tzinfo=UTC)),
        NamedTime("before May", None, datetime(2025, 4, 30, 22, tzinfo=UTC)),
    )
    result = json.loads((await tools.execute(call("conversation_search", query="home last week, before May"))).text)
    assert result == {
        "message": "Showing 2 results:",
        "times": [
            {"expression": "last week", "from": "2026-01-12T00:00+01:00", "until": "2026-01-19T00:00+01:00"},
            {"expression": "before May", "until": "2025-05-01T00:00+02:00"},
        ],
        "results": [
            {
                "timestamp": "2026-01-20T10:00:00+01:00",
                "time_ago": "3h ago",
                "role": "user",
                "speaker": "Zoë",
                "conversation_id": "conv-2",
                "relevance": {"rrf_score": 0.5, "search_mode": "hybrid"},
                "question": {"role": "assistant", "content": "Where do you live?" + "!" * 482 + "…"},
                "content": "In Köln.",
            },
            {
                "timestamp": "2026-01-20T09:00:00+01:00",
                "time_ago": "4h ago",
                "role": "user",
                "relevance": {"rrf_score": 0.5, "search_mode": "hybrid"},
                "content": "In Rome.",
            },
        ],
    }


async def test_result_with_the_messages_around_it(tools: BuiltinTools, tiers: Services, call: Make) -> None:
    sent = ToolCall("call-1", "send_message", json.dumps({"message": "Where?"}))
    other = ToolCall("call-2", "look", json.dumps({"message": "no words"}))
    unreadable = ToolCall("call-3", "send_message", "{")
    before = (said("Hello", name="Zoë"), said("", Role.ASSISTANT, tool_calls=(sent, other, unreadable)))
    tiers.hits = (
        hit("Köln", Role.USER, timedelta(), before=before, after=(said("Nice", Role.ASSISTANT),), question=before[1]),
    )
    arguments = {"queries": ["home", "city"], "speakers": ["Zoë"], "surrounding": 2}
    result = await tools.execute(call("conversation_search", arguments, query="Where does Zoë live?"))
    (found,) = json.loads(result.text)["results"]
    assert found["before"] == [
        {"role": "user", "speaker": "Zoë", "content": "Hello"},
        {"role": "assistant", "content": "Where?"},
    ]
    assert found["after"] == [{"role": "assistant", "content": "Nice"}]
    assert "question" not in found  # It is among the messages before.
    options = tiers.asked[0][3]
    assert (options["further_queries"], options["speakers"], options["surrounding"]) == (["home", "city"], ["Zoë"], 2)


async def test_search_without_results(tools: BuiltinTools, tiers: Services, call: Make) -> None:
    result = await tools.execute(call("conversation_search", query="city"))
    assert json.loads(result.text) == {"message": "No results found.", "results": []}
    assert tiers.asked[0][3]["limit"] == 5


async def test_archival_search_returns_json_list(tools: BuiltinTools, tiers: Services, call: Make) -> None:
    tiers.hits = (
        PassageHit("passage-1", "Tea at five.", ("food",), NOW, 0.25, vector_rank=1),
        PassageHit("passage-2", "Part two.", (), NOW, 0.2, text_rank=1, before=("Part one.",), after=("x" * 501,)),
    )
    arguments = {"tags": ["food", "x"], "tag_match_mode": "all", "top_k": 3, "end_datetime": "2026-01-20"}
    result = await tools.execute(call("archival_memory_search", arguments, query="tea"))
    assert json.loads(result.text) == [
        {
            "timestamp": "2026-01-20T13:00:00+01:00",
            "time_ago": "0s ago",
            "content": "Tea at five.",
            "tags": ["food"],
            "relevance": {"rrf_score": 0.25, "vector_rank": 1},
        },
        {
            "timestamp": "2026-01-20T13:00:00+01:00",
            "time_ago": "0s ago",
            "before": ["Part one."],
            "content": "Part two.",
            "after": ["x" * 500 + "…"],
            "tags": [],
            "relevance": {"rrf_score": 0.2, "fts_rank": 1},
        },
    ]
    options = tiers.asked[0][3]
    assert options["match_all_tags"] is True
    assert (options["limit"], options["end_date"], options["now"]) == (3, "2026-01-20", NOW)


async def test_blank_archival_search_returns_nothing(tools: BuiltinTools, tiers: Services, call: Make) -> None:
    result = await tools.execute(call("archival_memory_search", query="  ", queries=["", "\t"]))
    assert result.text == "[]"
    assert tiers.asked == []


async def test_blank_query_of_an_archival_search_is_left_out(tools: BuiltinTools, tiers: Services, call: Make) -> None:
    await tools.execute(call("archival_memory_search", query=" ", queries=["tea", "", "coffee"], surrounding=1))
    assert tiers.asked[0][2] == "tea"
    options = tiers.asked[0][3]
    assert (options["further_queries"], options["surrounding"]) == (["coffee"], 1)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "0s ago"),
        (0, "0s ago"),
        (59, "59s ago"),
        (60, "1m ago"),
        (3599, "59m ago"),
        (3600, "1h ago"),
        (86_399, "23h ago"),
        (86_400, "1d ago"),
        (864_000, "10d ago"),
    ],
)
def test_time_ago_uses_largest_whole_unit(seconds: int, text: str) -> None:
    assert time_ago(NOW - timedelta(seconds=seconds), NOW) == text
