"""Traces of a turn: the complete request of every step can be read, and shared parts are stored once."""

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st
from mnemesh_kit.paging import PageQuery
from mnemesh_kit.time import FrozenClock
from mnemesh_orchestrator.llm.port import LlmAnswer, LlmRequest
from mnemesh_orchestrator.model.runs import StepFilter, StepTrace, shared_request
from mnemesh_orchestrator.store.tables import step_traces

from ..support.model import call, say
from ..support.world import ME, Process, World

NOW = FrozenClock().now()


async def test_each_step_has_its_request_and_only_added_parts_are_stored(world: World, process: Process) -> None:
    agent = await world.agent(process, system="You are a test. " * 500)
    sent: list[str] = []

    def answer(request: LlmRequest) -> LlmAnswer:
        sent.append("".join(f"<{message.text}>" for message in request.messages) + "tools" * 20)
        chosen = say("Done.") if len(sent) == 6 else call("archival_memory_insert", content=f"Fact {len(sent)}.")
        return LlmAnswer(
            chosen.content, chosen.tool_calls, chosen.finish_reason, chosen.usage, sent[-1], f"answer {len(sent)}"
        )

    world.model.script = answer
    await process.send(agent)
    steps = await process.steps.list(ME, StepFilter(agent_id=agent.id), PageQuery(10, ascending=True))
    traces = [await process.steps.trace(ME, step.id) for step in sorted(steps.items, key=lambda step: step.number)]
    assert [trace.request for trace in traces] == sent
    assert [trace.response for trace in traces] == [f"answer {number}" for number in range(1, 7)]
    rows = await world.database.read(lambda conn: conn.execute(sa.select(step_traces.c.request)).scalars().all())
    assert sum(row.startswith(b"D") for row in rows) == 5


@given(earlier=st.text("ab", max_size=12), request_=st.text("ab", max_size=12))
def test_shared_parts_restore_the_request(earlier: str, request_: str) -> None:
    shared = shared_request(StepTrace("step", earlier, "", 0, NOW), request_)
    if shared is not None:
        middle = request_[shared.start : len(request_) - shared.end]
        assert earlier[: shared.start] + middle + earlier[len(earlier) - shared.end :] == request_


@pytest.mark.parametrize("request_", ["other", "x" * 40 + "a" * 60])
def test_request_with_few_shared_parts_is_stored_completely(request_: str) -> None:
    assert shared_request(StepTrace("step", "x" * 40, "", 0, NOW), request_) is None
