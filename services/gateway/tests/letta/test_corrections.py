"""Corrections of stored messages in the profile 0.16.1: windows, recall and searches have the new words alone."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest_asyncio
from mnemesh_testkit.fakes.openai import FakeOpenAI
from mnemesh_testkit.fakes.server import Reply
from mnemesh_testkit.mesh.in_process import Mesh
from mnemesh_testkit.timeouts import scaled

from .lab import MODEL

NOBODY = "agent-123e4567-e89b-42d3-8456-426614174000"


@pytest_asyncio.fixture
async def http(tmp_path: Path, fake_openai: FakeOpenAI) -> AsyncIterator[httpx.AsyncClient]:
    """A gateway of the profile 0.16.1."""
    settings = {"gateway": {"letta_profile": "0.16.1"}}
    async with (
        Mesh(tmp_path, openai_base_url=fake_openai.base_url, gateway=True, settings=settings) as mesh,
        httpx.AsyncClient(base_url=f"http://{mesh.addresses['gateway']}/v1", timeout=scaled(60)) as http,
    ):
        yield http


async def _spoken(http: httpx.AsyncClient, kind: str) -> tuple[str, dict[str, dict[str, Any]]]:
    """Returns an agent of a type that was told something, and the newest message of each type."""
    agent = (await http.post("/agents/", json={"model": MODEL, "agent_type": kind})).json()["id"]
    told = {"input": "The lighthouse is red."}
    assert (await http.post(f"/agents/{agent}/messages", json=told)).status_code == 200
    return agent, {each["message_type"]: each for each in await _listed(http, agent)}


async def _listed(http: httpx.AsyncClient, agent: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await http.get(f"/agents/{agent}/messages")).json()
    return found


async def _found(http: httpx.AsyncClient, agent: str, words: str) -> list[str]:
    body = {"query": words, "agent_id": agent, "search_mode": "fts"}
    return [hit["content"] for hit in (await http.post("/messages/search", json=body)).json()]


async def test_the_words_of_a_user_and_of_an_agent_are_corrected(
    http: httpx.AsyncClient, fake_openai: FakeOpenAI
) -> None:
    fake_openai.script = [Reply(text="A crimson one."), Reply(text="I see.")]
    agent, messages = await _spoken(http, "letta_v1_agent")
    user, answer = messages["user_message"], messages["assistant_message"]
    for message, words in ((user, "The lighthouse is green."), (answer, "An emerald one.")):
        body = {"message_type": message["message_type"], "content": words}
        changed = await http.patch(f"/agents/{agent}/messages/{message['id']}", json=body)
        assert (changed.status_code, changed.json()["content"]) == (200, words), changed.text
        assert changed.json()["id"] == message["id"]
    said = [message["content"] for message in await _listed(http, agent) if "content" in message]
    assert said[-2:] == ["The lighthouse is green.", "An emerald one."]
    assert await _found(http, agent, "red crimson") == []
    assert (await _found(http, agent, "emerald"))[0] == "An emerald one."
    await http.post(f"/agents/{agent}/messages", json={"input": "Well?"})
    prompt = str(fake_openai.requests[-1])
    assert "emerald" in prompt
    assert "crimson" not in prompt


async def test_what_an_agent_said_with_a_tool_and_thought_is_corrected(
    http: httpx.AsyncClient, fake_openai: FakeOpenAI
) -> None:
    said = {"thinking": "Red, then.", "message": "A crimson one.", "request_heartbeat": False}
    fake_openai.script = [Reply(tool_calls=[("send_message", said)])]
    agent, messages = await _spoken(http, "memgpt_v2_agent")
    thought, answer = messages["reasoning_message"], messages["assistant_message"]
    for message, field, words in ((answer, "content", "An emerald one."), (thought, "reasoning", "Green, then.")):
        body = {"message_type": message["message_type"], field: words}
        changed = await http.patch(f"/agents/{agent}/messages/{message['id']}", json=body)
        assert (changed.status_code, changed.json()[field]) == (200, words), changed.text
    after = {each["message_type"]: each for each in await _listed(http, agent)}
    assert after["assistant_message"]["content"] == "An emerald one."
    assert after["reasoning_message"]["reasoning"] == "Green, then."


async def test_a_wrong_correction_is_refused_and_changes_nothing(
    http: httpx.AsyncClient, fake_openai: FakeOpenAI
) -> None:
    fake_openai.script = [Reply(text="A crimson one.")]
    agent, messages = await _spoken(http, "letta_v1_agent")
    before, answer = await _listed(http, agent), messages["assistant_message"]["id"]
    mine, unknown = f"/agents/{agent}/messages/{answer}", "message-123e4567-e89b-42d3-8456-426614174000"
    for path, body, status, words in (
        (mine, {"content": "x"}, 422, "message_type"),
        (mine, {"message_type": "tool_call_message", "content": "x"}, 422, "message_type"),
        (mine, {"message_type": "user_message", "content": "x"}, 422, "no user_message"),
        (mine, {"message_type": "reasoning_message", "reasoning": "x"}, 422, "no reasoning_message"),
        (mine, {"message_type": "reasoning_message"}, 422, "reasoning"),
        (mine, {"message_type": "assistant_message"}, 422, "content"),
        (mine, {"message_type": "assistant_message", "content": [{"type": "audio"}]}, 422, "content"),
        (f"/agents/{NOBODY}/messages/{answer}", {"message_type": "assistant_message", "content": "x"}, 404, NOBODY),
        (f"/agents/{agent}/messages/{unknown}", {"message_type": "assistant_message", "content": "x"}, 404, unknown),
    ):
        refused = await http.patch(path, json=body)
        assert (refused.status_code, words in refused.json()["detail"]) == (status, True), (body, refused.text)
    assert await _listed(http, agent) == before
