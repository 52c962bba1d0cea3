"""The suites of the stores of batches and callbacks."""

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest
from mnemesh_kit.errors import NotFound, RequestIdReused
from mnemesh_kit.ids import new_id
from mnemesh_kit.paging import PageQuery
from mnemesh_kit.time import FrozenClock
from mnemesh_orchestrator.model.agents import Agent
from mnemesh_orchestrator.model.events import RunEnd
from mnemesh_orchestrator.model.inputs import CallbackResult, RunConfig
from mnemesh_orchestrator.model.runs import Batch, BatchDraft, Run, RunFilter, RunStatus, StopReason
from mnemesh_orchestrator.model.webhooks import MAX_ATTEMPTS
from mnemesh_orchestrator.store.agents import AgentStore
from mnemesh_orchestrator.store.callbacks import CallbackStore
from mnemesh_orchestrator.store.leases import LeaseStore
from mnemesh_orchestrator.store.run_relations import BatchStore, RunRetention
from mnemesh_orchestrator.store.runs import RunStore

from .records import ALL, ORG, OTHER_ORG, a_run, an_agent, an_end, key, made

URL = "https://hooks.example/done"


def _draft(clock: FrozenClock, url: str | None = None) -> BatchDraft:
    return BatchDraft(new_id("batch"), ORG, new_id("user"), clock.now(), url)


class BatchStoreSuite:
    """Subclass it with fixtures `agents`, `runs`, `batches`, `callbacks`, `leases` and `retention` on `clock`."""

    @pytest.fixture
    async def agent(self, agents: AgentStore, clock: FrozenClock) -> Agent:
        return await made(agents, an_agent(clock))

    async def _started(
        self, batches: BatchStore, agent: Agent, clock: FrozenClock, count: int = 2, url: str | None = None
    ) -> tuple[Batch, list[Run]]:
        draft = _draft(clock, url)
        wanted = [a_run(agent, clock, text=f"{number}", batch_id=draft.id, background=True) for number in range(count)]
        return await batches.start(None, draft, wanted), wanted

    async def _end(self, runs: RunStore, agent: Agent, clock: FrozenClock, reason: StopReason) -> Run:
        claim = await runs.claim_next(agent.default_conversation_id, "me")
        assert claim is not None
        failed = reason is StopReason.ERROR
        ended = an_end(claim.run, clock, reason)
        ended = replace(ended, status=RunStatus.FAILED) if failed else ended
        await runs.finish(claim.lease, RunEnd(ended), ())
        return claim.run

    async def test_runs_of_a_batch_wait_in_order_for_any_process(
        self, batches: BatchStore, runs: RunStore, leases: LeaseStore, agent: Agent, clock: FrozenClock
    ) -> None:
        batch, wanted = await self._started(batches, agent, clock, 3)
        assert (batch.status, batch.unfinished, batch.completed_at) == (RunStatus.RUNNING, 3, None)
        assert await leases.claimable("you") == (agent.default_conversation_id,)
        listed = (await runs.list(ORG, RunFilter(batch_id=batch.id), ALL)).items
        assert [(run.id, run.status, run.batch_id) for run in listed] == [
            (run.id, RunStatus.CREATED, batch.id) for run in wanted
        ]
        ended = [await self._end(runs, agent, clock, StopReason.END_TURN) for _ in wanted]
        assert [run.id for run in ended] == [run.id for run in wanted]

    async def test_status_is_that_of_all_runs(
        self, batches: BatchStore, runs: RunStore, agent: Agent, clock: FrozenClock
    ) -> None:
        (first, _), (second, _) = [await self._started(batches, agent, clock) for _ in range(2)]
        for number, reason in enumerate((StopReason.END_TURN, *[StopReason.ERROR] * 3)):
            clock.advance(1)
            await self._end(runs, agent, clock, reason)
            if number == 0:
                assert (await batches.get(ORG, first.id)).status is RunStatus.RUNNING
        found = await batches.get(ORG, first.id)
        assert (found.status, dict(found.runs)) == (
            RunStatus.COMPLETED,
            {RunStatus.COMPLETED: 1, RunStatus.FAILED: 1},
        )
        assert found.completed_at == clock.now() - timedelta(seconds=2)
        assert (await batches.get(ORG, second.id)).status is RunStatus.FAILED
        assert not await batches.mark_cancelled(ORG, second.id)
        assert (await batches.get(ORG, second.id)).status is RunStatus.FAILED

    async def test_all_runs_are_stored_or_none(
        self, batches: BatchStore, runs: RunStore, agent: Agent, clock: FrozenClock
    ) -> None:
        draft = _draft(clock)
        missing = replace(a_run(agent, clock), conversation_id=new_id("conv"))
        with pytest.raises(NotFound):
            await batches.start(key("StartBatch"), draft, [a_run(agent, clock), missing])
        assert (await runs.list(ORG, RunFilter(), ALL)).items == ()
        with pytest.raises(NotFound):
            await batches.get(ORG, draft.id)
        assert await batches.find_repeated(key("StartBatch")) is None

    async def test_repeated_request_returns_the_same_batch(
        self, batches: BatchStore, runs: RunStore, agent: Agent, clock: FrozenClock
    ) -> None:
        request = key("StartBatch")
        drafts = [_draft(clock) for _ in range(4)]
        found = await asyncio.gather(
            *(batches.start(request, draft, [a_run(agent, clock, batch_id=draft.id)]) for draft in drafts)
        )
        assert len({batch.id for batch in found}) == 1
        assert len((await runs.list(ORG, RunFilter(), ALL)).items) == 1
        assert await batches.find_repeated(request) == found[0]
        with pytest.raises(RequestIdReused):
            await batches.find_repeated(replace(request, fingerprint="other"))

    async def test_lists_are_of_one_organization(self, batches: BatchStore, agent: Agent, clock: FrozenClock) -> None:
        started = []
        for _ in range(3):
            clock.advance(1)
            started.append((await self._started(batches, agent, clock))[0])
        newest = PageQuery(2, ascending=False)
        assert [batch.id for batch in (await batches.list(ORG, newest)).items] == [started[2].id, started[1].id]
        assert (await batches.list(OTHER_ORG, ALL)).items == ()
        for call in (batches.get, batches.mark_cancelled):
            with pytest.raises(NotFound):
                await call(OTHER_ORG, started[0].id)  # type: ignore[operator]

    async def test_a_batch_is_deleted_with_its_last_run(
        self,
        batches: BatchStore,
        callbacks: CallbackStore,
        runs: RunStore,
        agents: AgentStore,
        retention: RunRetention,
        agent: Agent,
        clock: FrozenClock,
    ) -> None:
        batch, wanted = await self._started(batches, agent, clock, url=URL)
        for _ in wanted:
            await self._end(runs, agent, clock, StopReason.END_TURN)
        await runs.delete(ORG, wanted[0].id)
        assert dict((await batches.get(ORG, batch.id)).runs) == {RunStatus.COMPLETED: 1}
        clock.advance(1)
        await retention.purge_runs(clock.now())
        with pytest.raises(NotFound):
            await batches.get(ORG, batch.id)
        assert await callbacks.claim(10) == ()
        other, _ = await self._started(batches, agent, clock, url=URL)
        await agents.remove(agent.id)
        with pytest.raises(NotFound):
            await batches.get(ORG, other.id)
        assert await callbacks.claim(10) == ()

    async def test_callbacks_are_due_when_their_runs_have_ended(
        self, batches: BatchStore, callbacks: CallbackStore, runs: RunStore, agent: Agent, clock: FrozenClock
    ) -> None:
        batch, wanted = await self._started(batches, agent, clock, url=URL)
        config = RunConfig(callback_url=f"{URL}/one")
        alone = a_run(agent, clock, config=config)
        await runs.start(None, alone, "me", reject_busy=False)
        await self._end(runs, agent, clock, StopReason.END_TURN)
        assert await callbacks.claim(10) == ()
        await self._end(runs, agent, clock, StopReason.ERROR)
        (due,) = await callbacks.claim(10)
        assert (due.target_id, due.organization_id, due.url, due.attempt) == (batch.id, ORG, URL, 1)
        await self._end(runs, agent, clock, StopReason.END_TURN)
        (due,) = await callbacks.claim(10)
        assert (due.target_id, due.url) == (alone.id, f"{URL}/one")
        await callbacks.record(ORG, alone.id, 1, sent_at=clock.now(), status=204, error=None)
        stored = CallbackResult(f"{URL}/one", clock.now(), 204)
        assert (await runs.get(ORG, alone.id)).callback == stored
        assert [run.callback for run in (await runs.list(ORG, RunFilter(), ALL)).items] == [
            *[None] * len(wanted),
            stored,
        ]
        assert (await batches.get(ORG, batch.id)).callback == CallbackResult(URL)

    async def test_a_callback_is_called_again_until_it_is_answered(
        self, callbacks: CallbackStore, runs: RunStore, agent: Agent, clock: FrozenClock
    ) -> None:
        run = a_run(agent, clock, config=RunConfig(callback_url=URL))
        await runs.start(None, run, "me", reject_busy=False)
        await self._end(runs, agent, clock, StopReason.END_TURN)
        for attempt in range(1, MAX_ATTEMPTS + 1):
            (due,) = await callbacks.claim(10)
            assert due.attempt == attempt
            assert await callbacks.claim(10) == (), "another gateway calls it"
            status = 503 if attempt % 2 else None
            await callbacks.record(ORG, run.id, attempt, sent_at=clock.now(), status=status, error="It is down.")
            await callbacks.record(ORG, run.id, attempt - 1, sent_at=clock.now(), status=200, error=None)
            clock.advance(12 * 3600)
        assert await callbacks.claim(10) == ()
        callback = (await runs.get(ORG, run.id)).callback
        assert callback is not None
        assert (callback.status, callback.error) == (503, "It is down.")

    async def test_only_one_gateway_gets_a_callback(
        self, callbacks: CallbackStore, runs: RunStore, agent: Agent, clock: FrozenClock
    ) -> None:
        for _ in range(5):
            await runs.start(None, a_run(agent, clock, config=RunConfig(callback_url=URL)), "me", reject_busy=False)
        for _ in range(5):
            await self._end(runs, agent, clock, StopReason.END_TURN)
        claims = await asyncio.gather(*(callbacks.claim(3) for _ in range(4)))
        claimed = [callback.target_id for claim in claims for callback in claim]
        assert len(claimed) == len(set(claimed)) == 5
