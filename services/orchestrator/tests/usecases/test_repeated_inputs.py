"""An input is stored once: under its request_id, under its otids, and however often its failed run is retried."""

from collections.abc import Sequence

import pytest
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.paging import PageQuery
from mnemesh_orchestrator.errors import OtidReused, RunEnded, RunUnderWay
from mnemesh_orchestrator.llm.errors import ProviderRefused
from mnemesh_orchestrator.llm.port import FinishReason
from mnemesh_orchestrator.model.agents import Agent
from mnemesh_orchestrator.model.inputs import InputMessage, RunConfig, sent_messages
from mnemesh_orchestrator.model.runs import Run, RunFilter, RunRequest, RunStatus
from mnemesh_types.messages import Role, TextPart

from ..support.model import Held, call, say
from ..support.world import ME, Process, World, lines, require_valid

NO = ProviderRefused("No.", provider="scripted", status=400)


def sent(otid: str | None, text: str = "Hello") -> InputMessage:
    return InputMessage((TextPart(text),), otid=otid)


async def start(process: Process, agent: Agent, *messages: InputMessage) -> Run:
    process.clock.advance(1)
    return await process.runs.start(ME, None, RunRequest(agent.id, "", messages, RunConfig()))


async def run_ids(process: Process, agent: Agent) -> list[str]:
    page = await process.runs.list(ME, RunFilter(agent_ids=(agent.id,)), PageQuery(100, ascending=True))
    return [run.id for run in page.items]


async def retried(process: Process, run: Run) -> Run:
    process.clock.advance(1)
    retry = await process.runs.retry(ME, None, run.id)
    await process.follow(retry)
    return await process.runs.get(ME, retry.id)


def user_texts(world: World, agent: Agent) -> list[str]:
    window = world.window(agent).messages
    require_valid(window)
    return [message.text for message in window if message.role is Role.USER]


async def test_messages_with_repeated_otids_are_new_messages(world: World, process: Process) -> None:
    agent = await world.agent(process, initial_messages=())
    world.model.follow(say("One."), say("Two."), say("Three."))
    for text in ("Hello", "Hello", "Something else"):
        await process.send(agent, text, otid="o-1", otids_repeat=True)
    assert user_texts(world, agent) == ["Hello", "Hello", "Something else"]
    assert len(set(await run_ids(process, agent))) == 3
    stored = [message for message in world.window(agent).messages if message.role is Role.USER]
    assert [message.otid for message in stored] == ["o-1"] * 3


async def test_input_is_stored_once_for_any_number_of_retries(world: World, process: Process) -> None:
    agent = await world.agent(process, initial_messages=())
    world.model.follow(NO, NO, say("Hello yourself."))
    await process.send(agent, otid="o-1")
    first = await process.outcome(agent)
    second = await retried(process, first)
    third = await retried(process, first)
    assert (second.retried_run_ids, third.retried_run_ids) == ((first.id,), (second.id, first.id))
    assert third.status is RunStatus.COMPLETED
    for run in (first, second, third):
        with pytest.raises(RunEnded) as refused:
            await process.runs.retry(ME, None, run.id)
        assert refused.value.metadata["resource_id"] == third.id
    assert user_texts(world, agent) == ["Hello"]
    assert world.window(agent).messages[1].otid == "o-1"


async def test_input_stored_by_a_step_is_not_stored_again(world: World, process: Process) -> None:
    agent = await world.agent(process, initial_messages=())
    work = call("archival_memory_insert", content="tea")
    world.model.follow(work, NO, work, NO, say("Done."))
    await process.send(agent)
    first = await process.outcome(agent)
    await retried(process, first)
    assert (await retried(process, first)).status is RunStatus.COMPLETED
    assert user_texts(world, agent) == ["Hello"]


async def test_retried_input_outside_the_window_enters_it_and_is_stored_once(world: World, process: Process) -> None:
    agent = await world.agent(process, initial_messages=())
    world.model.follow(call("archival_memory_insert", content="tea"), NO, say("Done."))
    await process.send(agent)
    await process.windows.reset(ME, None, agent.id, agent.default_conversation_id, add_default=False)
    assert (await retried(process, await process.outcome(agent))).status is RunStatus.COMPLETED
    assert lines(world.turn(agent)) == ["user text: Hello", "assistant text: Done."]
    assert [item.message.text for item in (await world.recall.search(agent.id, "Hello", roles=("user",))).hits] == [
        "Hello"
    ]


async def test_one_retry_of_a_run_runs_at_a_time(world: World, process: Process) -> None:
    agent = await world.agent(process)
    held = Held(say("Hello."))
    world.model.follow(NO, held)
    await process.send(agent)
    failed = await process.outcome(agent)
    retry = await process.runs.retry(ME, None, failed.id)
    await held.asked.wait()
    with pytest.raises(RunUnderWay) as refused:
        await process.runs.retry(ME, None, failed.id)
    assert refused.value.metadata["resource_id"] == retry.id
    held.released.set()
    await process.follow(retry)


@pytest.mark.parametrize("ended", [False, True], ids=["during", "after"])
async def test_repeated_messages_return_the_same_run(world: World, process: Process, *, ended: bool) -> None:
    agent = await world.agent(process)
    held = Held(say("Hello."))
    world.model.follow(held)
    messages = [sent("o-1"), sent(None, "there"), sent("o-2", "Ada")]
    run = await start(process, agent, *messages)
    await held.asked.wait()
    if ended:
        held.released.set()
        await process.follow(run)
    assert (await start(process, agent, *messages)).id == run.id
    assert (await start(process, agent, messages[2])).id == run.id
    held.released.set()
    await process.idle()
    assert await run_ids(process, agent) == [run.id]


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        ([sent("o-1", "Other")], "messages[0].otid"),
        ([InputMessage((TextPart("Hello"),), Role.SYSTEM, otid="o-1")], "messages[0].otid"),
        ([sent("o-1"), sent("o-9", "New")], "messages[1]"),
        ([sent("o-9", "New"), sent("o-1")], "messages[0]"),
        ([sent("o-1"), sent(None, "New")], "messages[1]"),
        ([sent("o-1"), sent("o-3")], "messages[1].otid"),
    ],
)
async def test_repeated_messages_mixed_with_other_messages_are_refused(
    world: World, process: Process, messages: Sequence[InputMessage], field: str
) -> None:
    agent = await world.agent(process)
    world.model.follow(say("One."), say("Two."), say("Three."))
    runs = [await start(process, agent, sent("o-1")), await start(process, agent, sent("o-3"))]
    with pytest.raises(OtidReused) as refused:
        await start(process, agent, *messages)
    assert (refused.value.reason, refused.value.metadata["field"]) == ("OTID_REUSED", field)
    assert refused.value.metadata["run_id"] in {run.id for run in runs}
    assert await run_ids(process, agent) == [run.id for run in runs]
    await process.follow(await start(process, agent, sent("o-9", "New")))


async def test_duplicate_otid_within_a_request_is_refused(world: World, process: Process) -> None:
    agent = await world.agent(process)
    with pytest.raises(InvalidArgument) as refused:
        await start(process, agent, sent("o-1"), sent("o-1", "Other"))
    assert refused.value.metadata["field"] == "messages[1].otid"


def test_input_without_otids_is_not_a_repeated_one() -> None:
    assert sent_messages([sent(None)]) == ()


async def test_retry_after_a_truncated_answer_does_not_end_with_the_answer(world: World, process: Process) -> None:
    agent = await world.agent(process, initial_messages=())
    world.model.follow(say("Once upon a", finish=FinishReason.LENGTH), say("Once upon a time."))
    await process.send(agent)
    assert (await retried(process, await process.outcome(agent))).status is RunStatus.COMPLETED
    assert world.model.last.messages[-1].role is Role.USER
    assert "Continue it now" in world.model.last.messages[-1].text
    assert lines(world.turn(agent)) == [
        "user text: Hello",
        "assistant text: Once upon a",
        "assistant text: Once upon a time.",
    ]
