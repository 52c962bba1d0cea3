"""The suite of the stores of webhooks and of their deliveries."""

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from mnemesh_kit.errors import FailedPrecondition, NotFound
from mnemesh_kit.ids import new_id
from mnemesh_kit.time import FrozenClock
from mnemesh_orchestrator.model.agents import Agent
from mnemesh_orchestrator.model.episodes import ExtractionJob
from mnemesh_orchestrator.model.events import MessageEvent, RunEnd, RunEvent
from mnemesh_orchestrator.model.runs import Run, RunStatus, StopReason
from mnemesh_orchestrator.model.webhooks import MAX_ATTEMPTS, MOST_WEBHOOKS, ClaimedCallback, Webhook, WebhookEvent
from mnemesh_orchestrator.store.agents import AgentStore
from mnemesh_orchestrator.store.callbacks import CallbackStore
from mnemesh_orchestrator.store.memory_extractions import MemoryExtractionStore
from mnemesh_orchestrator.store.runs import RunStore
from mnemesh_orchestrator.store.webhooks import WebhookStore
from mnemesh_types.messages import ToolReturn, ToolStatus

from .approval_suite import asked_by
from .records import ALL, ORG, OTHER_ORG, a_run, an_agent, an_end, key, made

URL = "https://hooks.example/events"
DAY = 86_400.0


def a_webhook(clock: FrozenClock, **fields: Any) -> Webhook:
    values: dict[str, Any] = {"organization_id": ORG, "url": URL, "secret": b"sealed", **fields}
    return Webhook(
        id=new_id("webhook"), subject_id=new_id("user"), created_at=clock.now(), updated_at=clock.now(), **values
    )


def a_return(run: Run, number: int, clock: FrozenClock, name: str, status: ToolStatus) -> RunEvent:
    """The durable event of a tool's result."""
    returned = ToolReturn.from_text(new_id("call"), name, status, "Done.")
    body = MessageEvent("tool_return", new_id("message"), "otid", clock.now(), tool_returns=(returned,))
    return RunEvent(run.id, clock.now(), body, number, new_id("step"))


class WebhookStoreSuite:
    """Subclass it with fixtures `agents`, `runs`, `callbacks`, `extractions` and `webhooks` on `clock`."""

    @pytest.fixture
    async def agent(self, agents: AgentStore, clock: FrozenClock) -> Agent:
        return await made(agents, an_agent(clock))

    async def _run(
        self, runs: RunStore, agent: Agent, clock: FrozenClock, *tools: tuple[str, ToolStatus], **end: Any
    ) -> Run:
        """Starts and ends a run with results of tools, after a second."""
        clock.advance(1)
        claim = (await runs.start(None, a_run(agent, clock), "me", reject_busy=False)).claim
        assert claim is not None
        events = [a_return(claim.run, number, clock, *tool) for number, tool in enumerate(tools, 2)]
        ended = replace(an_end(claim.run, clock, end.pop("reason", StopReason.END_TURN)), **end)
        approval = asked_by(claim, clock) if ended.stop_reason is StopReason.REQUIRES_APPROVAL else None
        finish = RunEnd(ended, approval=approval, has_webhooks=claim.has_webhooks)
        await runs.finish(claim.lease, finish, events)
        return ended

    async def _claim(self, callbacks: CallbackStore) -> list[tuple[str, dict[str, Any]]]:
        """Claims what is due. Returns the types and the data of the payloads."""
        bodies = [json.loads(each.body) for each in await callbacks.claim(100)]
        return sorted((body["type"], body["data"]) for body in bodies)

    async def test_the_end_of_a_run_is_told_once_to_each_webhook_that_wants_it(
        self, webhooks: WebhookStore, callbacks: CallbackStore, runs: RunStore, agent: Agent, clock: FrozenClock
    ) -> None:
        await self._run(runs, agent, clock)
        every = await webhooks.create(None, a_webhook(clock))
        failures = (WebhookEvent.RUN_FAILED, WebhookEvent.APPROVAL_REQUESTED)
        await webhooks.create(None, a_webhook(clock, events=failures, agent_ids=(agent.id,)))
        await webhooks.create(None, a_webhook(clock, agent_ids=(new_id("agent"),)))
        await webhooks.create(None, a_webhook(clock, disabled=True))
        await webhooks.create(None, a_webhook(clock, organization_id=OTHER_ORG))
        run = await self._run(runs, agent, clock)
        ((event, data),) = await self._claim(callbacks)
        assert (event, data["run_id"], data["agent_id"], data["stop_reason"]) == (
            *("run.completed", run.id, agent.id, "end_turn"),
        )
        assert await self._claim(callbacks) == [], "another gateway sends it"
        failed = await self._run(runs, agent, clock, status=RunStatus.FAILED, reason=StopReason.ERROR)
        assert [(event, data["run_id"]) for event, data in await self._claim(callbacks)] == [
            ("run.failed", failed.id)
        ] * 2
        await self._run(runs, agent, clock, reason=StopReason.REQUIRES_APPROVAL)
        asked = await self._claim(callbacks)
        assert [event for event, _ in asked] == ["approval.requested"] * 2
        assert all(data["approval_request_id"].startswith("message-") for _, data in asked)
        found = (await webhooks.list_deliveries(ORG, every.id, ALL)).items
        assert [each.event for each in found] == ["run.completed", "run.failed", "approval.requested"]

    async def test_a_run_that_is_cancelled_in_its_queue_is_told_too(
        self, webhooks: WebhookStore, callbacks: CallbackStore, runs: RunStore, agent: Agent, clock: FrozenClock
    ) -> None:
        await webhooks.create(None, a_webhook(clock))
        await runs.start(None, a_run(agent, clock), "me", reject_busy=False)
        waiting = (await runs.start(None, a_run(agent, clock), "me", reject_busy=False)).run
        ended = replace(an_end(waiting, clock, StopReason.CANCELLED), status=RunStatus.CANCELLED)
        assert await runs.cancel_waiting(ended, ())
        ((event, data),) = await self._claim(callbacks)
        assert (event, data["run_id"]) == ("run.cancelled", waiting.id)

    async def test_changes_of_memory_by_tools_are_told(
        self, webhooks: WebhookStore, callbacks: CallbackStore, runs: RunStore, agent: Agent, clock: FrozenClock
    ) -> None:
        await webhooks.create(None, a_webhook(clock, events=(WebhookEvent.MEMORY_CHANGED,)))
        done, failed = ToolStatus.SUCCESS, ToolStatus.ERROR
        await self._run(runs, agent, clock, ("conversation_search", done), ("memory_insert", failed))
        assert await self._claim(callbacks) == []
        used = [("memory_insert", done), ("archival_memory_insert", done), ("memory_insert", done)]
        run = await self._run(runs, agent, clock, *used)
        ((event, data),) = await self._claim(callbacks)
        assert (event, data["run_id"], data["tools"]) == (
            *("memory.changed", run.id, ["memory_insert", "archival_memory_insert"]),
        )

    async def test_extracted_facts_are_told_once(
        self,
        webhooks: WebhookStore,
        callbacks: CallbackStore,
        extractions: MemoryExtractionStore,
        agent: Agent,
        clock: FrozenClock,
    ) -> None:
        await webhooks.create(None, a_webhook(clock))
        claim = await extractions.claim(ExtractionJob(ORG, agent.id), "me")
        assert claim is not None
        assert await extractions.advance(claim, 5)
        assert await self._claim(callbacks) == [], "nothing was found in the messages"
        for _ in range(2):  # the answer of the first call is lost
            assert await extractions.advance(claim, 9, 3)
        assert await self._claim(callbacks) == [("memory.changed", {"agent_id": agent.id, "facts": 3})]

    async def test_a_delivery_is_due_again_until_it_is_confirmed(
        self, webhooks: WebhookStore, callbacks: CallbackStore, runs: RunStore, agent: Agent, clock: FrozenClock
    ) -> None:
        webhook = await webhooks.create(None, a_webhook(clock))
        await self._run(runs, agent, clock)
        (lost,) = await callbacks.claim(10)  # the gateway ends before it has sent it, or before it has recorded that
        clock.advance(30)
        (again,) = await callbacks.claim(10)
        assert (again.target_id, again.body, again.attempt) == (lost.target_id, lost.body, 2)
        for attempt, status in enumerate((404, 302, 503, None), 2):
            await self._record(callbacks, clock, again, attempt, status)
            clock.advance(DAY / 2)
            (again,) = await callbacks.claim(10)
        await self._record(callbacks, clock, again, again.attempt, 204)
        clock.advance(DAY)
        assert await callbacks.claim(10) == ()
        (delivery,) = (await webhooks.list_deliveries(ORG, webhook.id, ALL)).items
        assert (delivery.attempts, delivery.status, delivery.due_at, delivery.error) == (6, 204, None, None)
        assert (await webhooks.get(ORG, webhook.id)).failing_since is None

    async def test_organizations_take_turns(
        self, webhooks: WebhookStore, callbacks: CallbackStore, clock: FrozenClock
    ) -> None:
        busy = await webhooks.create(None, a_webhook(clock))
        other = await webhooks.create(None, a_webhook(clock, organization_id=OTHER_ORG))
        for number in range(4):
            await webhooks.test(None, ORG, busy.id, str(number))
            clock.advance(1)
        await webhooks.test(None, OTHER_ORG, other.id, "0")
        claimed = [[each.organization_id for each in await callbacks.claim(3)] for _ in range(2)]
        assert claimed == [[ORG, OTHER_ORG, ORG], [ORG, ORG]]

    async def _record(
        self, callbacks: CallbackStore, clock: FrozenClock, call: ClaimedCallback, attempt: int, status: int | None
    ) -> None:
        error = None if status is not None else "The call failed."
        await callbacks.record(ORG, call.target_id, attempt, sent_at=clock.now(), status=status, error=error)

    async def test_a_delivery_ends_after_a_day_and_a_webhook_that_fails_for_days_is_disabled(
        self, webhooks: WebhookStore, callbacks: CallbackStore, runs: RunStore, agent: Agent, clock: FrozenClock
    ) -> None:
        webhook = await webhooks.create(None, a_webhook(clock))
        await self._run(runs, agent, clock)
        began, attempts = clock.now(), 0
        while (await webhooks.list_deliveries(ORG, webhook.id, ALL)).items[0].due_at is not None:
            for call in await callbacks.claim(10):
                await self._record(callbacks, clock, call, call.attempt, None)
                attempts, last = call.attempt, clock.now()
            clock.advance(30)
        assert (attempts, last - began) == (MAX_ATTEMPTS, timedelta(hours=24, minutes=36, seconds=30))
        assert not (await webhooks.get(ORG, webhook.id)).disabled
        await self._run(runs, agent, clock)
        clock.advance(3 * DAY)
        await self._run(runs, agent, clock)
        first, second = await callbacks.claim(10)
        await self._record(callbacks, clock, first, 1, 500)
        seen = await webhooks.get(ORG, webhook.id)
        assert (seen.disabled, seen.disabled_reason, seen.failing_since) == (
            *(True, "All calls have failed for 3 days.", began),
        )
        clock.advance(DAY)
        assert await callbacks.claim(10) == (), "its other deliveries end, too"
        await self._run(runs, agent, clock)
        assert len((await webhooks.list_deliveries(ORG, webhook.id, ALL)).items) == 3
        assert second.webhook is not None

    async def test_a_webhook_that_is_gone_is_disabled_at_once(
        self, webhooks: WebhookStore, callbacks: CallbackStore, runs: RunStore, agent: Agent, clock: FrozenClock
    ) -> None:
        webhook = await webhooks.create(None, a_webhook(clock))
        await self._run(runs, agent, clock)
        (call,) = await callbacks.claim(10)
        await self._record(callbacks, clock, call, 1, 410)
        assert "410" in ((await webhooks.get(ORG, webhook.id)).disabled_reason or "")
        test = await webhooks.test(None, ORG, webhook.id, "1")
        assert (await callbacks.claim(10))[0].target_id == test.id, "one that is disabled can be tested"

    async def test_webhooks_belong_to_an_organization(
        self, webhooks: WebhookStore, callbacks: CallbackStore, clock: FrozenClock
    ) -> None:
        request = key("CreateWebhook")
        webhook = await webhooks.create(request, a_webhook(clock))
        assert await webhooks.create(request, a_webhook(clock)) == webhook, "a repeat returns the first"
        assert (await webhooks.list(OTHER_ORG, ALL)).items == ()
        for call in (
            webhooks.get(OTHER_ORG, webhook.id),
            webhooks.update(None, OTHER_ORG, webhook.id, lambda found: found),
            webhooks.test(None, OTHER_ORG, webhook.id, "1"),
            webhooks.list_deliveries(OTHER_ORG, webhook.id, ALL),
        ):
            with pytest.raises(NotFound):
                await call
        await webhooks.delete(None, OTHER_ORG, webhook.id)
        await webhooks.test(None, ORG, webhook.id, "1")
        await webhooks.delete(None, ORG, webhook.id)
        assert await callbacks.claim(10) == (), "its deliveries are deleted with it"
        for _ in range(MOST_WEBHOOKS):
            await webhooks.create(None, a_webhook(clock))
        with pytest.raises(FailedPrecondition):
            await webhooks.create(None, a_webhook(clock))
