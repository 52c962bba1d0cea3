"""The suite of stores of sleeptime runs: starts with the end of a turn, the limit, and transcripts."""

import asyncio
from dataclasses import replace

import pytest
import pytest_asyncio
from mnemesh_kit.ids import new_id
from mnemesh_kit.time import FrozenClock
from mnemesh_orchestrator.errors import LeaseLost
from mnemesh_orchestrator.model.agents import Agent
from mnemesh_orchestrator.model.conversations import Conversation, ConversationOrigin
from mnemesh_orchestrator.model.events import FinishedRun, RunEnd, UsageEvent
from mnemesh_orchestrator.model.groups import (
    Group,
    ManagerConfig,
    ManagerType,
    SleeptimeSettings,
    SleeptimeTurn,
    TranscriptRange,
)
from mnemesh_orchestrator.model.inputs import InputMessage
from mnemesh_orchestrator.model.runs import Lineage, Run, RunOrigin, RunStatus
from mnemesh_orchestrator.store.agents import AgentStore
from mnemesh_orchestrator.store.conversations import ConversationStore
from mnemesh_orchestrator.store.groups import GroupStore
from mnemesh_orchestrator.store.leases import LeaseStore
from mnemesh_orchestrator.store.runs import RunStore
from mnemesh_orchestrator.store.sleeptime import SleeptimeStore
from mnemesh_types.messages import Message, Role, TextPart
from mnemesh_types.usage import Usage

from .records import ORG, a_group, a_run, an_agent, an_end, an_event, key, made


def turn_up_to(agent: Agent, sequence_id: int, clock: FrozenClock) -> SleeptimeTurn:
    message = Message(new_id("message"), Role.USER, clock.now(), sequence_id=sequence_id)
    return SleeptimeTurn(agent.id, (message,))


class SleeptimeStoreSuite:
    """Subclass it with fixtures of the stores over one empty database on the `clock` fixture."""

    @pytest_asyncio.fixture
    async def crew(self, agents: AgentStore, clock: FrozenClock) -> list[Agent]:
        return [await made(agents, an_agent(clock, name)) for name in ("Zoe", "Ada", "Max")]

    async def grouped(self, groups: GroupStore, crew: list[Agent], clock: FrozenClock, **config: object) -> Group:
        manager = ManagerConfig(ManagerType.SLEEPTIME, crew[0].id, **config)  # type: ignore[arg-type]
        group, _ = await groups.create(None, a_group(clock, *crew[1:], manager=manager))
        return group

    async def turn(self, runs: RunStore, agent: Agent, clock: FrozenClock, sequence_id: int) -> FinishedRun:
        """Completes a turn whose newest message has a sequence id, twice, as if the first answer were lost."""
        claim = (await runs.start(None, a_run(agent, clock), "me", reject_busy=False)).claim
        assert claim is not None
        end = replace(an_end(claim.run, clock), last_sequence=1)
        usage = replace(an_event(end, 1, clock), body=UsageEvent(Usage(), 1))
        facts = turn_up_to(agent, sequence_id, clock)
        first = await runs.finish(claim.lease, RunEnd(end, sleeptime=facts), [usage])
        again = await runs.finish(claim.lease, RunEnd(end, sleeptime=facts), [usage], is_repeat=True)
        assert again == first
        (stored,) = await runs.events(end.id, 0, 10)
        assert isinstance(stored.body, UsageEvent)
        assert stored.body.child_run_ids == first.run.child_run_ids
        assert (await runs.get(ORG, end.id)).child_run_ids == first.run.child_run_ids
        return first

    async def test_turns_start_the_members_with_contiguous_ranges(
        self, groups: GroupStore, runs: RunStore, sleeptime: SleeptimeStore, crew: list[Agent], clock: FrozenClock
    ) -> None:
        group = await self.grouped(groups, crew, clock, frequency=2, max_steps=7)
        ends = [await self.turn(runs, crew[0], clock, number) for number in (5, 9, 14, 20)]
        assert [end.started for end in ends[::2]] == [(), ()]
        members = tuple(agent.default_conversation_id for agent in crew[1:])
        assert [end.started for end in ends[1::2]] == [members, members]
        children = [await runs.get(ORG, id_) for end in ends for id_ in end.run.child_run_ids]
        assert [(run.agent_id, run.transcript) for run in children] == [
            (agent.id, TranscriptRange(group.id, crew[0].id, after, until))
            for after, until in ((0, 9), (9, 20))
            for agent in crew[1:]
        ]
        assert {(run.config.max_steps, run.status, run.group_id) for run in children} == {
            (7, RunStatus.CREATED, group.id)
        }
        progress = await sleeptime.progress(ORG, group.id)
        assert (progress.turns_counter, progress.seen, progress.processed) == (4, 20, 20)
        claim = await runs.claim_next(crew[1].default_conversation_id, "me")
        assert claim is not None
        assert claim.run.id == children[0].id

    async def test_turns_that_end_at_once_share_no_message(
        self, groups: GroupStore, runs: RunStore, crew: list[Agent], clock: FrozenClock, threads: ConversationStore
    ) -> None:
        await self.grouped(groups, crew[:2], clock)
        other = [await made_conversation(threads, crew[0], clock) for _ in range(4)]
        claims = [
            (await runs.start(None, replace(a_run(crew[0], clock), conversation_id=id_), "me", reject_busy=False)).claim
            for id_ in other
        ]
        finished = await asyncio.gather(
            *(
                runs.finish(
                    claim.lease, RunEnd(an_end(claim.run, clock), sleeptime=turn_up_to(crew[0], 10 * number, clock)), ()
                )
                for number, claim in enumerate(claims, 1)
                if claim is not None
            )
        )
        ranges = [(await runs.get(ORG, id_)).transcript for end in finished for id_ in end.run.child_run_ids]
        covered = sorted((range_.after, range_.until) for range_ in ranges if range_ is not None)
        assert [start for start, _ in covered] == [0, *(end for _, end in covered[:-1])]
        assert covered[-1][1] == 40

    async def test_limit_holds_for_concurrent_claims(
        self, runs: RunStore, agents: AgentStore, sleeptime: SleeptimeStore, leases: LeaseStore, clock: FrozenClock,
        groups: GroupStore, crew: list[Agent],
    ) -> None:  # fmt: skip
        more = [await made(agents, an_agent(clock, f"p{number}")) for number in range(8)]
        await self.grouped(groups, [crew[0], *more], clock)
        settings = SleeptimeSettings(3)
        assert await sleeptime.update_settings(key("UpdateSleeptimeSettings"), ORG, settings) == settings
        end = await self.turn(runs, crew[0], clock, 5)
        claims = await asyncio.gather(*(runs.claim_next(id_, "me") for id_ in end.started for _ in range(2)))
        running = {claim.run.id: claim for claim in claims if claim is not None and not claim.resumed}
        assert list(running) == list(end.run.child_run_ids[:3]), "the oldest get the places"
        assert await leases.startable(ORG) == ()
        first = running[end.run.child_run_ids[0]]
        held = await leases.holder(first.run.conversation_id)
        assert held is not None
        await runs.finish(held, RunEnd(an_end(first.run, clock)), ())
        assert await leases.startable(ORG) == end.started[3:4]
        assert await runs.claim_next(end.started[5], "me") is None
        assert end.started[3] in await leases.claimable("other")
        assert end.started[5] not in await leases.claimable("other")
        await sleeptime.update_settings(None, ORG, SleeptimeSettings())
        assert await sleeptime.settings(ORG) == SleeptimeSettings()
        assert set(await leases.startable(ORG)) == set(end.started[3:])

    async def test_due_group_is_started_by_one_process(
        self, groups: GroupStore, runs: RunStore, sleeptime: SleeptimeStore, crew: list[Agent], clock: FrozenClock
    ) -> None:
        group = await self.grouped(groups, crew, clock, frequency=10, inactivity_seconds=60.0)
        turn = await self.turn(runs, crew[0], clock, 5)
        assert await sleeptime.due(10) == ()
        clock.advance(61)
        (due,) = await sleeptime.due(10)
        assert due == await groups.get(ORG, group.id)
        started = [each for each in await asyncio.gather(*(sleeptime.start_due(due) for _ in range(4))) if each]
        assert [[run.agent_id for run in each] for each in started] == [list(group.agent_ids)]
        assert {run.subject_id for run in started[0]} == {turn.run.subject_id}
        assert await sleeptime.due(10) == ()
        assert (await groups.get(ORG, group.id)).last_sleeptime_at == clock.now()

    async def test_transcript_is_stored_once_and_its_rest_is_next(
        self, groups: GroupStore, runs: RunStore, crew: list[Agent], clock: FrozenClock
    ) -> None:
        group = await self.grouped(groups, crew[:2], clock)
        await self.turn(runs, crew[0], clock, 9)
        await self.turn(runs, crew[0], clock, 12)
        claim = await runs.claim_next(crew[1].default_conversation_id, "me")
        assert claim is not None
        assert claim.run.transcript is not None
        ready = replace(claim.run, input=(InputMessage((TextPart("one"),)),))
        rest = a_rest(claim.run, clock)
        event = an_event(ready, 1, clock)
        assert await runs.store_transcript(claim.lease, ready, [event], rest, None) == ready
        other = replace(ready, input=(InputMessage((TextPart("two"),)),))
        assert (await runs.store_transcript(claim.lease, other, [event], rest, None)).input == ready.input
        assert await runs.events(ready.id, 0, 10) == (event,)
        again = await runs.claim_next(crew[1].default_conversation_id, "me")
        assert again is not None
        assert (again.run.id, again.resumed, again.run.input) == (ready.id, True, ready.input)
        with pytest.raises(LeaseLost):
            await runs.store_transcript(claim.lease, other, [event], rest, None)
        await runs.finish(again.lease, RunEnd(an_end(again.run, clock)), ())
        following = await runs.claim_next(crew[1].default_conversation_id, "me")
        assert following is not None
        assert following.run.id == rest.id
        await runs.store_transcript(
            following.lease, replace(rest, input=ready.input), [], None, last := new_id("message")
        )
        assert (await groups.get(ORG, group.id)).last_processed_message_id is None, "a later range is processed, too"
        await runs.finish(following.lease, RunEnd(an_end(following.run, clock)), ())
        newest = await runs.claim_next(crew[1].default_conversation_id, "me")
        assert newest is not None
        await runs.store_transcript(newest.lease, replace(newest.run, input=ready.input), [], None, last)
        assert (await groups.get(ORG, group.id)).last_processed_message_id == last


def a_rest(run: Run, clock: FrozenClock) -> Run:
    assert run.transcript is not None
    return Run(
        id=new_id("run"),
        organization_id=run.organization_id,
        subject_id=run.subject_id,
        agent_id=run.agent_id,
        conversation_id=run.conversation_id,
        created_at=clock.now(),
        updated_at=clock.now(),
        input=(),
        lineage=Lineage(run.id, RunOrigin.SLEEPTIME),
        transcript=replace(run.transcript, after=4),
    )


async def made_conversation(threads: ConversationStore, agent: Agent, clock: FrozenClock) -> str:
    id_ = new_id("conv")
    conversation = Conversation(
        id=id_,
        organization_id=agent.organization_id,
        agent_id=agent.id,
        is_default=False,
        created_at=clock.now(),
        updated_at=clock.now(),
    )
    await threads.begin_creation(None, conversation, ConversationOrigin())
    await threads.activate(conversation, None)
    return id_
