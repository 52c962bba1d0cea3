"""The compactions of a turn: before a request that does not fit, after a step, and after the end of the run."""

from collections.abc import Callable
from dataclasses import replace

import structlog
from mnemesh_kit.clock import Clock
from mnemesh_kit.errors import MnemeshError

from mnemesh_orchestrator.compaction.port import SummaryCall
from mnemesh_orchestrator.errors import LeaseLost
from mnemesh_orchestrator.loop.context_budget import gain_worth_it
from mnemesh_orchestrator.loop.request_assembly import Assembled
from mnemesh_orchestrator.loop.state import StepState, Turn
from mnemesh_orchestrator.loop.step_records import summary_step
from mnemesh_orchestrator.loop.window_compaction import WindowCompactor

_log = structlog.get_logger("mnemesh.loop")


class TurnCompaction:
    """Compacts the window of a turn. Each call of a summary model is recorded as a step of the run."""

    def __init__(self, compactor: WindowCompactor, clock: Clock) -> None:
        self._compactor = compactor
        self._clock = clock

    async def finish(self, turn: Turn) -> None:
        """Applies a compaction that was journalled and not applied before a restart."""
        for entry in turn.context.journal.entries.values():
            compaction = entry.compaction
            if compaction is not None and compaction.base_version == turn.state.window.version:
                turn.state.window = await self._compactor.apply(turn.context, compaction)
                return

    async def before_request(self, turn: Turn, step: StepState, assembled: Assembled, least_gain: int | None) -> bool:
        """Compacts the window before the next request. Returns False if nothing can leave, or too little.

        Args:
            turn: the turn.
            step: the step that sends the request.
            assembled: the request.
            least_gain: the tokens that have to leave; None if any gain will do.
        """
        context, state = turn.context, turn.state
        compaction = await self._compactor.compose(
            context, state, least_gain, self._recorder(turn), assembled=assembled
        )
        if compaction is None:
            return False
        state.window = await self._compactor.journal_and_apply(context, step.id, compaction)
        return True

    async def after_step(self, turn: Turn, step: StepState) -> None:
        """Compacts the window after a step. If that fails, the next request tries again."""
        context, state = turn.context, turn.state
        try:
            compaction = await self._compactor.compose(context, state, gain_worth_it(state), self._recorder(turn))
            if compaction is not None:
                following = replace(compaction, after_step=True)
                state.window = await self._compactor.journal_and_apply(context, step.id, following)
        except LeaseLost:
            raise
        except MnemeshError as error:
            _log.warning("compaction_failed", run_id=context.run.id, error=error.message)

    async def after_run(self, turn: Turn) -> None:
        """Compacts the window of a turn whose end is stored. If that fails, the next turn compacts.

        Raises:
            LeaseLost: another process holds the conversation now.
        """
        context, state = turn.context, turn.state
        try:
            compaction = await self._compactor.compose(context, state, gain_worth_it(state), self._recorder(turn))
            await context.journal.store_steps()
            if compaction is not None:
                await self._compactor.apply(context, compaction)
        except LeaseLost:
            raise
        except MnemeshError as error:
            _log.warning("compaction_failed", error=error.message)

    def _recorder(self, turn: Turn) -> Callable[[SummaryCall], None]:
        """Returns a function that records a call of a summary model as a step of the run."""

        def record(call: SummaryCall) -> None:
            context, state = turn.context, turn.state
            state.count_summary_call(call.usage)
            step = summary_step(context, state, call, self._clock.now())
            context.journal.add_step(step)
            context.journal.add_trace(
                step.id, call.request_body, call.response_body, step.model_ms or 0, is_shared=False
            )

        return record
