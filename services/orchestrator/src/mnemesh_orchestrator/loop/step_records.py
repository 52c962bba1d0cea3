"""The records of a turn's steps: begun, and counted once they are over."""

from dataclasses import replace
from datetime import datetime

from mnemesh_kit.tracing import current_trace_id
from mnemesh_types.usage import Usage

from mnemesh_orchestrator.loop.state import Turn
from mnemesh_orchestrator.model.runs import StopReason
from mnemesh_orchestrator.model.steps import Step, StepStatus


def new_step(turn: Turn, step_id: str, now: datetime) -> Step:
    """The step that the turn is at, as it begins."""
    info = turn.model.info
    return Step(
        id=step_id,
        run_id=turn.run.id,
        agent_id=turn.agent.id,
        conversation_id=turn.run.conversation_id,
        number=turn.progress.number,
        model=info.handle,
        provider=info.provider,
        endpoint=info.endpoint,
        context_window=turn.model.settings.context_window or info.context_window,
        created_at=now,
        trace_id=current_trace_id(),
    )


def conclude(
    turn: Turn,
    step: Step,
    usage: Usage,
    stop: StopReason | None,
    now: datetime,
    status: StepStatus = StepStatus.SUCCESS,
) -> None:
    """Counts a step that is over; its record goes along with the next write."""
    turn.progress.usage += usage
    turn.progress.concluded += 1
    turn.progress.steps.append(
        replace(
            step,
            status=status,
            stop_reason=stop,
            usage=usage,
            total_ms=round((now - step.created_at).total_seconds() * 1e3),
            completed_at=now,
        )
    )
