"""Client tools: sent to the model, awaited, and answered with their return."""

import json
from typing import Any

import pytest
from mnemesh_kit.errors import InvalidArgument
from mnemesh_orchestrator.model.agents import AgentType
from mnemesh_orchestrator.model.inputs import ClientTool, RunConfig
from mnemesh_orchestrator.model.runs import StopReason
from mnemesh_types.messages import ApprovalDecision, Approve, ClientReturn, ImagePart, TextPart, ToolReturn, ToolStatus

from ..support.model import call, raw_call, say, together
from ..support.world import ME, Process, World, kinds, lines, require_valid
from .gated import asked, deny

PARAMETERS = json.dumps({"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]})
OPEN = ClientTool("open_file", PARAMETERS, "Opens a file on the user's machine.")


def returned(call_id: str, text: str, status: ToolStatus = ToolStatus.SUCCESS, **printed: Any) -> ApprovalDecision:
    return ClientReturn(call_id, ToolReturn.from_text(call_id, "", status, text, **printed))


async def test_client_tool_is_offered_awaited_and_answered(world: World, process: Process) -> None:
    agent = await world.agent(process)
    world.model.follow(call("open_file", path="/etc/motd"), say("It says hello."))
    first = await process.send(agent, "Read it.", client_tools=(OPEN,))
    offered = {tool.name: tool for tool in world.model.last.tools}
    assert offered["open_file"].description == OPEN.description
    assert offered["open_file"].parameters == json.loads(PARAMETERS)
    assert kinds(first) == ["approval_request", "StopEvent", "UsageEvent"]
    given = returned(*asked(first), text="hello", stdout=("read 5",), stderr=("slow",))
    events = await process.answer(agent, given)
    assert kinds(events) == ["approval_response", "tool_return", "assistant", "StopEvent", "UsageEvent"]
    back = world.turn(agent)[4].tool_returns[0]
    assert (back.name, back.status, back.text) == ("open_file", ToolStatus.SUCCESS, "hello")
    assert (back.stdout, back.stderr) == (("read 5",), ("slow",))
    require_valid(world.window(agent).messages)


async def test_image_that_a_client_tool_returns_reaches_the_model(world: World, process: Process) -> None:
    agent = await world.agent(process, model="anthropic/claude-haiku")
    world.model.follow(call("open_file", path="/a.png"), say("It is an ant."))
    (id_,) = asked(await process.send(agent, "Look.", client_tools=(OPEN,)))
    content = (TextPart("The picture:"), ImagePart(data=b"\x89PNG\r\n", media_type="image/png"))
    await process.answer(agent, ClientReturn(id_, ToolReturn(id_, "", ToolStatus.SUCCESS, content)))
    for returned in (world.model.last.messages[-1].tool_returns, world.turn(agent)[4].tool_returns):
        assert returned[0].content == content


async def test_client_tool_is_kept_for_the_answer_and_not_for_the_next_run(world: World, process: Process) -> None:
    agent = await world.agent(process)
    world.model.follow(call("open_file", path="a"), call("open_file", path="b"), say("Both."), say("Hi."))
    first = await process.send(agent, "Read both.", client_tools=(OPEN,))
    second = await process.answer(agent, returned(*asked(first), text="A"), config=RunConfig(max_steps=9))
    assert kinds(second)[-3] == "approval_request"
    await process.answer(agent, returned(*asked(second), text="B"))
    assert [item.text for message in world.turn(agent) for item in message.tool_returns] == ["A", "B"]
    await process.send(agent, "Hello")
    assert "open_file" not in [tool.name for tool in world.model.last.tools]


@pytest.mark.parametrize("name", ["launch", "archival_memory_insert"])
async def test_client_tool_hides_a_server_tool_of_its_name(world: World, process: Process, name: str) -> None:
    world.tools.add("launch", "launched")
    agent = await world.agent(process, tool_names=("launch",))
    world.model.follow(call(name, path="x"), say("Done."))
    mine = ClientTool(name, PARAMETERS, "The client's own.")
    first = await process.send(agent, "Go.", client_tools=(mine,))
    assert [tool.description for tool in world.model.last.tools if tool.name == name] == ["The client's own."]
    await process.answer(agent, returned(*asked(first), text="by me"))
    assert world.tools.executed == []
    assert await world.archival.texts(agent.id) == []
    assert world.turn(agent)[4].tool_returns[0].text == "by me"


async def test_error_and_denial_of_a_client_tool_are_error_returns(world: World, process: Process) -> None:
    agent = await world.agent(process)
    world.model.follow(together(call("open_file", path="a"), call("open_file", path="b")), say("No luck."))
    one, two = asked(await process.send(agent, "Read both.", client_tools=(OPEN,)))
    await process.answer(agent, returned(one, "no such file", ToolStatus.ERROR), *deny(two))
    assert [item.status for item in world.turn(agent)[4].tool_returns] == [ToolStatus.ERROR, ToolStatus.ERROR]
    assert lines(world.turn(agent))[-1] == "assistant text: No luck."


async def test_client_tool_cannot_be_approved(world: World, process: Process) -> None:
    agent = await world.agent(process)
    world.model.follow(call("open_file", path="a"), say("A."))
    (id_,) = asked(await process.send(agent, "Read it.", client_tools=(OPEN,)))
    with pytest.raises(InvalidArgument) as raised:
        await process.answer(agent, Approve(id_))
    assert raised.value.metadata["field"] == "decisions[0]"
    await process.answer(agent, returned(id_, "A"))
    assert (await process.outcome(agent)).stop_reason is StopReason.END_TURN


async def test_long_return_is_clipped(world: World, process: Process) -> None:
    agent = await world.agent(process)
    world.model.follow(call("open_file", path="a"), say("Long."))
    first = await process.send(agent, "Read it.", client_tools=(OPEN,))
    await process.answer(agent, returned(*asked(first), text="x" * 60_000, stdout=("y" * 60_000,)))
    back = world.turn(agent)[4].tool_returns[0]
    assert back.text == "x" * 50_000 + "… [10000 more characters were cut off]"
    assert len(back.stdout[0]) < 50_100


async def test_client_may_answer_a_waiting_server_tool(world: World, process: Process) -> None:
    world.tools.add("launch", "launched", requires_approval=True, return_char_limit=4)
    agent = await world.agent(process, tool_names=("launch",))
    world.model.follow(call("launch"), say("Done."))
    first = await process.send(agent, "Go.")
    await process.answer(agent, returned(*asked(first), text="done by hand"))
    assert world.tools.executed == []
    assert world.turn(agent)[4].tool_returns[0].text.startswith("done… [8 more")


async def test_invalid_arguments_are_an_error_return(world: World, process: Process) -> None:
    agent = await world.agent(process)
    world.model.follow(raw_call("open_file", "{"), say("Sorry."))
    events = await process.send(agent, "Read it.", client_tools=(OPEN,))
    assert "approval_request" not in kinds(events)
    assert world.turn(agent)[2].tool_returns[0].status is ToolStatus.ERROR


async def test_heartbeat_loop_supports_client_tools(world: World, process: Process) -> None:
    agent = await world.agent(process, AgentType.MEMGPT_V2, include_base_tool_rules=False)
    world.model.follow(
        call("open_file", path="a", request_heartbeat=True, thinking="Look."), call("send_message", message="A.")
    )
    since = len(world.window(agent).messages)
    first = await process.send(agent, "Read it.", client_tools=(OPEN,))
    assert kinds(first) == ["approval_request", "StopEvent", "UsageEvent"] or kinds(first)[0] == "reasoning"
    await process.answer(agent, returned(*asked(first), text="A"))
    turn = world.turn(agent, since)
    assert turn[4].tool_returns[0].text == "A"
    assert "request_heartbeat=true" in turn[5].text
    assert (await process.outcome(agent)).stop_reason is StopReason.END_TURN


async def test_preview_contains_client_tools(world: World, process: Process) -> None:
    agent = await world.agent(process)
    config = RunConfig(client_tools=(OPEN,))
    text = await process.previews.render(ME, agent.id, agent.default_conversation_id, (), config)
    assert "open_file" in text
