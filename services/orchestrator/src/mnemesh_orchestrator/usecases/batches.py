"""Batches: background runs that are started together."""

from collections.abc import Sequence
from dataclasses import replace

from mnemesh_kit.clock import Clock
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.ids import IdSource
from mnemesh_kit.paging import Page, PageQuery
from mnemesh_kit.principal import Principal

from mnemesh_orchestrator.model.batches import (
    Batch,
    BatchDraft,
    BatchRequest,
    require_batch_config,
    require_valid_requests,
)
from mnemesh_orchestrator.model.callbacks import require_callback_url
from mnemesh_orchestrator.model.inputs import require_valid_inputs
from mnemesh_orchestrator.model.run_config import valid_config
from mnemesh_orchestrator.model.runs import Run, RunFilter
from mnemesh_orchestrator.runs.worker import RunWorker
from mnemesh_orchestrator.store.base.batches import BatchStore
from mnemesh_orchestrator.usecases.runs import RunService


class BatchService:
    """Starts, reads and cancels batches. Their runs are executed as all others, a limited number at the same time."""

    def __init__(self, store: BatchStore, runs: RunService, worker: RunWorker, clock: Clock, ids: IdSource) -> None:
        self._store = store
        self._runs = runs
        self._worker = worker
        self._clock = clock
        self._ids = ids

    async def start(
        self, caller: Principal, key: RequestKey | None, requests: Sequence[BatchRequest], callback_url: str | None
    ) -> Batch:
        """Stores a run for each request, all or none, and starts them in the background.

        Raises:
            InvalidArgument: There is no request or too many, or a request breaks a rule. Metadata: field.
            NotFound, PendingApproval: One of the runs cannot be started. Nothing is stored.
            ModelUnknown: No provider serves the model of a config.
            InputRefused, ProcessorFailed: A processor of the operator refuses an input or fails.
            RequestIdReused: The key was used before with other content.
        """
        require_valid_requests(len(requests))
        require_callback_url(callback_url, "callback_url")
        drafts = [self._draft(caller, request, f"requests[{index}]") for index, request in enumerate(requests)]
        before = await self._store.find_repeated(key)
        if before is not None:
            return before
        batch_id = self._ids.new("batch")
        runs = [replace(await self._runs.prepared(run), batch_id=batch_id) for run in drafts]
        draft = BatchDraft(batch_id, caller.organization_id, caller.subject_id, self._clock.now(), callback_url)
        batch = await self._store.start(key, draft, runs)
        # A process that ends here leaves the runs in their queues, where another one finds them.
        if batch.id == batch_id:
            await self._worker.fill_places(caller.organization_id)
        return await self._store.get(caller.organization_id, batch.id)

    def _draft(self, caller: Principal, request: BatchRequest, field: str) -> Run:
        messages = require_valid_inputs(request.messages, min_messages=1, field=f"{field}.messages")
        config = valid_config(request.config, f"{field}.config")
        require_batch_config(config, f"{field}.config")
        config = replace(config, otids_repeat=True)
        return self._runs.new_run(caller, request.agent_id, request.conversation_id, messages, config, background=True)

    async def get(self, caller: Principal, batch_id: str) -> Batch:
        """Returns a batch. Raises NotFound."""
        return await self._store.get(caller.organization_id, batch_id)

    async def list(self, caller: Principal, page: PageQuery) -> Page[Batch]:
        """Returns a page of batches ordered by creation."""
        return await self._store.list(caller.organization_id, page)

    async def cancel(self, caller: Principal, batch_id: str) -> Batch:
        """Cancels the runs of a batch that have not ended. Raises NotFound."""
        if await self._store.mark_cancelled(caller.organization_id, batch_id):
            await self._runs.cancel(caller, RunFilter(batch_id=batch_id), ())
        return await self._store.get(caller.organization_id, batch_id)
