"""Compactions of a conversation's window on request."""

from dataclasses import dataclass

import msgspec
import structlog
from mnemesh_kit.call_context import Principal
from mnemesh_kit.errors import RequestIdReused
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.ids import derive_id, new_id
from mnemesh_types.agents import CompactionResult, CompactionSettings

from mnemesh_orchestrator.compaction.planner import SummaryCall
from mnemesh_orchestrator.errors import NothingToCompact
from mnemesh_orchestrator.llm.model_catalog import ModelCatalog, require_usable_summaries
from mnemesh_orchestrator.loop.compaction import WindowCompactor, WindowReplacement
from mnemesh_orchestrator.loop.services import ContextReader
from mnemesh_orchestrator.model.agents import Compaction, require_valid_compaction_settings
from mnemesh_orchestrator.model.budgets import Payer, Spending
from mnemesh_orchestrator.model.events import Lease
from mnemesh_orchestrator.model.inputs import OnBusy, RunConfig
from mnemesh_orchestrator.runs.leases import ConversationLock
from mnemesh_orchestrator.store.agents import AgentStore
from mnemesh_orchestrator.store.budgets import BudgetStore
from mnemesh_orchestrator.usecases.context_windows import PreviewService

_log = structlog.get_logger("mnemesh.compaction")


@dataclass(frozen=True, eq=False)
class CompactionService:
    """Compacts windows outside of runs."""

    agents: AgentStore
    lock: ConversationLock
    replacement: WindowReplacement
    models: ModelCatalog
    previews: PreviewService
    context: ContextReader
    compactor: WindowCompactor
    budgets: BudgetStore

    async def compact(
        self,
        caller: Principal,
        key: RequestKey | None,
        agent_id: str,
        conversation_id: str,
        settings: CompactionSettings | None,
        *,
        dry_run: bool,
        on_busy: OnBusy = OnBusy.WAIT,
    ) -> CompactionResult:
        """Compacts the window once, full or not, and returns the figures. `settings` override the agent's.

        With `dry_run` the summary is written, and nothing is stored. A repeat under the same key stores the first
        window and returns its figures, also after a crash, without another call of the summary model.

        Raises:
            NothingToCompact: Nothing can leave the window.
            ModelUnknown: No provider serves the agent's model, or the summary model that `settings` name.
            ConversationBusy: Earlier runs and other work did not end in time.
            WindowMoved: A repeat of a request that did not take effect, and the window has changed since.
            BudgetExceeded: A budget of the organization or the agent is used up.
        """
        if settings is not None:
            require_valid_compaction_settings(settings, "settings")
        require_usable_summaries(await self.models.of(caller.organization_id), settings, "settings")
        if dry_run:
            return (await self._compose(caller, agent_id, conversation_id, settings)).result
        async with self.lock.take(caller.organization_id, agent_id, conversation_id, on_busy) as lease:
            recorded = await self.agents.outcome(key)
            if recorded is None:
                compaction = await self._compose(caller, agent_id, conversation_id, settings)
                recorded = await self.agents.record_outcome(key, msgspec.json.encode(compaction).decode())
            compaction = msgspec.json.decode(recorded, type=Compaction)
            await self._replace(key, lease, agent_id, conversation_id, compaction)
        return compaction.result

    async def _compose(
        self, caller: Principal, agent_id: str, conversation_id: str, settings: CompactionSettings | None
    ) -> Compaction:
        payer, calls = Payer(caller.organization_id, agent_id), list[SummaryCall]()
        await self.budgets.require(payer)
        turn = await self.previews.turn(caller, agent_id, conversation_id, (), RunConfig())
        try:
            compaction = await self.compactor.compose(turn.context, turn.state, None, calls.append, settings=settings)
        finally:
            for call in calls:
                _log_call(call)
            await self.budgets.count(payer, sum((Spending.of(call.usage) for call in calls), Spending()))
        if compaction is None:
            raise NothingToCompact(
                "Nothing can leave the window: it has too few messages, or only messages that must stay."
            )
        return compaction

    async def _replace(
        self, key: RequestKey | None, lease: Lease, agent_id: str, conversation_id: str, compaction: Compaction
    ) -> None:
        request_id = new_id("request") if key is None else derive_id("request", key.method, key.request_id)
        try:
            window = await self.replacement.apply(request_id, agent_id, conversation_id, compaction, lease)
        except RequestIdReused:
            # An earlier attempt took effect under another epoch.
            return
        self.context.remember(window)


def _log_call(call: SummaryCall) -> None:
    """Logs a call of a summary model. It belongs to no run, so there is no step."""
    _log.info(
        "summary_model_called",
        model=call.request.model.handle,
        outcome="ok" if call.error is None else "failed",
        total_tokens=call.usage.total_tokens,
        ms=round(call.seconds * 1e3),
    )
