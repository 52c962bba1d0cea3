"""Self modes use the agent's own context: up to the instruction, the request equals a normal one byte for byte."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from mnemesh_orchestrator.llm.anthropic_messages import render_body as anthropic
from mnemesh_orchestrator.llm.openai_chat import render_body as openai_chat
from mnemesh_orchestrator.llm.openai_responses import render_body as openai_responses
from mnemesh_orchestrator.llm.port import LlmRequest
from mnemesh_orchestrator.llm.wire import encode_body
from mnemesh_orchestrator.model.agents import AgentType
from mnemesh_orchestrator.model.models import ResponseFormat
from mnemesh_orchestrator.model.rules import RunFirst
from mnemesh_testkit.plugin import sampled
from mnemesh_types.agents import CompactionSettings

from ..support.model import Item, call, say, together
from ..support.world import ME, Process, World
from .conftest import SMALL, Speaker, is_summary_request, small_agent, summary_of, talk

RENDERERS: dict[str, Callable[[LlmRequest], Any]] = {
    "openai_chat": openai_chat,
    "openai_responses": openai_responses,
    "anthropic": anthropic,
}
INSTRUCTION = b"about to leave your context"


def body_before_instruction(raw: bytes) -> bytes:
    """Returns the body up to the message with the instruction, or up to its block if it is part of another message."""
    place = raw.index(INSTRUCTION)
    return raw[: max(raw.rindex(b'{"role":"user"', 0, place), raw.rfind(b'{"type":"text"', 0, place))].removesuffix(
        b'{"role":"user","content":['
    )


def rest(body: dict[str, Any]) -> dict[str, Any]:
    """Returns a body without messages and response format; requests for notes have no format."""
    formed = {"response_format", "text", "output_config", "output_format"}
    return {name: value for name, value in body.items() if name not in {"messages", "input", *formed}}


@pytest.mark.parametrize("api", RENDERERS)
@pytest.mark.parametrize("mode", sampled(["self_compact_sliding_window", "self_compact_all"], 2))
@pytest.mark.parametrize("kind", [AgentType.LETTA_V1, AgentType.MEMGPT_V2])
async def test_prefix_equals_that_of_normal_request(
    world: World, process: Process, speaker: Speaker, api: str, mode: str, kind: AgentType
) -> None:
    agent = await small_agent(
        world,
        process,
        kind,
        compaction_settings=CompactionSettings(mode),
        response_format=ResponseFormat("json_object"),
    )
    searched: list[bool] = []

    def search_once(request: LlmRequest) -> Item:
        if not searched:
            searched.append(True)
            return call("archival_memory_search", query="zebra", **heartbeat)
        yes = '{"answer": "yes"}'
        return call("send_message", message=yes) if request.tool_choice.kind != "auto" else say(yes)

    heartbeat = {"request_heartbeat": True} if kind is AgentType.MEMGPT_V2 else {}
    speaker.turn = search_once
    await talk(process, agent, 6)
    await process.compactions.compact(ME, None, agent.id, agent.default_conversation_id, None, dry_run=True)
    await process.send(agent, "Next.")
    summary_input = speaker.summaries[-1]
    normal = world.model.requests[world.model.requests.index(summary_input) + 1]
    assert not is_summary_request(normal)
    render = RENDERERS[api]
    ours, theirs = encode_body(render(summary_input)), encode_body(render(normal))
    prefix = body_before_instruction(ours)
    assert len(prefix) > 1_500
    assert theirs.startswith(prefix)
    for name in ("tools", "system", "instructions"):
        assert encode_body({name: render(summary_input).get(name)}) == encode_body({name: render(normal).get(name)})
    assert summary_input.tools
    assert summary_input.model == normal.model
    assert summary_input.settings == normal.settings
    # A provider uses its cache only if the rest of the body is equal, including the tool choice.
    assert summary_input.tool_choice == normal.tool_choice
    assert summary_input.tool_choice.kind == ("required" if kind is AgentType.MEMGPT_V2 else "auto")
    assert rest(render(summary_input)) == rest(render(normal))
    share = len(summary_input.messages) - 1
    assert summary_input.messages[:share] == normal.messages[:share]
    if mode == "self_compact_all":
        assert normal.messages[share].text == "Next."


async def test_self_mode_calls_configured_model(world: World, process: Process, speaker: Speaker) -> None:
    settings = CompactionSettings("self_compact_all", model="anthropic/two", prompt="Note what is about to leave.")
    agent = await small_agent(world, process, compaction_settings=settings)
    await talk(process, agent, 5)
    events: list[LlmRequest] = []

    def note(request: LlmRequest) -> Item:
        events.append(request)
        return say("Noted.")

    speaker.turn = note
    await process.compactions.compact(ME, None, agent.id, agent.default_conversation_id, None, dry_run=False)
    assert [request.model.handle for request in events] == ["anthropic/two"]
    assert events[0].messages[-1].text == "Note what is about to leave."
    assert summary_of(world.window(agent).messages) == "Noted."


async def test_notes_sent_by_send_message_are_the_summary(world: World, process: Process, speaker: Speaker) -> None:
    agent = await small_agent(
        world, process, AgentType.MEMGPT_V2, compaction_settings=CompactionSettings("self_compact_all")
    )
    await talk(process, agent, 5)
    speaker.summary = lambda request: call("send_message", message="They spoke.")
    await process.compactions.compact(ME, None, agent.id, agent.default_conversation_id, None, dry_run=False)
    assert summary_of(world.window(agent).messages) == "They spoke."
    assert speaker.summaries[-1].tool_choice.kind == "required"
    summary_input = speaker.summaries[-1].messages[-1].text
    assert "Do not continue the conversation: give the notes to send_message" in summary_input
    assert "call no tool" not in summary_input
    assert "{" not in summary_input
    settings = CompactionSettings("", prompt="Note what is about to leave your context.")
    await talk(process, agent, 3)
    await process.compactions.compact(ME, None, agent.id, agent.default_conversation_id, settings, dry_run=False)
    summary_input = speaker.summaries[-1].messages[-1].text
    assert summary_input.startswith(
        "Note what is about to leave your context.\n\nTo answer, give the notes to send_message, as"
    )


@pytest.mark.parametrize("kind", [AgentType.LETTA_V1, AgentType.MEMGPT_V2])
async def test_model_that_continues_the_conversation_falls_back(
    world: World, process: Process, speaker: Speaker, kind: AgentType
) -> None:
    agent = await small_agent(world, process, kind, compaction_settings=CompactionSettings("self_compact_all"))
    await talk(process, agent, 5)
    search = call("archival_memory_search", query="zebra")
    speaker.summary = lambda request: say("By transcript.") if request.is_verbatim else search
    await process.compactions.compact(ME, None, agent.id, agent.default_conversation_id, None, dry_run=False)
    assert summary_of(world.window(agent).messages) == "By transcript."
    assert [request.is_verbatim for request in speaker.summaries] == [False, True]


async def test_text_with_an_unexecuted_call_is_the_summary(world: World, process: Process, speaker: Speaker) -> None:
    agent = await small_agent(world, process, compaction_settings=CompactionSettings("self_compact_all"))
    await talk(process, agent, 5)
    speaker.summary = lambda request: together(call("archival_memory_search", query="x"), text="They spoke.")
    await process.compactions.compact(ME, None, agent.id, agent.default_conversation_id, None, dry_run=False)
    assert summary_of(world.window(agent).messages) == "They spoke."
    assert len(speaker.summaries) == 1


async def test_no_tool_is_required_without_send_message(world: World, process: Process, speaker: Speaker) -> None:
    agent = await small_agent(
        world,
        process,
        AgentType.MEMGPT_V2,
        model_settings=replace(SMALL, context_window=8_000),  # the schemas of the tools are a part of the request
        compaction_settings=CompactionSettings("self_compact_all"),
        tool_rules=(RunFirst("archival_memory_search"),),
    )
    await talk(process, agent, 5)
    await process.compactions.compact(ME, None, agent.id, agent.default_conversation_id, None, dry_run=False)
    summary_input = speaker.summaries[-1]
    assert [tool.name for tool in summary_input.tools] == ["archival_memory_search"]
    assert summary_input.tool_choice.kind == "auto"
    assert "call no tool; answer with the notes as plain text" in summary_input.messages[-1].text
