"""A voice agent and its partner: the older part of a transcript is archived, the newer one stays in the window."""

import re

from mnemesh_orchestrator.llm.port import LlmAnswer, LlmRequest
from mnemesh_orchestrator.model.agents import AgentType
from mnemesh_orchestrator.model.groups import SleeptimeTarget
from mnemesh_orchestrator.model.inputs import InputMessage, RunConfig
from mnemesh_orchestrator.model.runs import RunStatus
from mnemesh_types.messages import Role, TextPart

from ..support.model import call
from ..support.world import ME, Process, World, require_valid
from .partners import Partners, answer_everything, partners, said

BUFFERS = {"max_message_buffer_length": 9, "min_message_buffer_length": 4}


def speak(request: LlmRequest) -> LlmAnswer:
    return call("send_message", message=f"Answer to {request.messages[-1].text}")


def tidy(request: LlmRequest) -> LlmAnswer:
    """Stores the older lines, rewrites the block, and finishes."""
    (offered,) = {tool.name for tool in request.tools} & {"store_memories", "finish_rethinking_memory"} or {"none"}
    if offered == "store_memories":
        lines = request.messages[-1].text.split("\n")
        older = [index for index, line in enumerate(lines) if re.match(r"\d+\. \(Older\)", line)]
        chunk = {"start_index": older[0], "end_index": older[-1], "context": f"Lines of {len(older)}."}
        return call("store_memories", chunks=[chunk])
    if offered == "none":
        return call("rethink_user_memory", new_memory="Asks a lot.")
    return call("finish_rethinking_memory")


async def voice_partners(world: World, process: Process, kind: AgentType = AgentType.VOICE_CONVO) -> Partners:
    crew = await partners(world, process, kind=kind, member_kind=AgentType.VOICE_SLEEPTIME, **BUFFERS)
    world.model.script = answer_everything(speak, tidy)
    return crew


def older(text: str) -> list[str]:
    return said(re.findall(r"^\d+\. \(Older\) .*$", text, re.MULTILINE))


async def test_partner_archives_what_leaves_the_window(world: World, process: Process) -> None:
    crew = await voice_partners(world, process)
    for turn in range(9):
        await process.send(crew.manager, f"t{turn}")
        await process.idle()
        assert len(world.window(crew.manager).messages) <= 1 + 9 + 3
        require_valid(world.window(crew.manager).messages)
    inputs = await crew.inputs(process)
    archived = [text for each in inputs for text in older(each)]
    assert len(inputs) >= 3
    assert archived == [f"t{turn}" for turn in range(len(archived))], "each message is older in one transcript"
    for text in inputs:
        in_window = [item for item in said([text]) if item not in older(text)]
        assert len(in_window) >= 1, "the transcript shows what stays"
    left = {message.text for message in crew.rows() if message.role is Role.USER} - {
        message.text for message in world.window(crew.manager).messages
    }
    assert {text for text in left if text.startswith("t")} <= set(archived)
    runs = await crew.runs(process)
    assert {run.status for run in runs} == {RunStatus.COMPLETED}
    calls = [tool.name for message in world.window(crew.members[0]).messages for tool in message.tool_calls]
    each = ["store_memories", "rethink_user_memory", "finish_rethinking_memory"]
    assert calls[-len(each) * len(inputs) :] == each * len(inputs)
    passages = await world.archival.texts(crew.manager.id)
    assert len(passages) == len(inputs)
    assert '"message": "t0"' in passages[0]
    assert world.blocks.value(crew.manager.id, "human") == "Asks a lot."


async def test_buffers_of_the_group_apply_to_the_next_request(world: World, process: Process) -> None:
    crew = await voice_partners(world, process)
    for turn in range(3):
        await process.send(crew.manager, f"t{turn}")
    await process.idle()
    preview = await process.previews.turn(
        ME, crew.manager.id, crew.manager.default_conversation_id, [InputMessage((TextPart("t3"),))], RunConfig()
    )
    await process.send(crew.manager, "t3")
    await process.idle()
    sent = [item for item in world.model.requests if item.messages[-1].text == "t3"][-1]
    assert [message.text for message in preview.state.window.messages[1:]] == [
        message.text for message in sent.messages[1:-1]
    ]
    assert len(sent.messages) <= 1 + 4 + 1


async def test_runs_on_demand_archive_the_whole_window_once(world: World, process: Process) -> None:
    crew = await voice_partners(world, process)
    for turn in range(2):
        await process.send(crew.manager, f"t{turn}")
    await process.orchestrator.sleeptime.start(ME, None, SleeptimeTarget(agent_id=crew.manager.id))
    await process.idle()
    for turn in range(2, 7):
        await process.send(crew.manager, f"t{turn}")
        await process.idle()
    archived = [text for each in await crew.inputs(process) for text in older(each)]
    assert archived == [f"t{turn}" for turn in range(len(archived))]
    assert len(archived) > 3


async def test_window_that_is_not_cut_is_archived_in_the_same_portions(world: World, process: Process) -> None:
    crew = await voice_partners(world, process, AgentType.MEMGPT_V2)
    for turn in range(12):
        await process.send(crew.manager, f"t{turn}")
        await process.idle()
    inputs = await crew.inputs(process)
    archived = [text for each in inputs for text in older(each)]
    assert archived == [f"t{turn}" for turn in range(len(archived))]
    assert 3 <= len(inputs) <= 6, "not after every turn"
