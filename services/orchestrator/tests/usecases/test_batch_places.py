"""The limit on the runs of batches that execute at the same time: order, crashes, replicas, and runs of clients."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest_asyncio
from mnemesh_kit.paging import PageQuery
from mnemesh_orchestrator.model.agents import Agent
from mnemesh_orchestrator.model.inputs import InputMessage, RunConfig
from mnemesh_orchestrator.model.runs import Batch, PoolLimits, Run, RunFilter, RunRequest, RunStatus
from mnemesh_types.messages import TextPart

from ..support.model import Held, say
from ..support.world import ME, Process, World, lines, opened

SOON = 20


@pytest_asyncio.fixture
async def shared(tmp_path: Path, postgres_url: str) -> AsyncIterator[World]:
    """A world whose processes share a PostgreSQL database."""
    async with opened(tmp_path, postgres_url) as world:
        yield world


class SlowModel:
    """A model that answers when it is told to, and the texts of the requests that it works on."""

    def __init__(self, world: World) -> None:
        self._held: dict[str, Held] = {}
        self.texts: list[str] = []
        self.most = 0
        world.model.script = self._answer

    def _answer(self, request: Any) -> Held:
        text = request.messages[-1].text
        held = self._held[text] = Held(say(f"Re: {text}"))
        self.texts.append(text)
        self.most = max(self.most, len(self.at_work))
        return held

    @property
    def at_work(self) -> list[str]:
        return [text for text, held in self._held.items() if not held.released.is_set()]

    async def works_on(self, *texts: str) -> None:
        """Waits until the model works on these requests, and checks that it works on no other."""

        async def wait() -> None:
            while not set(texts) <= set(self.at_work):
                await asyncio.sleep(0.001)

        await asyncio.wait_for(wait(), SOON)
        assert sorted(self.at_work) == sorted(texts)

    def answer(self, *texts: str) -> None:
        for text in texts:
            self._held[text].released.set()

    def answer_all(self) -> None:
        self.answer(*self.at_work)


async def start_batch(process: Process, *requests: tuple[Agent, str]) -> Batch:
    process.clock.advance(1)
    wanted = [RunRequest(agent.id, "", (InputMessage((TextPart(text),)),), RunConfig()) for agent, text in requests]
    return await process.orchestrator.batches.start(ME, None, wanted, None)


async def runs_of(process: Process, batch: Batch) -> Sequence[Run]:
    return (await process.runs.list(ME, RunFilter(batch_id=batch.id), PageQuery(1_000, ascending=True))).items


async def all_done(process: Process, batch: Batch) -> None:
    done = await process.orchestrator.batches.get(ME, batch.id)
    assert dict(done.runs) == {RunStatus.COMPLETED: sum(done.runs.values())}


async def test_the_oldest_runs_get_the_places_and_the_next_begins_at_each_end(world: World) -> None:
    world.limits = PoolLimits(batch=2)
    process, model = world.process(), SlowModel(world)
    agents = [await world.agent(process) for _ in range(5)]
    first = await start_batch(process, *[(agent, f"a{number}") for number, agent in enumerate(agents)])
    second = await start_batch(process, (agents[0], "b0"))
    await model.works_on("a0", "a1")
    for ended, begun in (("a1", "a2"), ("a0", "a3"), ("a3", "a4"), ("a2", "b0")):
        model.answer(ended)
        await model.works_on(*{*model.at_work, begun} - {ended})
    model.answer_all()
    await process.idle()
    assert (model.texts, model.most) == (["a0", "a1", "a2", "a3", "a4", "b0"], 2)
    for batch in (first, second):
        await all_done(process, batch)


async def test_a_turn_of_a_client_waits_for_no_batch(world: World) -> None:
    world.limits = PoolLimits(batch=1)
    process, model = world.process(), SlowModel(world)
    agents = [await world.agent(process) for _ in range(3)]
    batch = await start_batch(process, (agents[0], "a0"), (agents[1], "a1"))
    await model.works_on("a0")
    talk = await process.start(agents[2], "Hello")
    await model.works_on("a0", "Hello")
    model.answer("Hello")
    assert (await process.follow(talk))[-1] is not None
    assert (await process.runs.get(ME, talk.id)).status is RunStatus.COMPLETED
    model.answer("a0")
    await model.works_on("a1")
    model.answer_all()
    await process.idle()
    await all_done(process, batch)


async def test_runs_before_a_turn_of_a_client_need_no_place(world: World) -> None:
    """The order of the conversation holds, and the client does not wait for the batch of other agents."""
    world.limits = PoolLimits(batch=1)
    process, model = world.process(), SlowModel(world)
    busy, agent, last = [await world.agent(process) for _ in range(3)]
    batch = await start_batch(process, (busy, "a0"), (agent, "a1"), (agent, "a2"), (last, "a3"))
    await model.works_on("a0")
    talk = await process.start(agent, "Hello")
    for text in ("a1", "a2", "Hello"):
        await model.works_on("a0", text)
        model.answer(text)
    await process.follow(talk)
    assert [line for line in lines(world.turn(agent)) if line.startswith("user")] == [
        *("user text: a1", "user text: a2", "user text: Hello")
    ]
    await model.works_on("a0")
    model.answer("a0")
    await model.works_on("a3")
    model.answer_all()
    await process.idle()
    await all_done(process, batch)


async def test_a_run_behind_a_turn_of_a_client_takes_no_place_until_it_ends(world: World) -> None:
    world.limits = PoolLimits(batch=1)
    process, model = world.process(), SlowModel(world)
    agent, other = [await world.agent(process) for _ in range(2)]
    await process.start(agent, "Hello")
    await model.works_on("Hello")
    batch = await start_batch(process, (agent, "a0"), (other, "a1"))
    await model.works_on("Hello", "a1")
    model.answer("Hello")
    await asyncio.sleep(0.05)
    await model.works_on("a1")
    model.answer("a1")
    await model.works_on("a0")
    model.answer_all()
    await process.idle()
    await all_done(process, batch)


async def test_cancelling_ends_the_waiting_runs_without_a_call_of_a_model(world: World) -> None:
    world.limits = PoolLimits(batch=2)
    process, model = world.process(), SlowModel(world)
    agents = [await world.agent(process) for _ in range(6)]
    batch = await start_batch(process, *[(agent, f"a{number}") for number, agent in enumerate(agents)])
    following = await start_batch(process, (agents[5], "b0"))
    await model.works_on("a0", "a1")
    cancelled = await process.orchestrator.batches.cancel(ME, batch.id)
    assert dict(cancelled.runs) == {RunStatus.CANCELLED: 6}
    await model.works_on("b0", "a0", "a1")  # the script does not learn of cancellations
    model.answer_all()
    await process.idle()
    assert model.texts == ["a0", "a1", "b0"]
    await all_done(process, following)


async def test_without_places_runs_wait_and_a_restart_with_places_executes_them(world: World) -> None:
    world.limits = PoolLimits(batch=0)
    paused, model = world.process(), SlowModel(world)
    agents = [await world.agent(paused) for _ in range(2)]
    batch = await start_batch(paused, *[(agent, f"a{number}") for number, agent in enumerate(agents)])
    await paused.recover()
    assert {run.status for run in await runs_of(paused, batch)} == {RunStatus.CREATED}
    assert await paused.stores.leases.claimable("instance-1") == ()
    await paused.worker.stop()
    world.limits = PoolLimits()
    process = world.process()
    recovery = asyncio.create_task(process.recover())
    await model.works_on("a0", "a1")
    model.answer_all()
    await recovery
    await all_done(process, batch)


async def test_runs_of_a_process_that_died_keep_their_places_until_they_are_resumed(world: World) -> None:
    world.limits = PoolLimits(batch=2)
    dying, model = world.process("instance-1"), SlowModel(world)
    agents = [await world.agent(dying) for _ in range(4)]
    batch = await start_batch(dying, *[(agent, f"a{number}") for number, agent in enumerate(agents)])
    await model.works_on("a0", "a1")
    for active in list(dying.worker._active.values()):
        dying.worker._lose(active)  # as a crash: the leases stay
    await dying.idle()
    living = world.process("instance-2")
    await living.recover()
    assert [run.status for run in await runs_of(living, batch)] == [RunStatus.RUNNING] * 2 + [RunStatus.CREATED] * 2
    world.clock.advance(31)
    recovery = asyncio.create_task(living.recover())
    while len(model.texts) < 4:
        await asyncio.sleep(0.001)
    assert sorted(model.texts[2:]) == ["a0", "a1"]
    model.answer_all()
    await model.works_on("a2", "a3")
    model.answer_all()
    await recovery
    await living.idle()
    await all_done(living, batch)


async def test_replicas_share_the_places(shared: World) -> None:
    shared.limits = PoolLimits(batch=2)
    replicas, model = [shared.process(f"instance-{number}") for number in (1, 2)], SlowModel(shared)
    agents = [await shared.agent(replicas[0]) for _ in range(6)]
    first, second = [
        [(agent, f"{name}{number}") for number, agent in enumerate(half)]
        for name, half in (("a", agents[:3]), ("b", agents[3:]))
    ]
    batches = await asyncio.gather(start_batch(replicas[0], *first), start_batch(replicas[1], *second))
    while len(model.texts) < 6:
        await asyncio.gather(*(replica.orchestrator.worker.fill_places(ME.organization_id) for replica in replicas))
        assert len(model.at_work) <= 2
        await asyncio.sleep(0.01)
        model.answer_all()
    for replica in replicas:
        await replica.idle()
    model.answer_all()
    for replica in replicas:
        await replica.idle()
        await replica.worker.stop()
    assert model.most <= 2
    assert sorted(model.texts) == ["a0", "a1", "a2", "b0", "b1", "b2"]
    for batch in batches:
        await all_done(replicas[0], batch)
