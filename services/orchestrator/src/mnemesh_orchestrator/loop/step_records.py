"""The records of calls of summary models, as steps of the run that compacts."""

import asyncio
from datetime import datetime, timedelta

from mnemesh_kit.ids import derive_id
from mnemesh_kit.tracing import current_trace_id

from mnemesh_orchestrator.compaction.port import SummaryCall
from mnemesh_orchestrator.loop.state import TurnContext, TurnState
from mnemesh_orchestrator.loop.stop_reasons import failure
from mnemesh_orchestrator.model.runs import RunError
from mnemesh_orchestrator.model.steps import COMPACTION, Step, StepStatus


def summary_step(context: TurnContext, state: TurnState, call: SummaryCall, now: datetime) -> Step:
    """Returns the record of the newest call of a summary model. Its number is that of the loop's step."""
    model = call.request.model
    status, error = _outcome(call.error)
    return Step(
        id=derive_id("step", context.run.id, COMPACTION, str(context.claims), str(state.summary_calls)),
        run_id=context.run.id,
        agent_id=context.agent.id,
        conversation_id=context.run.conversation_id,
        number=state.step_number,
        model=model.handle,
        provider=model.provider,
        endpoint=model.endpoint,
        context_window=call.request.settings.context_window or model.context_window,
        created_at=now - timedelta(seconds=call.seconds),
        status=status,
        usage=call.usage,
        error=error,
        model_ms=round(call.seconds * 1e3),
        total_ms=round(call.seconds * 1e3),
        completed_at=now,
        trace_id=current_trace_id(),
        origin=COMPACTION,
    )


def _outcome(error: BaseException | None) -> tuple[StepStatus, RunError | None]:
    if error is None:
        return StepStatus.SUCCESS, None
    if isinstance(error, asyncio.CancelledError) or not isinstance(error, Exception):
        return StepStatus.CANCELLED, None
    return StepStatus.FAILED, failure(error)[1]
