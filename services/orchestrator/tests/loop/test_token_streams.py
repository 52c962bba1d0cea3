"""Deltas of an answer: in order, without gaps, and in the end equal to the stored message."""

import json

import pytest
from mnemesh_orchestrator.llm.port import LlmAnswer
from mnemesh_orchestrator.model.agents import AgentType
from mnemesh_orchestrator.model.events import Delta, MessageEvent, RunEvent, StepStarted
from mnemesh_orchestrator.model.rules import RequiresApproval, RunFirst
from mnemesh_types.agents import ModelSettings
from mnemesh_types.messages import ReasoningPart, TextPart

from ..support.model import Cut, call, say, together
from ..support.world import Process, World, deltas, told


def joined(pieces: list[Delta]) -> dict[str, tuple[str, str]]:
    """Returns the kind and the whole text by otid. Offsets must be contiguous."""
    texts: dict[str, tuple[str, str]] = {}
    for piece in pieces:
        kind, text = texts.get(piece.otid, (piece.kind, ""))
        assert (piece.kind, piece.offset) == (kind, len(text))
        texts[piece.otid] = (kind, text + piece.text)
    return texts


def shown(events: list[RunEvent]) -> dict[str, tuple[str, str]]:
    """Returns the kind and the text of the stored messages by otid."""
    texts = {}
    for body in told(events):
        if isinstance(body, MessageEvent) and body.kind in ("assistant", "reasoning"):
            part = body.content[0]
            assert isinstance(part, TextPart | ReasoningPart)
            texts[body.otid] = (body.kind, part.text)
        elif isinstance(body, MessageEvent) and body.kind == "tool_call":
            texts[body.otid] = ("tool_call", body.tool_calls[0].arguments)
    return texts


async def test_text_and_reasoning_are_streamed(world: World, process: Process) -> None:
    agent = await world.agent(process)
    world.model.follow(say("It is a long way to Tipperary, for one who goes there on foot.", thought="How far? Far."))
    events = await process.send(agent, stream_tokens=True)
    assert joined(deltas(events)) == shown(events)
    assert {kind for kind, _ in shown(events).values()} == {"assistant", "reasoning"}
    ids = {piece.message_id for piece in deltas(events)}
    assert ids == {world.turn(agent)[-1].id}


async def test_argument_of_the_speaking_tool_is_streamed_as_text(world: World, process: Process) -> None:
    agent = await world.agent(process, AgentType.MEMGPT_V2)
    world.model.follow(
        call("send_message", thinking="They greet; so do I.", message='Hello "you"\nthere — how \\ are we? 😀')
    )
    events = await process.send(agent, stream_tokens=True)
    assert joined(deltas(events)) == shown(events)
    assert sorted(kind for kind, _ in joined(deltas(events)).values()) == ["assistant", "reasoning"]


@pytest.mark.parametrize("kind", [AgentType.LETTA_V1, AgentType.MEMGPT_V2])
async def test_tool_calls_are_streamed(world: World, process: Process, kind: AgentType) -> None:
    agent = await world.agent(process, kind)
    last = say("Done.") if kind is AgentType.LETTA_V1 else call("send_message", message="Done.")
    added = {} if kind is AgentType.LETTA_V1 else {"thinking": "Keep it.", "request_heartbeat": True}
    world.model.follow(call("archival_memory_insert", **added, content="tea and biscuits"), last)
    events = await process.send(agent, stream_tokens=True)
    pieces = [piece for piece in deltas(events) if piece.kind == "tool_call"]
    assert {piece.tool_name for piece in pieces} == {"archival_memory_insert"}
    ((otid, (_, text)),) = joined(pieces).items()
    assert json.loads(text)["content"] == "tea and biscuits"
    # The parts have the otids that the stored message gives them, the thought before the call.
    whole = shown(events)
    assert whole[otid][0] == "tool_call"
    assert {key: kind for key, (kind, _) in joined(deltas(events)).items()} == {
        key: kind for key, (kind, _) in whole.items()
    }
    call_ids = {created.id for message in world.window(agent).messages for created in message.tool_calls}
    assert {piece.tool_call_id for piece in pieces} <= call_ids


async def test_parallel_calls_are_distinguished(world: World, process: Process) -> None:
    agent = await world.agent(process)
    world.model.follow(
        together(
            call("archival_memory_insert", content="one one one"),
            call("archival_memory_insert", content="two two two"),
        ),
        say("Done."),
    )
    events = await process.send(agent, stream_tokens=True)
    pieces = [piece for piece in deltas(events) if piece.kind == "tool_call"]
    said = {json.loads(text)["content"] for _, text in joined(pieces).values()}
    assert said == {"one one one", "two two two"}
    assert len({piece.tool_call_id for piece in pieces}) == 2


async def test_without_stream_tokens_there_are_no_deltas(world: World, process: Process) -> None:
    agent = await world.agent(process)
    world.model.follow(say("Hello."))
    assert deltas(await process.send(agent)) == []


async def test_deltas_precede_their_message(world: World, process: Process) -> None:
    agent = await world.agent(process)
    answer: LlmAnswer = say("Hello, world. Hello, world.")
    world.model.follow(answer)
    events = await process.send(agent, stream_tokens=True)
    places = [i for i, event in enumerate(events) if isinstance(event.body, Delta)]
    shown = [i for i, event in enumerate(events) if isinstance(event.body, MessageEvent)]
    whole = shown[1]  # the first one is the input
    assert places
    assert max(places) < whole


@pytest.mark.parametrize("first", [True, False], ids=["said first", "said last"])
async def test_text_is_held_until_no_call_can_wait_for_approval(world: World, process: Process, first: bool) -> None:
    """A model that may call several tools at once."""
    rules = (RequiresApproval("archival_memory_insert"),)
    agent = await world.agent(
        process,
        tool_names=("send_message",),
        tool_rules=rules,
        model_settings=ModelSettings(parallel_tool_calls=True),
    )
    speech, waits = call("send_message", message="It is kept."), call("archival_memory_insert", content="one")
    world.model.follow(together(speech, waits) if first else together(waits, speech))
    events = await process.send(agent, stream_tokens=True)
    assert [piece for piece in deltas(events) if "kept" in piece.text or piece.kind == "assistant"] == []
    assert "assistant" not in {body.kind for body in told(events) if isinstance(body, MessageEvent)}


async def test_held_text_is_sent_at_once_and_as_stored(world: World, process: Process) -> None:
    agent = await world.agent(
        process,
        tool_names=("send_message",),
        tool_rules=(RequiresApproval("archival_memory_insert"),),
        model_settings=ModelSettings(parallel_tool_calls=True),
    )
    world.model.follow(call("send_message", message="Hello, there you are."), say(""))
    events = await process.send(agent, stream_tokens=True)
    assert joined(deltas(events)) == shown(events)
    assert [piece.text for piece in deltas(events) if piece.kind == "assistant"] == ["Hello, there you are."]


def heard(events: list[RunEvent], attempt: int) -> str:
    """Returns the text that was streamed for the answer of that attempt."""
    attempts = [place for place, event in enumerate(events) if isinstance(event.body, StepStarted)] + [len(events)]
    told_of_it = events[attempts[attempt - 1] : attempts[attempt]]
    return "".join(piece.text for piece in deltas(told_of_it) if piece.kind == "assistant")


async def test_only_call_is_streamed_although_other_tools_need_approval(world: World, process: Process) -> None:
    """Streamed text arrives even if the answer is interrupted."""
    rules = (RequiresApproval("archival_memory_insert"),)
    agent = await world.agent(process, AgentType.MEMGPT_V2, tool_rules=rules)
    speech = call("send_message", thinking="They greet.", message="Hello, there you are.", request_heartbeat=False)
    world.model.follow(Cut(speech), speech)
    events = await process.send(agent, stream_tokens=True)
    assert (heard(events, 1), heard(events, 2)) == ("Hello, there you are.", "Hello, there you are.")


@pytest.mark.parametrize("forbidden", [False, True])
async def test_waiting_call_holds_text_back_and_refused_call_does_not(
    world: World, process: Process, forbidden: bool
) -> None:
    """The model calls two tools although one is allowed."""
    rules = (RequiresApproval("archival_memory_insert"), *([RunFirst("send_message")] if forbidden else []))
    agent = await world.agent(process, AgentType.MEMGPT_V2, tool_rules=rules)
    both = together(call("archival_memory_insert", content="one"), call("send_message", message="It is kept."))
    world.model.follow(Cut(both), both)
    events = await process.send(agent, stream_tokens=True, max_steps=1)
    assert heard(events, 1) == ("It is kept." if forbidden else "")
    assert ("assistant" in {body.kind for body in told(events) if isinstance(body, MessageEvent)}) is forbidden
