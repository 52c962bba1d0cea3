"""The suite of stores of the relations between runs."""

import pytest
from mnemesh_kit.time import FrozenClock
from mnemesh_orchestrator.model.agents import Agent
from mnemesh_orchestrator.model.runs import Ancestor, ChildRun, Lineage, Run, RunOrigin, RunStatus, StopReason
from mnemesh_orchestrator.store.agents import AgentStore
from mnemesh_orchestrator.store.run_relations import RunRelationStore
from mnemesh_orchestrator.store.runs import RunStore

from .records import ORG, OTHER_ORG, a_run, an_agent, an_end, made


class RunRelationSuite:
    """Subclass it with fixtures `relations`, `runs` and `agents` over one empty database on the `clock` fixture."""

    @pytest.fixture(autouse=True)
    def stores(self, runs: RunStore, agents: AgentStore, clock: FrozenClock) -> None:
        self.runs, self.agents, self.clock = runs, agents, clock

    async def agent(self, name: str) -> Agent:
        return await made(self.agents, an_agent(self.clock, name))

    async def started(self, agent: Agent, parent: Run | None = None, *, awaited: bool = True) -> Run:
        self.clock.advance(1)
        lineage = Lineage()
        if parent is not None:
            waits = Ancestor(parent.id, parent.conversation_id, parent.agent_id)
            above = (*parent.lineage.ancestors, waits) if awaited else ()
            lineage = Lineage(parent.id, RunOrigin.AGENT, above, parent.lineage.depth + 1)
        run = a_run(agent, self.clock, lineage=lineage)
        return (await self.runs.start(None, run, "me", reject_busy=False)).run

    async def test_children_are_in_the_order_of_their_start(self, relations: RunRelationStore) -> None:
        ann, ben, cleo = [await self.agent(name) for name in ("Ann", "Ben", "Cleo")]
        parent = await self.started(ann)
        children = [await self.started(ben, parent), await self.started(cleo, parent, awaited=False)]
        queued = await self.started(ben, parent)
        assert await relations.list_children(ORG, parent.id) == (
            ChildRun(children[0].id, ben.id, RunStatus.RUNNING, None, True),
            ChildRun(children[1].id, cleo.id, RunStatus.RUNNING, None, False),
            ChildRun(queued.id, ben.id, RunStatus.CREATED, None, True),
        )
        assert await relations.list_children(ORG, children[0].id) == ()
        assert await relations.list_children(OTHER_ORG, parent.id) == ()

    async def test_child_is_stored_once_under_its_id(self, relations: RunRelationStore) -> None:
        ann, ben = await self.agent("Ann"), await self.agent("Ben")
        child = await self.started(ben, parent := await self.started(ann))
        repeat = await self.runs.start(None, child, "me", reject_busy=False)
        assert (repeat.replayed, repeat.run.id, repeat.claim) == (True, child.id, None)
        assert len(await relations.list_children(ORG, parent.id)) == 1

    async def test_run_in_an_idle_queue_and_behind_other_runs_waits(self, relations: RunRelationStore) -> None:
        ann, ben = await self.agent("Ann"), await self.agent("Ben")
        parent = await self.started(ann)
        running = await self.started(ben, parent)
        assert not await relations.must_give_up(parent, running.id)
        queued = await self.started(ben, parent)
        assert not await relations.must_give_up(parent, queued.id)
        assert not await relations.must_give_up(parent, a_run(ben, self.clock).id)

    @pytest.mark.parametrize("size", [2, 3, 5])
    async def test_last_of_a_cycle_gives_up(self, relations: RunRelationStore, size: int) -> None:
        agents = [await self.agent(f"Agent {number}") for number in range(size)]
        parents = [await self.started(agent) for agent in agents]
        queued = [await self.started(agents[(place + 1) % size], parent) for place, parent in enumerate(parents)]
        gives_up = [
            await relations.must_give_up(parent, child.id) for parent, child in zip(parents, queued, strict=True)
        ]
        assert gives_up == [False] * (size - 1) + [True]

    async def test_cycle_through_the_ancestor_of_a_run(self, relations: RunRelationStore) -> None:
        """Ann waits for Ben, who waits in the queue of Cleo, who waits in the queue of Ann. Dan is not in the way."""
        ann, ben, cleo, dan = [await self.agent(name) for name in ("Ann", "Ben", "Cleo", "Dan")]
        of_ann = await self.started(ann)
        of_cleo = await self.started(cleo)
        of_ben = await self.started(ben, of_ann)
        to_cleo = await self.started(cleo, of_ben)
        assert not await relations.must_give_up(of_ben, to_cleo.id)
        await self.started(dan, of_cleo)
        to_ann = await self.started(ann, of_cleo)
        assert await relations.must_give_up(of_ben, to_cleo.id)
        assert not await relations.must_give_up(of_cleo, to_ann.id)

    async def test_message_that_nobody_waits_for_closes_no_cycle(self, relations: RunRelationStore) -> None:
        ann, ben = await self.agent("Ann"), await self.agent("Ben")
        of_ann, of_ben = await self.started(ann), await self.started(ben)
        to_ben = await self.started(ben, of_ann)
        await self.started(ann, of_ben, awaited=False)
        assert not await relations.must_give_up(of_ann, to_ben.id)

    async def test_run_without_an_approval_has_no_continuation(self, relations: RunRelationStore) -> None:
        run = await self.started(await self.agent("Ann"))
        ended = an_end(run, self.clock, StopReason.REQUIRES_APPROVAL)
        known = await relations.continuation(ended)
        assert (known.is_pending, known.run_id) == (False, None)
