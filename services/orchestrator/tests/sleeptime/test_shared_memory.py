"""The memory that a manager and its partners share: seen at once, and never overwritten unseen."""

from mnemesh_orchestrator.model.runs import RunStatus
from mnemesh_types.messages import ToolStatus

from ..support.model import Held, call, say
from ..support.world import ME, Process, World, lines
from .partners import answer_everything, is_partner, partners


async def test_what_a_partner_writes_is_in_the_next_request_of_the_manager(world: World, process: Process) -> None:
    crew = await partners(world, process)
    edits = [call("memory_rethink", label="human", new_memory="Lives in Lima."), call("memory_finish_edits")]
    world.model.script = answer_everything(partner=lambda _: edits.pop(0))
    await process.send(crew.manager, "I moved to Lima.")
    await process.idle()
    await process.send(crew.manager, "Where do I live?")
    request = next(item for item in reversed(world.model.requests) if not is_partner(item))
    assert "Lives in Lima." in request.messages[0].text


async def test_partner_does_not_overwrite_what_the_manager_wrote_meanwhile(world: World, process: Process) -> None:
    crew = await partners(world, process)
    held = Held(call("memory_rethink", label="human", new_memory="Lives in Lima."))
    partner_steps = [
        held,
        call("memory_rethink", label="human", new_memory="Ada lives in Lima."),
        *[call("memory_finish_edits")] * 2,
    ]
    manager_steps = [
        say("Noted."),
        call("memory_replace", label="human", old_str="Nothing yet.", new_str="Is called Ada."),
        say("Hello, Ada."),
    ]
    world.model.script = lambda request: (partner_steps if is_partner(request) else manager_steps).pop(0)
    await process.send(crew.manager, "I moved to Lima.")
    await held.asked.wait()
    await process.send(crew.manager, "I am Ada.")
    held.released.set()
    await process.idle()
    (refused, accepted, *_) = (item for message in world.turn(crew.members[0]) for item in message.tool_returns)
    assert refused.status is ToolStatus.ERROR
    assert "Is called Ada." in refused.text, "the error shows the current value"
    assert accepted.status is ToolStatus.SUCCESS, "the partner has seen it now"
    assert world.blocks.value(crew.manager.id, "human") == "Ada lives in Lima."


async def test_manager_does_not_overwrite_what_a_partner_wrote_meanwhile(world: World, process: Process) -> None:
    crew = await partners(world, process)
    held = Held(call("memory_rethink", label="human", new_memory="Is called Ada."))
    manager_steps = [say("Noted."), held, say("Sorry.")]
    partner_steps = [
        Held(call("memory_rethink", label="human", new_memory="Lives in Lima.")),
        *[call("memory_finish_edits")] * 2,
    ]
    writing = partner_steps[0]
    assert isinstance(writing, Held)
    world.model.script = lambda request: (partner_steps if is_partner(request) else manager_steps).pop(0)
    tool = await process.agents.attach_tool(ME, None, crew.manager.id, None, "memory_rethink")
    await process.send(tool, "I moved to Lima.")
    await writing.asked.wait()
    second = await process.start(crew.manager, "I am Ada.")
    await held.asked.wait()
    writing.released.set()
    while {run.status for run in await crew.runs(process)} != {RunStatus.COMPLETED}:
        await process.follow((await crew.runs(process))[0])
    held.released.set()
    await process.follow(second)
    await process.idle()
    refused = next(line for line in lines(world.turn(crew.manager)) if line.startswith("tool error of memory_rethink"))
    assert "Lives in Lima." in refused
    assert world.blocks.value(crew.manager.id, "human") == "Lives in Lima."
