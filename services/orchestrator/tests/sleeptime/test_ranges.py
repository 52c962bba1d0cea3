"""Ranges of messages: parallel conversations, failures, splits, deletions, and partners that are missing."""

import asyncio

import pytest
from mnemesh_kit.errors import Internal
from mnemesh_orchestrator.llm.errors import ProviderRefused
from mnemesh_orchestrator.model.agents import AgentType
from mnemesh_orchestrator.model.conversations import ConversationDraft
from mnemesh_orchestrator.model.inputs import InputMessage, RunConfig
from mnemesh_orchestrator.model.runs import PoolLimits, RunFilter, RunRequest, RunStatus, StopReason
from mnemesh_types.agents import ModelSettings
from mnemesh_types.messages import Approve, Role, TextPart

from ..support.faults import Faults
from ..support.model import Held, call, say
from ..support.world import ME, Process, World, crashed, each
from .partners import answer_everything, is_partner, partners, said


@pytest.mark.parametrize(
    ("kind", "wrapped"), [(AgentType.LETTA_V1, True), (AgentType.MEMGPT_V2, False)], ids=["v3", "v2"]
)
async def test_form_follows_the_loop_of_the_manager(
    world: World, process: Process, kind: AgentType, wrapped: bool
) -> None:
    crew = await partners(world, process, kind=kind)
    answer = say("Hi.") if wrapped else call("send_message", message="Hi.")
    world.model.script = answer_everything(lambda _: answer)
    await process.send(crew.manager, "Hello.")
    await process.idle()
    (text,) = await crew.inputs(process)
    assert text.startswith("<system-reminder>\nYou are not the primary agent") == wrapped
    assert ("</system-reminder>\n\nMessages:\n" in text) == wrapped
    words = (
        '"}\nassistant: Hi.'
        if wrapped
        else '"}\nassistant: Hi.\nassistant: Tool call returned Sent message successfully.'
    )
    assert text.endswith(words)


async def test_messages_of_parallel_conversations_are_in_one_transcript_each(world: World, process: Process) -> None:
    crew = await partners(world, process)
    other = await process.conversations.create(ME, None, ConversationDraft(crew.manager.id))
    held = Held(say("Late."))
    world.model.script = lambda request: (
        call("memory_finish_edits")
        if is_partner(request)
        else held
        if "slow" in request.messages[-1].text
        else say("Hi.")
    )
    slow = await process.start(crew.manager, "slow", to=other.id)
    await held.asked.wait()
    await process.send(crew.manager, "one")
    held.released.set()
    await process.follow(slow)
    await process.idle()
    await process.send(crew.manager, "two", to=other.id)
    await process.send(crew.manager, "three")
    await process.idle()
    assert sorted(said(await crew.inputs(process))) == ["one", "slow", "three", "two"]


async def test_failed_and_cancelled_turns_do_not_count_and_their_messages_follow(
    world: World, process: Process
) -> None:
    crew = await partners(world, process)
    world.model.follow(ProviderRefused("No.", provider="scripted"))
    await process.send(crew.manager, "fails")
    held = Held(say("Never."))
    world.model.follow(held)
    run = await process.start(crew.manager, "is cancelled")
    await held.asked.wait()
    await process.runs.cancel(ME, RunFilter(), [run.id])
    await process.idle()
    assert await crew.runs(process) == ()
    assert (await crew.current(process)).turns_counter == 0
    world.model.script = answer_everything()
    await process.send(crew.manager, "works")
    await process.idle()
    assert said(await crew.inputs(process)) == ["fails", "is cancelled", "works"]


async def test_turn_that_waits_for_an_approval_counts_when_it_is_answered(world: World, process: Process) -> None:
    crew = await partners(world, process)
    tool = world.tools.add("dig", "found", requires_approval=True)
    manager = await process.agents.attach_tool(ME, None, crew.manager.id, tool.id, "")
    world.model.script = answer_everything(
        lambda request: call("dig") if request.messages[-1].text == "Dig." else say("Done.")
    )
    events = await process.send(manager, "Dig.")
    await process.idle()
    assert await crew.runs(process) == ()
    asked = next(event.body for event in events if getattr(event.body, "kind", "") == "approval_request")
    await process.answer(manager, Approve(asked.tool_calls[0].id))
    await process.idle()
    (text,) = await crew.inputs(process)
    assert text.split("Messages:\n")[1].split("\n")[1:] == [
        "assistant: Calling tool dig",
        "[User approved]",
        "assistant: Tool call returned found",
        "assistant: Done.",
    ]


async def test_long_range_is_split_and_every_message_is_in_one_part(world: World, process: Process) -> None:
    world.settings = ModelSettings(context_window=6_000)
    process = world.process()
    crew = await partners(world, process, frequency=5)
    for turn in range(5):
        await process.send(crew.manager, f"t{turn} " + "long " * 1_000)
    await process.idle()
    runs = await crew.runs(process)
    assert len(runs) > 2
    assert {run.status for run in runs} == {RunStatus.COMPLETED}
    assert [text.split()[0] for text in said(await crew.inputs(process))] == [f"t{turn}" for turn in range(5)]
    assert [run.lineage.parent_run_id for run in runs[1:]] == [run.id for run in runs[:-1]]
    assert [run.child_run_ids for run in runs[:-1]] == [(run.id,) for run in runs[1:]]
    assert (await crew.current(process)).last_processed_message_id == crew.rows()[-1].id


async def test_rest_of_a_range_is_processed_before_later_ranges(world: World, process: Process) -> None:
    world.settings = ModelSettings(context_window=6_000)
    process = world.process()
    crew = await partners(world, process)
    held = Held(call("memory_finish_edits"))
    first = [held]
    world.model.script = lambda request: (
        (first.pop() if first else call("memory_finish_edits")) if is_partner(request) else say("Yes.")
    )
    await process.send(crew.manager, "t0 " + "long " * 1_500)
    await held.asked.wait()
    for turn in (1, 2):
        await process.send(crew.manager, f"t{turn} " + "long " * 1_500)
    held.released.set()
    await process.idle()
    words = [text.split()[0] for text in said(await crew.inputs(process))]
    assert words == ["t0", "t1", "t2"]


async def test_message_that_does_not_fit_alone_is_clipped(world: World, process: Process) -> None:
    world.settings = ModelSettings(context_window=6_000)
    process = world.process()
    crew = await partners(world, process)
    world.model.script = answer_everything(lambda _: say("word " * 6_000))
    await process.send(crew.manager, "Tell me all.")
    await process.idle()
    texts = await crew.inputs(process)
    assert "bytes are left out here" in texts[-1]
    assert {run.status for run in await crew.runs(process)} == {RunStatus.COMPLETED}


async def test_deleted_messages_are_left_out_and_an_empty_transcript_completes_at_once(
    world: World, process: Process
) -> None:
    world.limits = PoolLimits(sleeptime=0)
    crew = await partners(world, process := world.process())
    await process.send(crew.manager, "Forget this.")
    await process.idle()
    (waiting,) = await crew.runs(process)
    assert waiting.status is RunStatus.CREATED
    for message in crew.rows()[1:]:
        await world.recall.delete_message(message.id)
    world.limits = PoolLimits()
    calls = len(world.model.requests)
    await world.process().recover()
    (done,) = await crew.runs(process)
    assert (done.status, done.stop_reason, done.input) == (RunStatus.COMPLETED, StopReason.END_TURN, ())
    assert len(world.model.requests) == calls


async def test_missing_partners_are_left_out(world: World, process: Process) -> None:
    crew = await partners(world, process, members=2)
    await process.lifecycle.delete(ME, crew.members[0].id)
    await process.send(crew.manager, "one")
    await process.idle()
    assert said(await crew.inputs(process, 1)) == ["one"]
    await process.lifecycle.delete(ME, crew.members[1].id)
    await process.send(crew.manager, "two")
    await process.idle()
    assert (await process.outcome(crew.manager)).child_run_ids == ()


async def test_failed_sleeptime_run_is_retried_with_its_transcript(world: World, process: Process) -> None:
    crew = await partners(world, process)
    world.model.script = answer_everything(partner=lambda _: call("unknown"))
    failing = [ProviderRefused("No.", provider="scripted")]
    world.model.script = lambda request: (
        (failing.pop() if failing else call("memory_finish_edits")) if is_partner(request) else say("Yes.")
    )
    await process.send(crew.manager, "Hello.")
    await process.idle()
    (failed,) = await crew.runs(process)
    assert failed.status is RunStatus.FAILED
    retried = await process.runs.retry(ME, None, failed.id)
    await process.idle()
    done = await process.runs.get(ME, retried.id)
    assert (done.status, done.input) == (RunStatus.COMPLETED, failed.input)


async def test_run_that_failed_before_its_transcript_was_made_is_retried(world: World, process: Process) -> None:
    crew = await partners(world, process)
    process.faults.error, process.faults.unavailable = Internal, {"recall.list_messages": 1}
    await process.send(crew.manager, "Hello.")
    await process.idle()
    (failed,) = await crew.runs(process)
    assert (failed.status, failed.input) == (RunStatus.FAILED, ())
    process.faults.unavailable.clear()
    retried = await process.runs.retry(ME, None, failed.id)
    await process.idle()
    done = await process.runs.get(ME, retried.id)
    assert done.status is RunStatus.COMPLETED
    assert said([done.input[0].content[0].text]) == ["Hello."]


async def test_run_is_cancelled_while_its_transcript_is_made(world: World, process: Process) -> None:
    crew = await partners(world, process)
    reached, goes_on = asyncio.Event(), asyncio.Event()

    async def hold(name: str) -> None:
        if name == "recall.list_messages":
            reached.set()
            await goes_on.wait()

    process.faults.on_call = hold
    await process.send(crew.manager, "Hello.")
    await reached.wait()
    (run,) = await crew.runs(process)
    await process.runs.cancel(ME, RunFilter(), [run.id])
    await process.idle()
    assert (await process.runs.get(ME, run.id)).status is RunStatus.CANCELLED
    process.faults.on_call = None
    retried = await process.runs.retry(ME, None, run.id)
    await process.idle()
    assert (await process.runs.get(ME, retried.id)).status is RunStatus.COMPLETED


async def test_agent_without_partners_pays_nothing(world: World, process: Process) -> None:
    agent = await world.agent(process)
    world.model.script = lambda _: say("Yes.")
    await process.send(agent, "Warm up.")
    alone = world.faults = process.faults
    alone.calls.clear()
    await process.send(agent, "Hello.")
    plain = list(alone.calls)
    crew = await partners(world, process, frequency=1_000)
    await process.send(crew.manager, "Warm up.")
    alone.calls.clear()
    await process.send(crew.manager, "Hello.")
    assert alone.calls == plain, "a manager makes no further calls either"
    assert isinstance(alone, Faults)
    await crashed(process)


async def test_erasure_of_a_sender_erases_its_words_from_the_partner(world: World, process: Process) -> None:
    crew = await partners(world, process, frequency=2)
    for sender in ("ada", "ben"):
        process.clock.advance(1)
        message = InputMessage((TextPart(f"I am {sender}."),), sender_id=sender)
        events = [
            event
            async for event in each(
                process.runs.send(ME, None, RunRequest(crew.manager.id, "", [message], RunConfig()))
            )
        ]
        assert events
    await process.idle()
    shown = [message.sender_id for message in world.turn(crew.members[0], 2) if message.role is Role.USER]
    assert shown == ["ada", "ben"]
    await world.recall.erase_sender("ada")
    words = " ".join(message.text for message in world.recall.rows[crew.members[0].id])
    assert "I am ben." in words
    assert "I am ada." not in words
    (run,) = await crew.runs(process)
    assert run.id in await process.stores.retention.list_sent_by(ME.organization_id, "ada")
