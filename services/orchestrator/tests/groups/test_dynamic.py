"""Dynamic groups: the manager selects each speaker."""

import pytest
from mnemesh_orchestrator.model.agents import AgentType
from mnemesh_orchestrator.model.events import ErrorEvent, MemberTurnStarted
from mnemesh_orchestrator.model.groups import ManagerType
from mnemesh_orchestrator.model.inputs import ClientTool
from mnemesh_orchestrator.model.runs import RunStatus, StopReason

from ..support.groups import Cast, bodies, send
from ..support.model import call
from ..support.world import ME, Process

DYNAMIC = ManagerType.DYNAMIC


async def test_manager_selects_each_speaker_until_it_is_done(cast: Cast, process: Process) -> None:
    cast.says("Ada", "Cleo", cast.agents["Bob"].id, '"cleo".', "All said. DONE!")
    group = await cast.group(process, "Bob", "Cleo", kind=DYNAMIC, by="Ada", max_turns=9)
    events = await send(process, group, "Hello")
    assert [text for text in cast.shown(events) if "assistant" in text] == [
        "Ada assistant: Cleo",
        "Cleo assistant: Cleo speaks.",
        f"Ada assistant: {cast.agents['Bob'].id}",
        "Bob assistant: Bob speaks.",
        'Ada assistant: "cleo".',
        "Cleo assistant: Cleo speaks.",
        "Ada assistant: All said. DONE!",
    ]
    starts = bodies(events, MemberTurnStarted)
    assert [start.number for start in starts] == list(range(1, 8))
    assert [start.is_selection for start in starts] == [True, False, True, False, True, False, True]
    assert cast.turn("Cleo") == [
        "user: Hello",
        "assistant: Cleo speaks.",
        "system: Bob: Bob speaks.",
        "assistant: Cleo speaks.",
    ]
    first, second = cast.turn("Ada")[:2], cast.turn("Ada")[3]
    assert first[0] == "user: Hello"
    for name in ("Bob", "Cleo"):
        assert f"- id: {cast.agents[name].id}, name: {name}" in first[1]
    assert "Said since your last selection:\nCleo: Cleo speaks." in second
    assert "Bob speaks." not in second


async def test_invalid_answers_are_asked_for_again_and_then_fail(cast: Cast, process: Process) -> None:
    cast.says("Ada", "Bob", "Bob", "Nobody", "Bob, Cleo")
    group = await cast.group(process, "Bob", "Cleo", kind=DYNAMIC, by="Ada", max_turns=9)
    events = await send(process, group)
    assert "Bob spoke last, and no member speaks twice in a row. Select again." in cast.turn("Ada")[5]
    (error,) = bodies(events, ErrorEvent)
    assert error.error.reason == "PROVIDER_BAD_ANSWER"
    assert error.error.message == "The manager selected no speaker in 3 answers. The answer named several members."
    run = await process.runs.get(ME, events[0].run_id)
    assert (run.status, run.stop_reason) == (RunStatus.FAILED, StopReason.INVALID_LLM_RESPONSE)


async def test_third_answer_may_select_a_speaker(cast: Cast, process: Process) -> None:
    cast.says("Ada", "?", "Nobody", "Bob")
    cast.says("Bob", "I am DONE!")
    group = await cast.group(process, "Bob", "Cleo", kind=DYNAMIC, by="Ada")
    events = await send(process, group)
    assert len(cast.requests["Ada"]) == 3
    assert cast.shown(events)[-4:] == ["Bob assistant: I am DONE!", "Bob MemberTurnEnded 4", "StopEvent", "UsageEvent"]


@pytest.mark.parametrize("config", [{"max_turns": 1}, {"termination_token": "speaks"}])
async def test_run_ends_after_the_last_turn_or_a_members_token(
    cast: Cast, process: Process, config: dict[str, object]
) -> None:
    cast.says("Ada", "Bob", "Cleo")
    group = await cast.group(process, "Bob", "Cleo", kind=DYNAMIC, by="Ada", **config)
    await send(process, group)
    assert (len(cast.requests["Ada"]), "Cleo" in cast.requests) == (1, False)


async def test_single_member_speaks_once(cast: Cast, process: Process) -> None:
    cast.says("Ada", "Bob")
    group = await cast.group(process, "Bob", kind=DYNAMIC, by="Ada", max_turns=5)
    events = await send(process, group)
    assert cast.shown(events)[-3:] == ["Bob MemberTurnEnded 2", "StopEvent", "UsageEvent"]


async def test_settings_of_the_run_that_a_selection_does_not_have(cast: Cast, process: Process) -> None:
    await cast.join(process, "Max", kind=AgentType.MEMGPT_V2)
    cast.says("Max", call("send_message", thinking="Bob.", message="Bob"))
    group = await cast.group(process, "Bob", kind=DYNAMIC, by="Max")
    tool = ClientTool("look", '{"type": "object", "properties": {}}')
    await send(process, group, client_tools=(tool,), assistant_messages=False, override_system="I am Bob. Be brief.")
    offered = {name: {tool.name for tool in cast.requests[name][0].tools} for name in ("Max", "Bob")}
    assert "look" in offered["Bob"]
    assert "look" not in offered["Max"]
    assert cast.requests["Bob"][0].messages[0].text.startswith("I am Bob. Be brief.")
