"""The run of an agent that an earlier attempt at a group run left unfinished."""

from contextlib import suppress
from dataclasses import replace

from mnemesh_kit.errors import NotFound

from mnemesh_orchestrator.groups.speakers import NextTurn
from mnemesh_orchestrator.model.runs import Run, RunStatus, StopReason
from mnemesh_orchestrator.ports.child_runs import ChildRunsPort
from mnemesh_orchestrator.store.base import RunStore
from mnemesh_orchestrator.store.base.run_relations import RunRelationStore


def effect_id(number: int, attempt: int) -> str:
    """Returns the id by which the run of a turn is derived. Each attempt at a group run has runs of its own."""
    return f"turn/{number}/{attempt}"


async def earlier_run(
    store: RunStore, relations: RunRelationStore, children: ChildRunsPort, run: Run, step: NextTurn
) -> Run | None:
    """Returns the newest run that earlier attempts at a group run, or clients, started for a turn; None if none did.

    A run whose approval was withdrawn is returned as one that asked for nothing.
    """
    for attempt in reversed(range(len(run.retried_run_ids))):
        with suppress(NotFound):
            run_id = children.run_id(run, effect_id(step.number, attempt))
            found = await store.newest_attempt(run.organization_id, run_id)
            if found.agent_id == step.speaker.agent_id:
                return await _continued(store, relations, found)
    return None


async def _continued(store: RunStore, relations: RunRelationStore, run: Run) -> Run:
    """Returns the run that continues a run after its approval, or the run itself."""
    while run.stop_reason is StopReason.REQUIRES_APPROVAL:
        answer = await relations.continuation(run)
        if answer.is_pending:
            return run
        if answer.run_id is None:
            return _unasked(run)
        answering = await store.newest_attempt(run.organization_id, answer.run_id)
        if answering.resumes is not None and answering.resumes.withdrawn:
            return _unasked(run)
        run = answering
    return run


def _unasked(run: Run) -> Run:
    return replace(run, status=RunStatus.CANCELLED, stop_reason=StopReason.CANCELLED, resumes=None)


def is_kept(run: Run) -> bool:
    """Returns whether a run of an earlier attempt is not retried: it completed, or it has not ended."""
    return run.status is RunStatus.COMPLETED or not run.status.ended
