"""Files in turns: the section of the prompt, the tools, limits, and an unavailable files service."""

from collections.abc import Sequence

import pytest
from mnemesh_kit.errors import FailedPrecondition, NotFound
from mnemesh_kit.ids import new_id
from mnemesh_orchestrator.model.agents import Agent, AgentType, PromptPolicy
from mnemesh_orchestrator.model.files import FileLimits

from ..support.files import limited
from ..support.model import call, say
from ..support.world import ME, Process, World, lines

FILE_TOOLS = {"open_files", "grep_files", "semantic_search_files"}
FOLDER = new_id("source")


async def agent_with_files(world: World, process: Process, **draft: object) -> Agent:
    world.files.put("reports/a.txt", "alpha\nbeta")
    world.files.put("reports/b.txt", "gamma")
    return await world.agent(process, folder_ids=(FOLDER,), **draft)


def system(world: World, request: int = -1) -> str:
    return world.model.requests[request].messages[0].text


def opening(*names: str, **options: object) -> dict[str, object]:
    return {"file_requests": [{"file_name": name} for name in names], **options}


def offered(world: World, request: int = -1) -> set[str]:
    return {tool.name for tool in world.model.requests[request].tools} & FILE_TOOLS


async def test_an_agent_without_folders_never_asks_the_files_service(world: World, process: Process) -> None:
    agent = await world.agent(process)
    world.model.follow(say("One."), say("Two."))
    await process.send(agent)
    await process.send(agent)
    assert world.files.calls == []
    assert "<directories>" not in system(world)
    assert not offered(world)


async def test_a_turn_asks_once_unless_files_are_opened(world: World, process: Process) -> None:
    agent = await agent_with_files(world, process)
    assert world.files.attached == [(agent.id, FOLDER)]
    world.model.follow(say("Hello."))
    await process.send(agent)
    world.files.calls.clear()
    world.model.follow(call("grep_files", pattern="beta"), call("semantic_search_files", query="x"), say("Done."))
    await process.send(agent)
    assert world.files.calls == ["directories", "grep", "search"]
    assert offered(world) == FILE_TOOLS
    returned = [line for line in lines(world.turn(agent)) if "=== reports/a.txt:2 ===" in line]
    assert len(returned) == 1


async def test_an_opened_file_is_in_the_next_request_and_stays(world: World, process: Process) -> None:
    agent = await agent_with_files(world, process)
    limited(world.files, 1)
    world.model.follow(
        call("open_files", **opening("reports/a.txt")), call("open_files", **opening("reports/b.txt")), say("Done.")
    )
    await process.send(agent)
    assert '<file status="closed" name="reports/a.txt">' in system(world, 0)
    assert "2: beta" in system(world, 1)
    assert "2: beta" not in system(world, 2)
    assert "1: gamma" in system(world, 2)
    assert any("least recently used file(s)" in line for line in lines(world.turn(agent)))
    world.files.put("reports/b.txt", "replaced")
    world.model.follow(say("I see."))
    await process.send(agent)
    assert "1: replaced" in system(world)
    assert "gamma" not in system(world)


async def test_opened_files_are_returned_if_the_prompt_is_frozen(world: World, process: Process) -> None:
    agent = await agent_with_files(world, process, prompt_policy=PromptPolicy.CACHE)
    world.model.follow(call("open_files", **opening("reports/a.txt")), say("Done."))
    await process.send(agent)
    assert "2: beta" not in system(world)
    assert any("2: beta" in line for line in lines(world.turn(agent)))


async def test_a_refusal_is_for_the_model(world: World, process: Process) -> None:
    agent = await agent_with_files(world, process)
    world.model.follow(call("open_files", **opening("reports/none.txt")), say("Sorry."))
    await process.send(agent)
    assert any("reports/none.txt not attached" in line for line in lines(world.turn(agent)))


@pytest.mark.parametrize("is_known", [False, True])
async def test_an_unavailable_files_service_does_not_stop_a_turn(
    world: World, process: Process, is_known: bool
) -> None:
    agent = await agent_with_files(world, process)
    world.model.follow(call("open_files", **opening("reports/a.txt")), say("One."))
    await process.send(agent)
    if not is_known:
        process = world.process("instance-2")
    world.faults.unavailable = {"files.": 10_000}
    world.model.follow(call("grep_files", pattern="beta"), say("Two."))
    await process.send(agent)
    assert "2: beta" in system(world)
    assert any("Your files cannot be reached" in message.text for message in world.model.last.messages)
    assert lines(world.turn(agent))[-1] == "assistant text: Two."
    assert sum(world.waits) <= 10
    world.faults.unavailable = {}
    world.model.follow(say("Three."))
    await process.send(agent)
    assert not any("cannot be reached" in message.text for message in world.model.last.messages[-1:])


@pytest.mark.parametrize(
    ("draft", "expected"),
    [({}, (5, 15_000)), ({"max_files_open": 2, "per_file_view_window_char_limit": 900}, (2, 900))],
)
async def test_limits_are_those_of_the_settings_or_of_the_window(
    world: World, process: Process, draft: dict[str, int], expected: tuple[int, int]
) -> None:
    agent = await world.agent(process, **draft)
    world.files.put("reports/a.txt", "alpha")
    await process.agents.record_folders(ME, agent.id, 1, holds_folders=True)
    world.model.follow(say("One."), say("Two."))
    await process.send(agent)
    await process.send(agent)
    assert world.files.limits == FileLimits(*expected)
    assert world.files.calls == ["directories", "set_limits", "directories", "directories"]


async def test_tools_come_with_the_first_folder_and_go_with_the_last(world: World, process: Process) -> None:
    agent = await world.agent(process, AgentType.MEMGPT, include_base_tool_rules=True)
    rules = agent.tool_rules

    async def record(revision: int, *, holds_folders: bool) -> Agent:
        await process.agents.record_folders(ME, agent.id, revision, holds_folders=holds_folders)
        return await process.agents.get(ME, agent.id)

    def names(found: Sequence[object]) -> set[str]:
        return {str(getattr(each, "name", getattr(each, "tool_name", ""))) for each in found} & FILE_TOOLS

    attached = await record(3, holds_folders=True)
    assert names(attached.tools) == names(attached.tool_rules) == FILE_TOOLS
    late = await record(2, holds_folders=False)
    assert (late.holds_folders, late.folders_revision) == (True, 3)
    assert await record(3, holds_folders=False) == late
    detached = await record(9, holds_folders=False)
    assert (names(detached.tools), detached.tool_rules) == (set(), rules)
    assert detached.tools == agent.tools
    with pytest.raises(NotFound):
        await process.agents.record_folders(ME, new_id("agent"), 1, holds_folders=True)


async def test_an_agent_in_creation_is_recorded_later(world: World, process: Process) -> None:
    refused: list[Exception] = []

    async def announce(name: str) -> None:
        if name == "files.attach":
            (agent, _), *_ = await process.stores.agents.list_unfinished()
            try:
                await process.agents.record_folders(ME, agent.id, 99, holds_folders=True)
            except FailedPrecondition as error:
                refused.append(error)

    world.faults.on_call = announce
    agent = await agent_with_files(world, process)
    assert len(refused) == 1
    assert agent.holds_folders


async def test_an_agent_can_get_a_folder_of_its_own_and_is_erased(world: World, process: Process) -> None:
    agent = await world.agent(process, name="Ada", include_default_folder=True)
    assert world.files.folders == [f"Ada files {agent.id[-6:]}"]
    assert agent.holds_folders
    await process.lifecycle.delete(ME, agent.id)
    assert world.files.erased == [agent.id]


@pytest.mark.parametrize("recompiles", [False, True])
async def test_a_system_message_before_the_first_turn_has_the_limits_of_the_model(
    world: World, process: Process, recompiles: bool
) -> None:
    if recompiles:
        agent = await world.agent(process)
        world.files.put("reports/a.txt", "alpha")
        await process.agents.record_folders(ME, agent.id, 1, holds_folders=True)
        await process.windows.recompile(ME, None, agent.id, agent.default_conversation_id, dry_run=True)
    else:
        agent = await agent_with_files(world, process)
        assert "- max_files_open=5\n" in world.window(agent).messages[0].text
    assert world.files.limits == FileLimits(5, 15_000)
    assert world.files.calls[-3:] == ["directories", "set_limits", "directories"]
