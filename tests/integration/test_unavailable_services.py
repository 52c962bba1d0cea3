"""Unavailable services: accepted runs wait for them, callers are told before, and no effect is repeated."""

import asyncio

import pytest
from mnemesh.agents.v1 import runs_pb2, runs_service_pb2
from mnemesh_client import Agent, errors
from mnemesh_client.inputs import text_part
from mnemesh_testkit.fakes.openai import FakeOpenAI
from mnemesh_testkit.fakes.server import Reply
from mnemesh_testkit.mesh.faulty_proxy import Delay, ExecuteThenTimeout, Fault, Unavailable
from mnemesh_testkit.mesh.in_process import Mesh
from mnemesh_testkit.mesh.turns import Turn, assert_whole, collect, stored, turn, window_of
from mnemesh_testkit.plugin import sampled
from mnemesh_testkit.timeouts import scaled

MODEL = "openai/fake-model"
INSERT = Reply(tool_calls=[("archival_memory_insert", {"content": "The key is under the mat."})])
EDIT = Reply(tool_calls=[("memory_insert", {"label": "human", "new_str": "Likes tea."})])


async def create(mesh: Mesh) -> Agent:
    return await mesh.client.agents.create(model=MODEL, blocks={"human": "A human."})


@pytest.mark.parametrize("service", ["recall", "blocks"])
@pytest.mark.mesh(in_memory=False)
async def test_accepted_run_waits_for_an_essential_service_and_a_caller_who_waits_is_refused(
    mesh: Mesh, fake_openai: FakeOpenAI, service: str
) -> None:
    agent = await create(mesh)
    fake_openai.script = ["Hello."]
    await mesh.stop(service)
    message = runs_pb2.InputMessage(content=[text_part("Hello?")])
    request = runs_service_pb2.SendMessageRequest(agent_id=agent.id, messages=[message], request_id="r-1")
    with pytest.raises(errors.Unavailable):
        async for _ in mesh.client.runs.stub.SendMessage(request):
            pass
    assert [run.id async for run in mesh.client.runs.list(agent_id=agent.id)] == []
    run = await mesh.client.runs.start(agent.id, "Hello?")
    assert fake_openai.requests == []
    await mesh.start(service)
    async with asyncio.timeout(scaled(60)):
        assert (await collect(mesh.client.runs.stream(run.id))).said == "Hello."


@pytest.mark.mesh(proxied=["recall", "blocks"])
@pytest.mark.parametrize(("service", "method"), [("recall", "GetContext"), ("blocks", "GetCoreMemory")])
async def test_new_turn_waits_for_the_restart_of_an_essential_service(
    mesh: Mesh, fake_openai: FakeOpenAI, service: str, method: str
) -> None:
    agent = await create(mesh)
    fake_openai.script = ["Hello."]
    # More often than the channel asks by itself.
    mesh.proxies[service].inject(method, Unavailable(), times=6)
    result = await turn(agent, "Hello?")
    assert (result.status, result.said) == ("COMPLETED", "Hello."), result.error
    assert mesh.proxies[service].calls[method] > 6


@pytest.mark.mesh(settings={"orchestrator": {"degrade_seconds": scaled(1)}})
async def test_turn_continues_without_archival(mesh: Mesh, fake_openai: FakeOpenAI) -> None:
    agent = await create(mesh)
    await mesh.stop("archival")
    fake_openai.script = [EDIT, "Noted."]
    result = await turn(agent, "I like tea.")
    assert (result.status, result.said) == ("COMPLETED", "Noted.")
    assert "Likes tea." in (await agent.memory()).blocks[0].value


@pytest.mark.parametrize("service", ["recall", "blocks", "archival"])
@pytest.mark.mesh(in_memory=False)
async def test_turn_waits_for_a_service_that_becomes_unavailable(
    mesh: Mesh, fake_openai: FakeOpenAI, service: str
) -> None:
    agent = await create(mesh)
    gate = asyncio.Event()
    fake_openai.script = [Reply(text="I store both.", tool_calls=[*INSERT.calls, *EDIT.calls], gates=[gate]), "Done."]
    run = asyncio.create_task(turn(agent, "Store it, and I like tea."))
    await _until_asked(fake_openai)
    await mesh.stop(service)
    gate.set()
    await _until_waiting(agent, mesh, run)
    assert not run.done(), run.result().error
    await mesh.start(service)
    async with asyncio.timeout(scaled(60)):
        received = await run
    assert (received.status, received.said.splitlines()[-1]) == ("COMPLETED", "Done.")
    await _assert_done_once(mesh, agent, fake_openai)


@pytest.mark.mesh(proxied=["recall", "blocks", "archival"])
@pytest.mark.parametrize(
    ("service", "method"),
    [("blocks", "EditBlock"), ("archival", "InsertPassages"), ("recall", "CommitStep")],
    ids=["edit", "insert", "commit"],
)
@pytest.mark.parametrize(
    "fault",
    sampled([ExecuteThenTimeout(), Unavailable(), Delay(0.3)], 3),
    ids=["lost", "away", "late"],
)
async def test_effect_with_a_lost_response_takes_place_once(
    mesh: Mesh, fake_openai: FakeOpenAI, service: str, method: str, fault: Fault
) -> None:
    agent = await create(mesh)
    fake_openai.script = [Reply(text="I store both.", tool_calls=[*INSERT.calls, *EDIT.calls]), "Done."]
    mesh.proxies[service].inject(method, fault, times=2)
    result = await turn(agent, "Store it, and I like tea.")
    assert result.status == "COMPLETED", result.error
    assert mesh.proxies[service].calls[method] >= (1 if isinstance(fault, Delay) else 3)
    await _assert_done_once(mesh, agent, fake_openai)


async def _assert_done_once(mesh: Mesh, agent: Agent, fake: FakeOpenAI) -> None:
    assert [passage.text async for passage in agent.passages()] == ["The key is under the mat."]
    assert (await agent.memory()).blocks[0].value.count("Likes tea.") == 1
    window = await window_of(mesh.client, agent)
    assert_whole(window)
    assert [row.id for row in await stored(agent)] == [row.id for row in window]
    assert len(window) == 4
    assert len(fake.requests) == 2, "the provider was asked again for what it had answered"


async def _until_asked(fake: FakeOpenAI) -> None:
    async with asyncio.timeout(scaled(60)):
        while not fake.requests:
            await asyncio.sleep(0.005)


async def _until_waiting(agent: Agent, mesh: Mesh, run: asyncio.Task[Turn]) -> None:
    """Until the answer is journalled: its message is among the stored events of the run."""
    runs = [item async for item in mesh.client.runs.list(agent_id=agent.id)]
    async with asyncio.timeout(scaled(60)):
        while not run.done() and (await mesh.client.runs.get(runs[0].id)).last_sequence < 1:
            await asyncio.sleep(0.01)
