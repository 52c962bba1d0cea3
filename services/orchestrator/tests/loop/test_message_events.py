"""The events of a turn: every kind of message, each part under its own otid, and reasoning by kind."""

from dataclasses import replace

import pytest
from mnemesh_orchestrator.model.events import MessageEvent, RunEvent
from mnemesh_orchestrator.model.rules import RequiresApproval
from mnemesh_orchestrator.rpc.convert.runs import event_to_proto
from mnemesh_types.messages import (
    Approve,
    ContentPart,
    OmittedReasoningPart,
    ReasoningPart,
    RedactedReasoningPart,
    SummarizedReasoningPart,
    TextPart,
)

from ..support.model import call, say, together
from ..support.world import Process, World, told


def shown(events: list[RunEvent]) -> list[MessageEvent]:
    return [body for body in told(events) if isinstance(body, MessageEvent)]


@pytest.mark.parametrize(
    ("part", "kind"),
    [
        (ReasoningPart("I think aloud.", is_native=True), "reasoning"),
        (ReasoningPart("I think aloud.", is_native=True, signature="s"), "reasoning"),
        (SummarizedReasoningPart("rs_1", ("In short.",), "x"), "reasoning"),
        (SummarizedReasoningPart("rs_1", (), "x"), "hidden_reasoning"),
        (RedactedReasoningPart("secret"), "hidden_reasoning"),
        (OmittedReasoningPart("s"), "hidden_reasoning"),
    ],
    ids=["native", "signed", "summarised", "without a summary", "redacted", "omitted"],
)
async def test_reasoning_is_shown_by_kind_and_stored_unchanged(
    world: World, process: Process, part: ContentPart, kind: str
) -> None:
    agent = await world.agent(process)
    world.model.follow(replace(say("Hello."), content=(part, TextPart("Hello."))))
    events = await process.send(agent)
    thought, words = shown(events)
    assert (thought.kind, thought.content, words.kind) == (kind, (part,), "assistant")
    assert thought.message_id == words.message_id
    assert thought.otid != words.otid
    assert world.turn(agent)[-1].content == (part, TextPart("Hello."))
    proto = next(event_to_proto(event) for event in events if event.body == thought)
    assert proto.message.WhichOneof("message") == kind
    assert proto.message.hidden_reasoning.redacted == isinstance(part, RedactedReasoningPart)


async def test_every_kind_of_message_has_one_event(world: World, process: Process) -> None:
    agent = await world.agent(process, tool_rules=(RequiresApproval("archival_memory_insert"),))
    hidden = RedactedReasoningPart("x")
    asking = together(call("conversation_search", query="x"), call("archival_memory_insert", content="one"))
    world.model.follow(
        replace(asking, content=(ReasoningPart("Look, then keep.", is_native=True), hidden)), say("Kept.")
    )
    first = await process.send(agent)
    (request,) = (body for body in shown(first) if body.kind == "approval_request")
    second = await process.answer(agent, *(Approve(created.id) for created in request.tool_calls))
    assert [body.kind for body in shown(first)] == ["reasoning", "hidden_reasoning", "tool_call", "approval_request"]
    assert [body.kind for body in shown(second)] == ["approval_response", "tool_return", "tool_return", "assistant"]
    otids = [body.otid for body in (*shown(first), *shown(second))]
    assert len(set(otids)) == len(otids)
