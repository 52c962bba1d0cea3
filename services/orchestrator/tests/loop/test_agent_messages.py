"""Messages between two agents: replies, refusals, and time limits."""

import ast
import asyncio
import json

import pytest
from mnemesh_kit.call_context import Principal
from mnemesh_kit.errors import Internal
from mnemesh_kit.ids import new_id
from mnemesh_orchestrator.builtin.schemas import BUILTIN_SCHEMAS
from mnemesh_orchestrator.llm.port import LlmRequest
from mnemesh_orchestrator.model.agents import Agent, AgentType
from mnemesh_orchestrator.model.creation import AgentDraft
from mnemesh_orchestrator.model.rules import RequiresApproval
from mnemesh_orchestrator.model.runs import CancelOutcome, RunFilter, RunOrigin, RunStatus
from mnemesh_types.messages import Role, ToolStatus

from ..support.model import Held, Item, call, say
from ..support.world import ME, Process, World, lines, require_valid
from .correspondents import ASK, BY_TAGS, SEND, TEN, TO_GROUP, children, named, result, returns, script


@pytest.mark.parametrize("kind", [AgentType.LETTA_V1, AgentType.MEMGPT_V2])
async def test_reply_of_another_agent_is_returned(world: World, process: Process, kind: AgentType) -> None:
    ann, ben = await named(world, process, "Ann"), await named(world, process, "Ben", kind)
    answer = say("Green tea.") if kind is AgentType.LETTA_V1 else call("send_message", message="Green tea.")
    script(world, Ann=[call(ASK, message="Which tea?", other_agent_id=ben.id), say("It is green.")], Ben=[answer])
    events = await process.send(ann, "Ask Ben.")
    (returned,) = returns(events)
    assert returned.text == f"{{'agent_id': '{ben.id}', 'response': ['Green tea.'], 'agent_name': 'Ben'}}"
    assert lines(world.turn(ann))[-1] == "assistant text: It is green."
    (received,) = [message for message in world.turn(ben) if message.role is Role.SYSTEM]
    assert received.sender_id == ann.id
    assert received.text.startswith(f"[This message comes from the agent Ann (id {ann.id}), not from the user.")
    assert received.text.endswith("\n\nWhich tea?")
    sender, child = await process.outcome(ann), await process.outcome(ben)
    assert (child.lineage.parent_run_id, child.lineage.origin) == (sender.id, RunOrigin.AGENT)
    assert sender.child_run_ids == children(events) == (child.id,)
    require_valid(world.window(ben).messages)


async def test_run_without_messages_reads_no_children(world: World, process: Process) -> None:
    ann = await named(world, process, "Ann")
    script(world, Ann=[say("Hello.")])
    process.faults.calls.clear()
    events = await process.send(ann)
    assert children(events) == ()
    assert not [name for name in process.faults.calls if name.startswith("run_relations")]


async def test_message_without_reply_ends_the_turn_and_the_answer_stays_there(world: World, process: Process) -> None:
    ann, ben = await named(world, process, "Ann", AgentType.MEMGPT_V2), await named(world, process, "Ben")
    hold = Held(say("I will."))
    script(world, Ann=[call(SEND, message="Water the plants.", other_agent_id=ben.id)], Ben=[hold])
    events = await process.send(ann, "Tell Ben.")
    assert returns(events)[0].text == "Successfully sent message"
    (child_id,) = children(events)
    assert (await process.runs.get(ME, child_id)).lineage.ancestors == ()
    hold.released.set()
    await process.idle()
    assert lines(world.turn(ben))[-1] == "assistant text: I will."


async def refusal(process: Process, sender: Agent) -> dict[str, str]:
    events = await process.send(sender, "Ask.")
    (returned,) = returns(events)
    assert returned.status is ToolStatus.ERROR
    error: dict[str, str] = ast.literal_eval(returned.text)
    return error


@pytest.mark.parametrize("tool", [ASK, SEND])
async def test_agents_that_cannot_be_reached(world: World, process: Process, tool: str) -> None:
    """Agents of other organizations do not exist for an agent, like ids that do not exist."""
    ann = await named(world, process, "Ann")
    stranger = Principal(new_id("org"), new_id("user"))
    foreign = await process.lifecycle.create(stranger, None, AgentDraft(AgentType.LETTA_V1, name="Far"))
    for other in (foreign.id, new_id("agent"), "Ben", ""):
        script(world, Ann=[call(tool, message="Hello?", other_agent_id=other), say("Nobody.")])
        error = await refusal(process, ann)
        assert (error["agent_id"], error["type"]) == (other, "NOT_FOUND")
        assert error["error"].startswith(f"There is no agent {other}.")
    script(world, Ann=[call(tool, message="Hello?", other_agent_id=ann.id), say("Nobody.")])
    error = await refusal(process, ann)
    assert error["error"] == "An agent cannot send a message to itself."
    assert error["type"] == "MESSAGE_CYCLE"
    script(world, Ann=[call(tool, message="", other_agent_id=foreign.id), say("Nobody.")])
    await process.send(ann)
    assert (await process.runs.list(stranger, RunFilter(), TEN)).items == ()


async def test_agent_that_asks_back_gets_an_error_and_the_chain_ends(world: World, process: Process) -> None:
    ann, ben = await named(world, process, "Ann"), await named(world, process, "Ben")
    script(
        world,
        Ann=[call(ASK, message="Which tea?", other_agent_id=ben.id), say("Fine.")],
        Ben=[call(ASK, message="Which one do you like?", other_agent_id=ann.id), say("Any.")],
    )
    events = await process.send(ann)
    assert result(events)["response"] == ["Any."]
    (returned,) = [item for message in world.turn(ben) for item in message.tool_returns]
    error = ast.literal_eval(returned.text)
    assert (returned.status, error["agent_id"]) == (ToolStatus.ERROR, ann.id)
    assert "waits for this agent's answer" in error["error"]


async def test_two_agents_that_ask_each_other_at_once_both_end(world: World, process: Process) -> None:
    ann, ben = await named(world, process, "Ann"), await named(world, process, "Ben")
    asks = [
        Held(call(ASK, message="Ann asks.", other_agent_id=ben.id)),
        Held(call(ASK, message="Ben asks.", other_agent_id=ann.id)),
    ]
    script(world, Ann=[asks[0], say("Ann is done.")], Ben=[asks[1], say("Ben is done.")])
    runs = [await process.start(agent) for agent in (ann, ben)]
    for ask in asks:
        await ask.asked.wait()
    # The turns that answer have nothing to ask.
    answers = {"Ann": say("Ann answers."), "Ben": say("Ben answers.")}
    first = world.model.script

    def choose(request: LlmRequest) -> Item:
        last = request.messages[-1]
        if last.role is Role.SYSTEM:
            return answers[request.messages[0].text.split()[0]]
        return first(request)  # type: ignore[operator]

    world.model.script = choose
    for ask in asks:
        ask.released.set()
    of_ann, of_ben = [await asyncio.wait_for(process.follow(run), 20) for run in runs]
    assert result(of_ann)["response"] == ["Ben answers."]
    assert "would wait for each other" in result(of_ben)["error"]
    await process.idle()


async def test_messages_without_replies_go_on_to_a_depth(world: World, process: Process) -> None:
    ann, ben = await named(world, process, "Ann"), await named(world, process, "Ben")
    script(
        world,
        Ann=[call(SEND, message="Ping.", other_agent_id=ben.id), say("Sent.")],
        Ben=[call(SEND, message="Pong.", other_agent_id=ann.id), say("Sent.")],
    )
    await process.send(ann)
    await process.idle()
    runs = (await process.runs.list(ME, RunFilter(origins=(RunOrigin.AGENT,)), TEN)).items
    assert [run.lineage.depth for run in runs] == list(range(1, 9))
    (last,) = [item for message in world.turn(ann)[-3:] for item in message.tool_returns]
    assert ast.literal_eval(last.text)["type"] == "MESSAGE_DEPTH_EXCEEDED"


@pytest.mark.parametrize("begun", [False, True])
async def test_late_replies_are_not_awaited(world: World, process: Process, begun: bool) -> None:
    """A message that its recipient has not begun to answer is withdrawn; an answer that has begun goes on."""
    world.reply_seconds = 0.02
    process = world.process()
    ann, ben = await named(world, process, "Ann"), await named(world, process, "Ben")
    hold = Held(say("Late."))
    script(world, Ann=[call(ASK, message="Which tea?", other_agent_id=ben.id), say("No answer.")], Ben=[hold])
    if not begun:
        await process.start(ben, "Think.")
        await hold.asked.wait()
    events = await asyncio.wait_for(process.send(ann), 20)
    error = result(events)
    assert error["type"] == "REPLY_TIMEOUT"
    assert ("It goes on" in error["error"]) == begun
    assert ("was withdrawn" in error["error"]) != begun
    hold.released.set()
    await process.idle()
    child = await process.runs.get(ME, children(events)[0])
    assert child.status is (RunStatus.COMPLETED if begun else RunStatus.CANCELLED)


async def test_failures_of_the_other_agent_are_told(world: World, process: Process) -> None:
    ann, ben = await named(world, process, "Ann"), await named(world, process, "Ben")
    script(world, Ann=[call(ASK, message="Tea?", other_agent_id=ben.id), say("No.")], Ben=[Internal("No model.")])
    error = await refusal(process, ann)
    assert (error["agent_id"], error["error"]) == (ben.id, "The agent failed: No model.")
    hold = Held(say("Late."))
    script(world, Ann=[call(ASK, message="Tea?", other_agent_id=ben.id), say("No.")], Ben=[hold])
    run = await process.start(ann)
    await hold.asked.wait()
    child = await process.outcome(ben)
    await process.runs.cancel(ME, RunFilter(), [child.id])
    assert result(await process.follow(run))["type"] == "CANCELLED"
    rule = RequiresApproval("archival_memory_insert")
    cleo = await named(world, process, "Cleo", tool_rules=(rule,), include_base_tool_rules=False)
    script(
        world,
        Ann=[call(ASK, message="Tea?", other_agent_id=cleo.id), say("No.")],
        Cleo=[call("archival_memory_insert", content="x")],
    )
    await process.send(cleo, "Keep it.")
    assert (await refusal(process, ann))["type"] == "PENDING_APPROVAL"


async def test_cancelled_sender_cancels_the_reply(world: World, process: Process) -> None:
    ann, ben = await named(world, process, "Ann"), await named(world, process, "Ben")
    hold = Held(say("Late."))
    script(world, Ann=[call(ASK, message="Tea?", other_agent_id=ben.id), say("No.")], Ben=[hold])
    run = await process.start(ann)
    await hold.asked.wait()
    assert await process.runs.cancel(ME, RunFilter(), [run.id]) == {run.id: CancelOutcome.CANCELLED}
    ended, child = await process.runs.get(ME, run.id), await process.outcome(ben)
    assert (child.status, ended.child_run_ids) == (RunStatus.CANCELLED, (child.id,))
    require_valid(world.window(ann).messages)
    require_valid(world.window(ben).messages)


@pytest.mark.parametrize("tool", [ASK, SEND, BY_TAGS, TO_GROUP])
async def test_messages_outside_of_a_turn_are_refused(world: World, process: Process, tool: str) -> None:
    ann, ben = await named(world, process, "Ann"), await named(world, process, "Ben", tags=("x",))
    arguments = {"message": "Tea?", "other_agent_id": ben.id, "match_all": ["x"], "match_some": []}
    known = BUILTIN_SCHEMAS[tool].parameters["properties"]
    given = {name: value for name, value in arguments.items() if name in known}
    returned = await process.tool_runner.run(ME, None, ann.id, tool, json.dumps(given))
    assert returned.status is ToolStatus.ERROR
    assert "only while the agent takes a turn" in returned.text
