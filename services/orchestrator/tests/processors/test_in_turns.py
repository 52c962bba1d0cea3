"""Processors change inputs and tool results once, before they are stored; failures are contained."""

import asyncio
from contextlib import suppress
from pathlib import Path
from types import ModuleType

import pytest
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.paging import PageQuery
from mnemesh_orchestrator.errors import InputRefused, ProcessorFailed
from mnemesh_orchestrator.model.agents import Agent
from mnemesh_orchestrator.model.inputs import ClientTool, InputMessage, RunConfig
from mnemesh_orchestrator.model.rules import Conditional, ConditionalOutcome
from mnemesh_orchestrator.model.runs import Run, RunFilter, RunRequest, RunStatus, StopReason
from mnemesh_orchestrator.processors import (
    INPUT_GROUP,
    TOOL_RESULT_GROUP,
    InputFacts,
    Processors,
    ToolResultFacts,
    load,
)
from mnemesh_types.messages import ClientReturn, TextPart, ToolReturn, ToolStatus
from structlog.testing import capture_logs

from ..support.faults import Crash, Faults
from ..support.model import by_place, call, say
from ..support.world import ME, World, crashed, lines, opened, require_valid

ONE = PageQuery(1, ascending=False)
LAST = ME.organization_id[-1]


def switched(*inputs: str, results: tuple[str, ...] = (), seconds: float = 60.0) -> Processors:
    return Processors(load(INPUT_GROUP, inputs, "I"), load(TOOL_RESULT_GROUP, results, "R"), seconds)


async def said(world: World, agent: Agent) -> list[str]:
    return lines(world.turn(agent))


async def test_stored_text_is_the_text_that_the_model_gets(world: World, shop: ModuleType) -> None:
    world.processors = switched("stamp", "redact")
    process = world.process()
    agent = await world.agent(process)
    world.model.follow(say("Hello."))
    await process.send(agent, "My card is 4111.")
    assert (await said(world, agent))[0] == f"user text: My card is [card]. (shop {LAST})"
    assert world.model.last.messages[-1].text == f"My card is [card]. (shop {LAST})"
    run = await process.outcome(agent)
    assert [part.text for part in run.input[0].content if isinstance(part, TextPart)] == [
        f"My card is [card]. (shop {LAST})"
    ]
    assert [(name, text) for name, text, _ in shop.SEEN] == [
        ("redact", "My card is 4111."),
        ("stamp", "My card is [card]."),
    ]
    assert shop.SEEN[0][2] == InputFacts(
        ME.organization_id, ME.subject_id, agent.id, agent.default_conversation_id, run.id, 0, 0, "user"
    )


async def test_message_to_another_agent_is_processed_once(world: World, shop: ModuleType) -> None:
    ask = "send_message_to_agent_and_wait_for_reply"
    world.processors = switched("redact", "gate")
    process = world.process()
    ann, ben = [await world.agent(process, tool_names=(ask,)) for _ in range(2)]
    world.model.follow(call(ask, message="My card is 4111.", other_agent_id=ben.id), say("I see."), say("Told."))
    process.faults.lost["runs.start"] = 2  # the message is stored, and its sender does not learn it
    with suppress(Exception):
        await process.send(ann, "Tell Ben.")
    while await process.stores.leases.claimable(process.lease_renewer.instance_id):
        for conversation_id in await process.stores.leases.claimable(process.lease_renewer.instance_id):
            await process.worker.claim_and_run(conversation_id)
        await asyncio.sleep(0)
    assert next(text for text in await said(world, ben) if "card" in text).endswith("My card is [card].")
    assert len([text for _, text, _ in shop.SEEN if "4111" in text]) == 1
    world.model.follow(call(ask, message="The forbidden word.", other_agent_id=ben.id), say("No."))
    await process.send(ann, "Tell Ben.")
    assert "Of this we do not speak." in (await said(world, ann))[-2]


@pytest.mark.parametrize(
    ("name", "text", "error", "words"),
    [
        ("gate", "a forbidden word", InputRefused, "Of this we do not speak."),
        ("broken", "Hello", ProcessorFailed, "The server's processor broken failed; nothing of the input was stored."),
        ("slow", "Hello", ProcessorFailed, "The server's processor slow failed; nothing of the input was stored."),
        ("empty", "Hello", ProcessorFailed, "The server's processor empty failed; nothing of the input was stored."),
    ],
)
async def test_input_of_failed_processor_is_refused_and_agent_continues(
    world: World, shop: ModuleType, name: str, text: str, error: type[Exception], words: str
) -> None:
    world.processors = switched(name, seconds=0.02)
    process = world.process()
    agent = await world.agent(process)
    world.model.follow(say("Hello."))
    with pytest.raises(error) as refused:
        await process.send(agent, text)
    assert (str(refused.value), refused.value.metadata) == (words, {"processor": name})  # type: ignore[attr-defined]
    assert not (await process.runs.list(ME, RunFilter(agent_ids=(agent.id,)), ONE)).items
    assert await said(world, agent) == []
    shop.DONE.set()
    world.processors = Processors()
    await (process := world.process()).send(agent, "Hello")
    assert (await said(world, agent))[-1] == "assistant text: Hello."


async def test_repeated_request_returns_first_run_without_processing(world: World, shop: ModuleType) -> None:
    world.processors = switched("stamp")
    process = world.process()
    agent = await world.agent(process)
    world.model.follow(say("Hello."))
    key = RequestKey(ME.organization_id, "StartRun", "r-1", "same")
    messages = [InputMessage((TextPart("Hello"),))]
    first = await process.runs.start(ME, key, RunRequest(agent.id, "", messages, RunConfig()))
    again = await process.runs.start(ME, key, RunRequest(agent.id, "", messages, RunConfig()))
    await process.idle()
    assert first.id == again.id
    assert len(shop.SEEN) == 1


async def test_resumed_run_has_input_that_was_processed_once(world: World, shop: ModuleType) -> None:
    world.processors = switched("stamp")
    process = world.process()
    agent = await world.agent(process)
    world.model.follow(RuntimeError("no model"), say("Hello."))
    await process.send(agent, "Hello")
    failed = await process.outcome(agent)
    assert failed.status is RunStatus.FAILED
    await process.runs.retry(ME, None, failed.id)
    await process.idle()
    assert await said(world, agent) == [f"user text: Hello (shop {LAST})", "assistant text: Hello."]
    assert len(shop.SEEN) == 1


async def test_tool_results_are_processed_before_rules_and_models_see_them(world: World, shop: ModuleType) -> None:
    world.processors = switched(results=("shout", "shorten"))
    world.tools.add("lookup", "yes, and much more")
    rules = (Conditional("lookup", (ConditionalOutcome("YES,", "archival_memory_insert"),)),)
    process = world.process()
    agent = await world.agent(process, tool_names=("lookup",), tool_rules=rules, include_base_tool_rules=False)
    world.model.follow(call("lookup", n=1), call("archival_memory_insert", content="one"), say("Done."))
    await process.send(agent)
    assert (await said(world, agent))[1:] == [
        'assistant calls lookup{"n": 1}',
        "tool success of lookup: YES,",
        'assistant calls archival_memory_insert{"content": "one"}',
        "tool success of archival_memory_insert: ",
        "assistant text: Done.",
    ]
    run = await process.outcome(agent)
    assert run.stop_reason is StopReason.END_TURN
    name, text, facts = shop.SEEN[0]
    created = world.turn(agent)[1]
    assert (name, text) == ("shorten", "yes, and much more")
    assert facts == ToolResultFacts(
        ME.organization_id,
        ME.subject_id,
        agent.id,
        agent.default_conversation_id,
        run.id,
        str(created.step_id),
        created.tool_calls[0].id,
        "lookup",
        {},
        True,
    ), "cleared by the processor, which does not change the record"


@pytest.mark.parametrize("name", ["broken", "slow"])
async def test_result_of_failed_processor_stays_unchanged(world: World, shop: ModuleType, name: str) -> None:
    world.processors = switched(results=(name, "shout"), seconds=0.02)
    world.tools.add("lookup", "yes")
    process = world.process()
    agent = await world.agent(process, tool_names=("lookup",))
    world.model.follow(call("lookup"), say("Done."))
    with capture_logs() as log:
        await process.send(agent)
    assert "tool success of lookup: YES" in await said(world, agent)
    events = [entry for entry in log if entry["event"] == "tool_result_processor_failed"]
    assert [(entry["processor"], entry["tool_name"], entry["agent_id"]) for entry in events] == [
        (name, "lookup", agent.id)
    ]
    shop.DONE.set()


async def test_client_returns_are_results_and_client_messages_are_inputs(world: World, shop: ModuleType) -> None:
    world.processors = switched("stamp", results=("shout",))
    process = world.process()
    agent = await world.agent(process)
    world.model.follow(call("look"), say("Done."))
    await process.send(agent, client_tools=(ClientTool("look", '{"type": "object", "properties": {}}'),))
    tool_call = world.turn(agent)[1].tool_calls[0]
    given = ClientReturn(tool_call.id, ToolReturn.from_text(tool_call.id, "", ToolStatus.SUCCESS, "a cat"))
    await process.answer(agent, given, texts=("And now?",))
    shown = await said(world, agent)
    assert "tool success of look: A CAT" in shown
    assert f"user text: And now? (shop {LAST})" in shown
    require_valid(world.window(agent).messages)


async def test_input_is_processed_once_and_stored_results_never_again_after_a_crash(
    tmp_path: Path, shop: ModuleType
) -> None:
    async with opened(tmp_path) as world:
        world.processors = switched("stamp", results=("shout",))
        world.tools.add("lookup", "yes", idempotent=True)
        world.model.script = by_place(call("lookup"), say("Done."))
        whole, point = 1, 0
        while point < whole:
            world.faults = Faults()
            agent = await world.agent(world.process(), tool_names=("lookup",), include_base_tool_rules=False)
            world.faults = faults = Faults()
            faults.crashes_at = point or None
            shop.SEEN.clear()
            first, runs = world.process(), []
            with suppress(Crash):
                await first.send(agent)
            await crashed(first)
            world.faults = Faults()
            second = world.process()
            await second.recover()
            runs = list((await second.runs.list(ME, RunFilter(agent_ids=(agent.id,)), ONE)).items)
            whole = faults.points if point == 0 else whole
            if runs:
                require_once(shop, point, runs[0], await said(world, agent))
            point += 1
        assert whole > 15


def require_once(shop: ModuleType, point: int, run: Run, shown: list[str]) -> None:
    assert run.status is RunStatus.COMPLETED, point
    assert shown == [
        f"user text: Hello (shop {LAST})",
        "assistant calls lookup{}",
        "tool success of lookup: YES",
        "assistant text: Done.",
    ], point
    names = [name for name, _, _ in shop.SEEN]
    assert names.count("stamp") == 1, point
    assert all(text == "yes" for name, text, _ in shop.SEEN if name == "shout"), point
