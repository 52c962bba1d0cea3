"""Stores the input of runs that ended before a step stored it, so that recall has each input once."""

from typing import Final

import structlog
from mnemesh_kit.errors import TEMPORARY, MnemeshError, Unavailable
from mnemesh_kit.principal import Principal, as_principal

from mnemesh_orchestrator.loop.retry import RetryPolicy
from mnemesh_orchestrator.loop.state import Turn
from mnemesh_orchestrator.loop.step_messages import recorded_input
from mnemesh_orchestrator.model.claims import TurnClaim
from mnemesh_orchestrator.model.runs import Run
from mnemesh_orchestrator.ports.recall import RecallPort
from mnemesh_orchestrator.store.base import RunStore

_log = structlog.get_logger("mnemesh.runs")

_MAX_RUNS: Final = 100


class InputRecorder:
    """Stores inputs in recall, outside of every window.

    A message that a provider refuses would make each later turn fail if it were in the window. A retry adds it there.
    """

    def __init__(self, store: RunStore, recall: RecallPort) -> None:
        self._store = store
        self._recall = recall

    async def record_end(self, run: Run, turn: Turn | None) -> bool:
        """Stores the input of a run that is about to end. Returns False if it is to be stored later.

        Args:
            run: The run.
            turn: The turn of the run; None if it did not begin.
        """
        if turn is not None and not turn.state.pending:
            return True
        return await self.record(run)

    async def record(self, run: Run) -> bool:
        """Stores the input of a run. Does nothing if recall has it. Returns False if recall is unavailable or full.

        The input of a group run is stored by the runs of the agents that receive it.
        """
        messages = recorded_input(run) if run.agent_id else ()
        if not messages:
            return True
        try:
            await self._recall.append(f"{run.first_run_id}/input", run.agent_id, messages)
        except TEMPORARY as error:
            _log.warning("input_not_recorded", run_id=run.id, error=error.message)
            return False
        except MnemeshError as error:
            # Recall refuses it for good: the agent was erased.
            _log.info("input_not_recorded", run_id=run.id, error=error.message)
        except Exception:
            # The end of a run is stored whatever its input is.
            _log.exception("input_not_recorded", run_id=run.id)
        return True

    async def record_before(self, claim: TurnClaim, retry: RetryPolicy) -> None:
        """Stores the inputs of earlier runs of a conversation that recall does not have, before a run of it commits.

        Raises:
            Unavailable, DeadlineExceeded, StorageFull, ServerBusy: recall was unavailable for the policy's whole time.
        """
        if claim.has_unrecorded_inputs:
            for run in await self._store.unrecorded_inputs_of(claim.run.conversation_id):
                await retry.call(lambda run=run: self._record_and_mark(run))  # type: ignore[misc]

    async def record_missing(self) -> None:
        """Stores the inputs that could not be stored when their runs ended, except where a run is active."""
        try:
            for run in await self._store.unrecorded_inputs(_MAX_RUNS):
                await self._record_and_mark(run)
        except MnemeshError as error:
            _log.warning("inputs_not_recorded", error=error.message)

    async def _record_and_mark(self, run: Run) -> None:
        """Stores the input of a run that has ended, and notes that recall has it. Raises the errors of TEMPORARY."""
        with as_principal(Principal(run.organization_id, run.subject_id)):
            if not await self.record(run):
                raise Unavailable("The input of an earlier run cannot be stored now.", resource_id=run.id)
            await self._store.mark_input_recorded(run.id)
