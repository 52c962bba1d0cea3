"""Unavailable services: an accepted run waits for them, and a caller who waits is told before."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from mnemesh_kit.errors import TEMPORARY, MnemeshError, ServerBusy, StorageFull, Unavailable, Unreachable
from mnemesh_kit.paging import PageQuery
from mnemesh_orchestrator.config import Config
from mnemesh_orchestrator.errors import ToolSlotsBusy
from mnemesh_orchestrator.llm.port import LlmAnswer
from mnemesh_orchestrator.loop.services import RESTART_SECONDS
from mnemesh_orchestrator.model.agents import AgentType
from mnemesh_orchestrator.model.rules import ToolResult
from mnemesh_orchestrator.model.runs import RunFilter, RunStatus, StopReason
from mnemesh_sandbox.calls import Answer, ToolAnswer, ToolCall
from mnemesh_testkit.plugin import sampled

from ..support.model import Held, call, raw_call, say, together
from ..support.world import ME, Process, World, kinds, lines, require_valid, told


@pytest.mark.parametrize("tier", ["recall.", "blocks."])
async def test_caller_who_waits_is_told_of_an_unavailable_service_before_the_run_is_accepted(
    world: World, process: Process, tier: str
) -> None:
    agent = await world.agent(process)
    before = world.window(agent)
    world.faults.unavailable = {tier: 99}
    with pytest.raises(Unavailable):
        await process.send(agent)
    assert sum(world.waits) == pytest.approx(RESTART_SECONDS)
    assert (await process.runs.list(ME, RunFilter(agent_ids=(agent.id,)), PageQuery(9, ascending=True))).items == ()
    assert world.model.requests == []
    assert world.window(agent).messages == before.messages


async def test_repeat_of_an_accepted_run_is_shown_while_a_service_is_away(world: World, process: Process) -> None:
    agent = await world.agent(process)
    world.model.follow(say("Hello."))
    first = await process.send(agent, otid="one")
    world.clock.advance(60)
    world.faults.unavailable = {"recall.": 99}
    again = await process.send(agent, otid="one")
    assert told(again) == told(first)


@pytest.mark.parametrize("tier", ["recall.", "blocks.", "recall.replace_context"])
@pytest.mark.parametrize("error", TEMPORARY)
async def test_background_run_waits_as_long_as_a_step_for_its_beginning(
    world: World, process: Process, tier: str, error: type[MnemeshError]
) -> None:
    agent = await world.agent(process, message_buffer_autoclear=True)
    world.model.follow(say("One."), say("Two."))
    await process.send(agent)
    world.faults.error, world.faults.unavailable = error, {tier: 30}
    run = await process.start(agent)
    await process.follow(run)
    assert 60 < sum(world.waits) < 900
    assert lines(world.turn(agent))[-1] == "assistant text: Two."


async def test_run_that_was_queued_before_a_restart_waits_for_services(world: World, process: Process) -> None:
    agent = await world.agent(process)
    held = Held(say("One."))
    world.model.follow(held, say("One."), say("Two."))
    await process.start(agent)
    await held.asked.wait()
    await process.start(agent, "And now?")
    await process.worker.stop()
    world.faults.unavailable = {"recall.": 30}
    successor = world.process()
    await successor.recover()
    await successor.recover()
    assert (await successor.outcome(agent)).status is RunStatus.COMPLETED
    assert lines(world.turn(agent))[-1] == "assistant text: Two."
    await successor.worker.stop()


async def test_run_that_waits_for_a_service_can_be_cancelled(world: World, process: Process) -> None:
    agent = await world.agent(process)
    waits = asyncio.Event()
    world.faults.unavailable = {"recall.": 10_000}

    async def waited() -> None:
        if not waits.is_set():
            waits.set()
            await asyncio.Event().wait()

    world.on_wait = waited
    run = await process.start(agent)
    await waits.wait()
    await process.runs.cancel(ME, RunFilter(), [run.id])
    assert (await process.outcome(agent)).status is RunStatus.CANCELLED
    assert sum(world.waits) < 60


@pytest.mark.parametrize("call_that_fails", ["recall.get_context", "blocks.get", "recall.replace_context"])
async def test_new_run_waits_for_the_restart_of_an_essential_service(
    world: World, process: Process, call_that_fails: str
) -> None:
    agent = await world.agent(process, message_buffer_autoclear=True)
    world.model.follow(say("One."), say("Two."))
    await process.send(agent)
    world.faults.unavailable = {call_that_fails: 2}
    await process.send(agent)
    assert len(world.waits) == 2
    assert lines(world.turn(agent))[-1] == "assistant text: Two."


@pytest.mark.parametrize("tier", ["archival.insert", "recall.commit_step", "blocks.get"])
async def test_step_waits_for_an_unavailable_service(world: World, process: Process, tier: str) -> None:
    agent = await world.agent(process)
    world.model.follow(call("archival_memory_insert", content="tea"), say("Kept."))

    async def goes_away_once(name: str) -> None:
        if name == "model.stream" and len(world.model.requests) == 0:
            world.faults.unavailable = {tier: 4}

    world.faults.on_call = goes_away_once
    await process.send(agent)
    assert len(world.waits) == 4
    assert world.waits[-1] > world.waits[0]
    assert (await process.outcome(agent)).status is RunStatus.COMPLETED
    assert await world.archival.texts(agent.id) == ["tea"]
    assert lines(world.turn(agent))[-1] == "assistant text: Kept."
    assert len(world.model.requests) == 2


@pytest.mark.parametrize("lost", ["archival.insert", "recall.commit_step", "blocks.edit"])
async def test_effect_with_a_lost_answer_takes_place_once(world: World, process: Process, lost: str) -> None:
    agent = await world.agent(process)
    world.model.follow(
        call("archival_memory_insert", content="tea"), call("memory_insert", label="human", new_str="Ada"), say("Kept.")
    )
    world.faults.lost = {lost: 2}
    await process.send(agent)
    assert len(world.waits) == 2
    assert await world.archival.texts(agent.id) == ["tea"]
    assert world.blocks.value(agent.id, "human") == "Nothing yet.\nAda"
    require_valid(world.window(agent).messages)
    assert len(world.recall.rows[agent.id]) == len(world.window(agent).messages)
    assert lines(world.turn(agent))[-1] == "assistant text: Kept."


MEMORY_CALLS = [
    ("archival.insert", call("archival_memory_insert", content="tea")),
    ("archival.search", call("archival_memory_search", query="tea")),
    ("recall.search", call("conversation_search", query="tea")),
    ("episodes.search", call("episodic_memory_search", query="tea")),
    ("blocks.edit", call("memory_insert", label="human", new_str="Ada")),
    ("blocks.create", call("memory", command="create", path="/memories/tea", description="About tea.")),
]


@pytest.mark.parametrize("error", sampled(TEMPORARY, len(TEMPORARY)))
@pytest.mark.parametrize(("target", "answer"), MEMORY_CALLS, ids=[target for target, _ in MEMORY_CALLS])
async def test_tool_waits_for_the_infrastructure_and_the_model_is_not_told(
    world: World, process: Process, error: type[MnemeshError], target: str, answer: LlmAnswer
) -> None:
    (called,) = answer.tool_calls
    agent = await world.agent(process, tool_names=(called.name,))
    world.model.follow(answer, say("Done."))

    async def fails_after_the_answer(name: str) -> None:
        if name == "model.stream" and not world.model.requests:
            world.faults.error, world.faults.unavailable = error, {target: 4}

    world.faults.on_call = fails_after_the_answer
    await process.send(agent)
    assert len(world.waits) == 4
    (returned,) = world.turn(agent)[2].tool_returns
    assert returned.status == "success", returned.text
    assert (await process.outcome(agent)).status is RunStatus.COMPLETED


@pytest.mark.parametrize("error", TEMPORARY)
async def test_retries_end_after_the_limit(world: World, process: Process, error: type[MnemeshError]) -> None:
    agent = await world.agent(process)
    world.model.follow(call("archival_memory_insert", content="tea"))
    world.faults.error, world.faults.unavailable = error, {"archival.insert": 10_000}
    await process.send(agent)
    run = await process.outcome(agent)
    assert run.error is not None
    assert (run.status, run.stop_reason, run.error.reason) == (RunStatus.FAILED, StopReason.ERROR, error.reason)
    assert 900 <= round(sum(world.waits), 3) <= 900 + 15
    require_valid(world.window(agent).messages)


async def test_concurrent_change_of_the_window_is_kept(world: World, process: Process) -> None:
    agent = await world.agent(process)
    world.model.follow(call("archival_memory_insert", content="tea"), say("Kept."))

    async def owner_recompiles(name: str) -> None:
        if name == "archival.insert":
            window = world.window(agent)
            ids = [message.id for message in window.messages]
            await world.recall.replace_context(
                "owner", agent.id, window.conversation_id, window.version, ids, system_text="The owner's own."
            )

    world.faults.on_call = owner_recompiles
    await process.send(agent)
    assert lines(world.turn(agent))[-1] == "assistant text: Kept."
    require_valid(world.window(agent).messages)
    assert len(world.turn(agent)) == 4


async def test_outage_of_the_tools_service_keeps_built_in_tools(world: World, process: Process) -> None:
    world.tools.add("probe")
    agent = await world.agent(process, AgentType.MEMGPT_V2, tool_names=("probe",))
    world.faults.unavailable = {"tools.": 99, "archival.": 99}
    world.model.follow(call("send_message", message="I am here."))
    events = await process.send(agent)
    assert kinds(events) == ["assistant", "StopEvent", "UsageEvent"]


async def test_turn_waits_for_the_restart_of_the_tools_service(world: World, process: Process) -> None:
    world.tools.add("probe", "probed")
    agent = await world.agent(process, tool_names=("probe",))
    world.faults.unavailable = {"tools.definitions": 3}
    world.model.follow(call("probe"), say("Done."))
    await process.send(agent)
    assert len(world.waits) == 3
    assert lines(world.turn(agent))[2] == "tool success of probe: probed"


async def test_only_the_first_turn_waits_for_a_service_that_stays_unavailable(world: World, process: Process) -> None:
    world.tools.add("probe", "probed")
    agent = await world.agent(process, tool_names=("probe",))
    world.faults.unavailable = {"tools.": 99}
    world.model.script = lambda request: say("Without.")
    for _ in range(3):
        await process.send(agent)
    assert sum(world.waits) == pytest.approx(Config().degrade_seconds)
    assert all("custom tools cannot be reached" in request.messages[-1].text for request in world.model.requests)
    world.faults.unavailable = {}
    await process.send(agent)
    world.faults.unavailable = {"tools.": 1}
    await process.send(agent)
    assert "probe" in {tool.name for tool in world.model.last.tools}


async def test_call_of_a_tool_that_the_turn_began_without_waits_for_the_tools_service(
    world: World, process: Process
) -> None:
    world.tools.add("probe", "probed")
    agent = await world.agent(process, tool_names=("probe",))
    world.faults.unavailable = {"tools.": 20}
    world.model.follow(call("probe"), say("Done."))
    await process.send(agent)
    first, second = world.model.requests
    assert "custom tools cannot be reached" in first.messages[-1].text
    assert sum(world.waits) > Config().degrade_seconds
    assert lines(world.turn(agent))[1:] == [
        "assistant calls probe{}",
        "tool success of probe: probed",
        "assistant text: Done.",
    ]
    assert "probe" in {tool.name for tool in second.tools}
    assert not any("cannot be reached" in message.text for message in second.messages)


async def test_call_of_an_unread_tool_that_needs_an_approval_asks_for_it(world: World, process: Process) -> None:
    world.tools.add("probe", "probed", requires_approval=True)
    agent = await world.agent(process, tool_names=("probe",))
    world.faults.unavailable = {"tools.": 20}
    world.model.follow(call("probe"))
    await process.send(agent)
    assert (await process.outcome(agent)).stop_reason is StopReason.REQUIRES_APPROVAL
    assert world.tools.executed == []


async def test_tools_are_offered_in_the_step_after_the_service_is_back(world: World, process: Process) -> None:
    world.tools.add("probe", "probed")
    agent = await world.agent(process, tool_names=("probe",))
    world.faults.unavailable = {"tools.": 10_000}

    async def comes_back(name: str) -> None:
        if name == "archival.insert":
            world.faults.unavailable = {}

    world.faults.on_call = comes_back
    world.model.follow(call("archival_memory_insert", content="tea"), say("Kept."))
    await process.send(agent)
    first, second = ({tool.name for tool in request.tools} for request in world.model.requests)
    assert ("probe" in first, "probe" in second) == (False, True)
    assert not any("cannot be reached" in message.text for message in world.model.last.messages)


async def test_unknown_tool_is_refused_while_the_tools_service_is_away(world: World, process: Process) -> None:
    world.tools.add("probe", "probed")
    agent = await world.agent(process, tool_names=("probe",))
    world.faults.unavailable = {"tools.": 99}
    world.model.follow(call("prove"), say("No such tool."))
    await process.send(agent)
    assert "there is no tool prove" in world.turn(agent)[2].tool_returns[0].text
    assert sum(world.waits) == pytest.approx(Config().degrade_seconds)


async def test_agent_that_acts_by_stored_tools_alone_waits_for_them(world: World, process: Process) -> None:
    world.tools.add("probe", "probed")
    agent = await world.agent(process, AgentType.MEMGPT_V2, include_base_tools=False, tool_names=("probe",))
    world.faults.unavailable = {"tools.": 20}
    world.model.script = lambda request: call("probe")
    await process.send(agent, max_steps=1)
    assert world.tools.executed
    assert "probe" in {tool.name for tool in world.model.requests[0].tools}


async def test_custom_tool_does_not_run_twice_after_an_outage(world: World, process: Process) -> None:
    world.tools.add("launch", "launched")
    agent = await world.agent(process, tool_names=("launch",))
    world.faults.unavailable = {"tools.execute": 1}
    world.model.follow(call("launch"), say("I do not know."))
    await process.send(agent)
    assert world.tools.executed == []
    assert "interrupted" in world.turn(agent)[2].tool_returns[0].text


@pytest.mark.parametrize("error", [Unreachable, ServerBusy, ToolSlotsBusy])
@pytest.mark.parametrize(
    ("tool", "target"), [("launch", "tools.execute"), ("run_code", "tools.run_program")], ids=["custom", "program"]
)
async def test_tool_that_did_not_begin_runs_once_the_service_can(
    world: World, process: Process, error: type[MnemeshError], tool: str, target: str
) -> None:
    world.tools.add("launch", "launched")
    agent = await world.agent(process, tool_names=("launch", "run_code"))
    world.faults.error, world.faults.unavailable = error, {target: 3}
    world.model.follow(call(tool, **({"code": "2 + 2"} if tool == "run_code" else {})), say("Done."))
    await process.send(agent)
    assert len(world.waits) == 3
    assert len(world.tools.executed) + len(world.tools.programs) == 1
    assert world.turn(agent)[2].tool_returns[0].status == "success"


async def test_program_does_not_wait_for_the_slot_of_its_tool(world: World, process: Process) -> None:
    world.tools.add("launch", "launched")
    agent = await world.agent(process, tool_names=("launch", "run_code_with_tools"))

    async def program(answer: Answer) -> str:
        return (await answer(ToolCall(1, "launch", {}))).text

    world.tools.follow_program(program)
    world.faults.error, world.faults.unavailable = ToolSlotsBusy, {"tools.execute": 1}
    world.model.follow(call("run_code_with_tools", code="launch()"), say("Later."))
    await process.send(agent)
    assert world.waits == []
    assert "tools.execute is unavailable" in world.turn(agent)[2].tool_returns[0].text


async def test_program_does_not_run_again_because_its_tool_did_not_begin(world: World, process: Process) -> None:
    world.tools.add("launch", "launched")
    agent = await world.agent(process, tool_names=("launch", "run_code_with_tools"))
    runs: list[ToolAnswer] = []

    async def program(answer: Answer) -> str:
        runs.append(await answer(ToolCall(1, "launch", {})))
        return "never"

    world.tools.follow_program(program)
    world.faults.error, world.faults.unavailable = Unreachable, {"tools.execute": 10_000}
    world.model.follow(call("run_code_with_tools", code="launch()"), say("I do not know."))
    await process.send(agent)
    assert runs == []
    assert "outcome is unknown" in world.turn(agent)[2].tool_returns[0].text


async def test_blocks_that_a_custom_tool_changed_wait_for_a_full_disk(world: World, process: Process) -> None:
    world.tools.add("rewrite", lambda _, blocks: (ToolResult(ok=True, text="ok"), {"human": blocks["human"] + " Ada."}))
    agent = await world.agent(process, tool_names=("rewrite",))
    world.faults.error, world.faults.unavailable = StorageFull, {"blocks.edit": 3}
    world.model.follow(call("rewrite"), say("Done."))
    await process.send(agent)
    assert len(world.waits) == 3
    assert world.blocks.value(agent.id, "human") == "Nothing yet. Ada."


@pytest.mark.parametrize("failing", ["open", "set_limits"])
async def test_full_disk_of_files_is_waited_for_where_something_is_stored(
    world: World, process: Process, failing: str
) -> None:
    world.files.put("docs/a.md", "alpha")
    agent = await world.agent(process, folder_ids=("source-1",))
    world.faults.error, world.faults.unavailable = StorageFull, {f"files.{failing}": 12}
    world.model.follow(call("open_files", file_requests=[{"file_name": "docs/a.md"}]), say("Read."))
    await process.send(agent)
    assert (await process.outcome(agent)).status is RunStatus.COMPLETED
    assert world.turn(agent)[2].tool_returns[0].status == "success"


async def test_idempotent_tool_runs_after_an_outage(world: World, process: Process) -> None:
    world.tools.add("measure", "42", idempotent=True)
    agent = await world.agent(process, tool_names=("measure",))
    world.faults.unavailable = {"tools.execute": 1}
    world.faults.lost = {"tools.execute": 1}
    world.model.follow(call("measure"), say("42."))
    await process.send(agent)
    assert len(world.tools.executed) == 2, "once unheard, once heard"
    assert len(world.waits) == 2
    assert lines(world.turn(agent))[2] == "tool success of measure: 42"


async def test_custom_tool_does_not_overwrite_another_edit(world: World, process: Process) -> None:
    agent = None

    def rewrite(_: Mapping[str, Any], blocks: Mapping[str, str]) -> tuple[ToolResult, dict[str, str]]:
        assert agent is not None
        human = world.blocks.blocks[world.blocks.held[agent.id][0]]
        world.blocks.put(replace(human, value="Written by another client meanwhile."))
        return ToolResult(ok=True, text="rewritten"), {"human": blocks["human"] + " Or something."}

    world.tools.add("rewrite", rewrite)
    agent = await world.agent(process, tool_names=("rewrite",))
    world.model.follow(call("rewrite"), say("It was changed meanwhile."))
    await process.send(agent)
    assert world.blocks.value(agent.id, "human") == "Written by another client meanwhile."
    assert "The block human was not changed" in world.turn(agent)[2].tool_returns[0].text


async def test_custom_tool_sees_the_edit_of_the_call_before_it(world: World, process: Process) -> None:
    def rewrite(_: Mapping[str, Any], blocks: Mapping[str, str]) -> tuple[ToolResult, dict[str, str]]:
        return ToolResult(ok=True, text="rewritten"), {"human": blocks["human"] + " Twice."}

    world.tools.add("rewrite", rewrite)
    agent = await world.agent(process, tool_names=("rewrite",))
    edit = raw_call("memory_replace", '{"label": "human", "old_str": "Nothing yet.", "new_str": "Once."}')
    world.model.follow(together(edit, call("rewrite")), say("Done."))
    await process.send(agent)
    assert world.blocks.value(agent.id, "human") == "Once. Twice."


async def test_custom_tool_may_change_blocks(world: World, process: Process) -> None:
    def rewrite(_: Mapping[str, Any], blocks: Mapping[str, str]) -> tuple[ToolResult, dict[str, str]]:
        return ToolResult(ok=True, text="rewritten"), {"human": blocks["human"] + " Or something.", "gone": "x"}

    world.tools.add("rewrite", rewrite)
    agent = await world.agent(process, tool_names=("rewrite",))
    world.model.follow(call("rewrite"), say("Done."))
    await process.send(agent)
    assert world.blocks.value(agent.id, "human") == "Nothing yet. Or something."
    returned = world.turn(agent)[2].tool_returns[0]
    assert returned.status == "error"
    assert returned.text.startswith("rewritten\nThe block gone was not changed:")
    assert "Or something." in world.model.last.messages[0].text
