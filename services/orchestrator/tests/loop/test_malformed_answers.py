"""Answers of a model that cannot be stored unchanged: the step is stored after its tools ran."""

import json
from dataclasses import replace

import pytest
from mnemesh_orchestrator.llm.calls import MAX_CALLS, UNNAMED
from mnemesh_orchestrator.llm.errors import ProviderRefused
from mnemesh_orchestrator.llm.port import AnsweredCall, LlmAnswer
from mnemesh_orchestrator.model.runs import RunStatus, StopReason
from mnemesh_types.messages import OmittedReasoningPart, ReasoningPart, SummarizedReasoningPart, TextPart
from mnemesh_types.usage import Usage

from ..support.model import call, raw_call, say, together
from ..support.world import Process, World, deltas, lines, require_valid

GOOD = call("archival_memory_insert", content="The sea is green.")
MEGABYTE = 1 << 20


def beside(*calls: LlmAnswer, text: str = "") -> LlmAnswer:
    """The valid call, with other calls and text."""
    return together(GOOD, *calls, text=text)


def with_id(provider_id: str) -> LlmAnswer:
    return replace(GOOD, tool_calls=(replace(GOOD.tool_calls[0], provider_id=provider_id),))


@pytest.mark.parametrize(
    "answer",
    [
        beside(text="half \ud83d"),
        beside(text="NUL \0"),
        beside(text="ä" * MEGABYTE),
        beside(raw_call("", "{}")),
        beside(raw_call("\ud800" * 600, "{}")),
        beside(raw_call("archival_memory_search", '{"query": "half \\ud800 NUL \\u0000"}')),
        beside(raw_call("archival_memory_search", json.dumps({"query": "x" * MEGABYTE}))),
        beside(raw_call("archival_memory_search", '{"query": [' + "1e15," * (MEGABYTE // 8) + "1]}")),
        beside(raw_call("archival_memory_search", '{"query": "\ud800')),
        with_id("call\0"),
        with_id("call\ud800" * 200),
        replace(GOOD, content=(ReasoningPart("thought \udc00", is_native=True, signature="\ud800"),)),
        replace(
            GOOD, content=(SummarizedReasoningPart("\0", ("a\ud800",), "\0"), OmittedReasoningPart("x" * (11 << 20)))
        ),
        replace(GOOD, usage=Usage(-1, 10**30, 7)),
        replace(GOOD, response_body='{"text": "\ud800"}'),
    ],
    ids=lambda answer: None,
)
async def test_step_with_a_malformed_answer_is_stored(world: World, answer: LlmAnswer) -> None:
    world.settings = replace(world.settings, context_window=10_000_000)
    process = world.process()
    agent = await world.agent(process)
    world.model.follow(answer, say("Done."), say("Again."))
    await process.send(agent)
    run = await process.outcome(agent)
    assert (run.status, run.stop_reason) == (RunStatus.COMPLETED, StopReason.END_TURN)
    shown = lines(world.turn(agent))
    assert [line for line in shown if line.startswith("tool success of archival_memory_insert")]
    assert shown[-1] == "assistant text: Done."
    await process.send(agent)
    require_valid(world.window(agent).messages)
    assert lines(world.turn(agent))[-1] == "assistant text: Again."


async def test_character_split_between_two_deltas_is_kept(world: World, process: Process) -> None:
    agent = await world.agent(process)
    world.model.follow(say("123456\ud83d\ude00! \ud83d"))
    events = await process.send(agent, stream_tokens=True)
    assert "".join(piece.text for piece in deltas(events)) == "123456😀! \ufffd"
    assert lines(world.turn(agent))[-1] == "assistant text: 123456😀! \ufffd"


async def test_call_without_a_name_and_long_call_are_error_returns(world: World, process: Process) -> None:
    agent = await world.agent(process)
    world.model.follow(together(raw_call("", "{}"), raw_call("archival_memory_insert", "9" * 2 * MEGABYTE)), say("Oh."))
    await process.send(agent)
    returns = [line for line in lines(world.turn(agent)) if line.startswith("tool error")]
    assert returns[0].startswith(f"tool error of {UNNAMED}: Error: there is no tool {UNNAMED}")
    assert "the arguments had 2,097,152 bytes; at most 1,048,576 are accepted. Call the tool again" in returns[1]
    stored = world.turn(agent)[1].tool_calls[1].arguments
    assert "2,097,152 bytes" in stored


async def test_provider_error_with_a_lone_surrogate_ends_the_run(world: World, process: Process) -> None:
    agent = await world.agent(process)
    world.model.follow(ProviderRefused("bad \ud800\0", provider="scripted", status=400, quote="\udc00"), say("Hello."))
    await process.send(agent)
    run = await process.outcome(agent)
    assert run.error is not None
    assert (run.status, run.error.message) == (RunStatus.FAILED, "bad \ufffd\ufffd")
    assert len(world.model.requests) == 1
    await process.send(agent)
    assert lines(world.turn(agent))[-1] == "assistant text: Hello."


async def test_answer_with_too_many_calls_is_refused_before_a_tool_runs(world: World, process: Process) -> None:
    agent = await world.agent(process)
    flood = replace(GOOD, tool_calls=(AnsweredCall("archival_memory_insert", '{"content": "x"}'),) * (MAX_CALLS + 1))
    large = replace(GOOD, content=(TextPart("x" * MEGABYTE),) * 9)
    for answer in (flood, large):
        world.model.follow(answer, answer)
        await process.send(agent)
        run = await process.outcome(agent)
        assert run.stop_reason is StopReason.INVALID_LLM_RESPONSE
        assert world.turn(agent) == ()
