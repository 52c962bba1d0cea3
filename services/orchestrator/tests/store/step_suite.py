"""The suite of step stores."""

from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio
from mnemesh_kit.errors import NotFound, RequestIdReused
from mnemesh_kit.time import FrozenClock
from mnemesh_orchestrator.model.agents import Agent
from mnemesh_orchestrator.model.events import Claim, RunEnd
from mnemesh_orchestrator.model.runs import Run, Step, StepFilter, StepTrace, shared_request
from mnemesh_orchestrator.store.agents import AgentStore
from mnemesh_orchestrator.store.run_rows import StepStore
from mnemesh_orchestrator.store.runs import RunStore
from mnemesh_types.agents import RunError
from mnemesh_types.usage import Usage

from .records import ALL, ORG, OTHER_ORG, a_run, a_step, an_agent, an_end, key, made


def a_trace(step: Step, clock: FrozenClock, **fields: Any) -> StepTrace:
    return replace(StepTrace(step.id, '{"model":"o","messages":[]}', '{"said":"é"}', 4, clock.now()), **fields)


class StepStoreSuite:
    """Subclass it with fixtures `agents`, `runs` and `recorded` over one empty database on the `clock` fixture."""

    @pytest_asyncio.fixture
    async def agent(self, agents: AgentStore, clock: FrozenClock) -> Agent:
        return await made(agents, an_agent(clock))

    async def begun(self, runs: RunStore, agent: Agent, clock: FrozenClock) -> Claim:
        claim = (await runs.start(None, a_run(agent, clock), "me", reject_busy=False)).claim
        assert claim is not None
        return claim

    async def test_repeated_write_records_a_step_once(
        self, runs: RunStore, recorded: StepStore, agent: Agent, clock: FrozenClock
    ) -> None:
        claim = await self.begun(runs, agent, clock)
        step = a_step(claim.run, 1, clock, usage=Usage(1, 2, 3), model_ms=4, error=RunError("INTERNAL", "x"))
        await runs.write(claim.lease, steps=[step])
        later = replace(step, attempts=2)
        await runs.write(claim.lease, steps=[later, a_step(claim.run, 2, clock)])
        assert await recorded.get(ORG, step.id) == later
        page = await recorded.list(ORG, StepFilter(run_id=claim.run.id), ALL)
        assert [found.number for found in page.items] == [1, 2]
        with pytest.raises(NotFound):
            await recorded.get(OTHER_ORG, step.id)

    async def test_steps_are_filtered_by_run_agent_model_and_trace(
        self, agents: AgentStore, runs: RunStore, recorded: StepStore, agent: Agent, clock: FrozenClock
    ) -> None:
        other = await made(agents, an_agent(clock))
        found: dict[str, Run] = {}
        for one, model in ((agent, "scripted/one"), (other, "scripted/two")):
            claim = await self.begun(runs, one, clock)
            await runs.write(claim.lease, steps=[a_step(claim.run, 1, clock, model=model, trace_id=one.id)])
            found[one.id] = claim.run
        for where, expected in (
            (StepFilter(), 2),
            (StepFilter(agent_id=agent.id), 1),
            (StepFilter(run_id=found[other.id].id), 1),
            (StepFilter(model="scripted/two"), 1),
            (StepFilter(trace_id=agent.id), 1),
            (StepFilter(agent_id=agent.id, model="scripted/two"), 0),
            (StepFilter(start=clock.now()), 2),
            (StepFilter(end=clock.now()), 0),
        ):
            assert len((await recorded.list(ORG, where, ALL)).items) == expected
        assert (await recorded.list(OTHER_ORG, StepFilter(), ALL)).items == ()

    async def test_feedback_is_stored_found_and_cleared(
        self, runs: RunStore, recorded: StepStore, agent: Agent, clock: FrozenClock
    ) -> None:
        claim = await self.begun(runs, agent, clock)
        step, other = a_step(claim.run, 1, clock), a_step(claim.run, 2, clock)
        await runs.finish(claim.lease, RunEnd(an_end(claim.run, clock), steps=[step, other]), ())
        judged = await recorded.set_feedback(None, ORG, step.id, "negative", ("rude", "slow"))
        assert judged == await recorded.get(ORG, step.id) == replace(step, feedback="negative", tags=("rude", "slow"))
        for where, expected in (
            (StepFilter(feedback="negative"), [step.id]),
            (StepFilter(feedback="positive"), []),
            (StepFilter(tags_any=("slow", "unknown")), [step.id]),
            (StepFilter(tags_any=("unknown",)), []),
            (StepFilter(has_feedback=True), [step.id]),
            (StepFilter(has_feedback=False), [other.id]),
        ):
            assert [found.id for found in (await recorded.list(ORG, where, ALL)).items] == expected
        assert await recorded.set_feedback(None, ORG, step.id, None, ()) == step
        assert (await recorded.list(ORG, StepFilter(tags_any=("rude",)), ALL)).items == ()
        for organization, step_id in ((OTHER_ORG, step.id), (ORG, "step-unknown")):
            with pytest.raises(NotFound):
                await recorded.set_feedback(None, organization, step_id, "positive", ())

    async def test_feedback_takes_effect_once_for_each_request(
        self, runs: RunStore, recorded: StepStore, agent: Agent, clock: FrozenClock
    ) -> None:
        claim = await self.begun(runs, agent, clock)
        step = a_step(claim.run, 1, clock)
        await runs.finish(claim.lease, RunEnd(an_end(claim.run, clock), steps=[step]), ())
        first = key("SetStepFeedback")
        await recorded.set_feedback(first, ORG, step.id, "positive", ())
        await recorded.set_feedback(None, ORG, step.id, "negative", ())
        assert (await recorded.set_feedback(first, ORG, step.id, "positive", ())).feedback == "negative"
        with pytest.raises(RequestIdReused):
            await recorded.set_feedback(key("SetStepFeedback", fingerprint="other"), ORG, step.id, None, ())

    async def test_trace_is_deleted_by_age_or_with_its_run(
        self, runs: RunStore, recorded: StepStore, agent: Agent, clock: FrozenClock
    ) -> None:
        claim = await self.begun(runs, agent, clock)
        first, second = a_step(claim.run, 1, clock), a_step(claim.run, 2, clock)
        await runs.write(claim.lease, traces=[a_trace(first, clock, response="{}")])
        await runs.write(claim.lease, steps=[first], traces=[a_trace(first, clock)])
        began = clock.now()
        clock.advance(60)
        await runs.finish(
            claim.lease, RunEnd(an_end(claim.run, clock), steps=[second], traces=[a_trace(second, clock)]), ()
        )
        assert await recorded.trace(ORG, first.id) == replace(a_trace(first, clock), created_at=began)
        with pytest.raises(NotFound):
            await recorded.trace(OTHER_ORG, first.id)
        assert await recorded.purge_traces(clock.now()) == 1
        with pytest.raises(NotFound, match="trace"):
            await recorded.trace(ORG, first.id)
        assert await recorded.trace(ORG, second.id) == a_trace(second, clock)
        await runs.delete(ORG, claim.run.id)
        with pytest.raises(NotFound):
            await recorded.trace(ORG, second.id)
        assert await recorded.purge_traces(clock.now()) == 0

    async def test_trace_stored_as_a_difference_survives_the_purge_of_the_earlier_one(
        self, runs: RunStore, recorded: StepStore, agent: Agent, clock: FrozenClock
    ) -> None:
        claim = await self.begun(runs, agent, clock)
        first, second, third = (a_step(claim.run, number, clock) for number in (1, 2, 3))
        window = ", ".join(f'"Nachricht {number} für dich"' for number in range(50))
        whole = a_trace(first, clock, request=f'{{"messages":[{window}],"tools":["é"]}}')
        await runs.write(claim.lease, steps=[first], traces=[whole])
        clock.advance(60)
        began = clock.now()
        traces = [whole]
        for step, added in ((second, ', "zwei"'), (third, ', "zwei", "drei"')):
            request = f'{{"messages":[{window}{added}],"tools":["é"]}}'
            shared = shared_request(whole, request)
            assert shared is not None
            traces.append(a_trace(step, clock, request=request, shared=shared))
        await runs.finish(claim.lease, RunEnd(an_end(claim.run, clock), steps=[second, third], traces=traces[1:]), ())
        for trace in traces:
            assert await recorded.trace(ORG, trace.step_id) == trace
        assert await recorded.purge_traces(began) == 1
        with pytest.raises(NotFound, match="trace"):
            await recorded.trace(ORG, first.id)
        for trace in traces[1:]:
            assert await recorded.trace(ORG, trace.step_id) == trace
        await runs.delete(ORG, claim.run.id)
        with pytest.raises(NotFound):
            await recorded.trace(ORG, third.id)
