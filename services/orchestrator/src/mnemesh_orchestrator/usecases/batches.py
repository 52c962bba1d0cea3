"""Batches: background runs that are started together, and the callbacks of runs and batches."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mnemesh_kit.call_context import Principal
from mnemesh_kit.errors import InvalidArgument, NotFound
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.ids import IdSource, is_id
from mnemesh_kit.paging import Page, PageQuery
from mnemesh_kit.secret_variables import SecretUnreadable
from mnemesh_kit.text import require_text
from mnemesh_kit.time import Clock
from mnemesh_kit.unicode import well_formed

from mnemesh_orchestrator.model.inputs import (
    MAX_CLAIMS,
    MAX_ERROR,
    require_callback_url,
    require_valid_inputs,
    valid_config,
)
from mnemesh_orchestrator.model.runs import (
    Batch,
    BatchDraft,
    Run,
    RunFilter,
    RunRequest,
    require_batch_config,
    require_valid_requests,
)
from mnemesh_orchestrator.model.webhooks import ClaimedCallback, WebhookCall
from mnemesh_orchestrator.runs.worker import RunWorker
from mnemesh_orchestrator.store.callbacks import CallbackStore
from mnemesh_orchestrator.store.run_relations import BatchStore
from mnemesh_orchestrator.store.runs import RunStore
from mnemesh_orchestrator.usecases.runs import RunService
from mnemesh_orchestrator.usecases.webhooks import WebhookSecrets

_DEFAULT_CLAIMS = 20


@dataclass(frozen=True, eq=False)
class BatchService:
    """Starts, reads and cancels batches. Their runs are executed as all others, a limited number at the same time."""

    store: BatchStore
    runs: RunService
    worker: RunWorker
    clock: Clock
    ids: IdSource

    async def start(
        self, caller: Principal, key: RequestKey | None, requests: Sequence[RunRequest], callback_url: str | None
    ) -> Batch:
        """Stores a run for each request, all or none, and starts them in the background.

        Raises:
            NotFound, PendingApproval: One of the runs cannot be started. Nothing is stored.
            ModelUnknown: No provider serves the model of a config.
            InputRefused, ProcessorFailed: A processor of the operator refuses an input or fails.
        """
        require_valid_requests(len(requests))
        require_callback_url(callback_url, "callback_url")
        drafts = [self._draft(caller, request, f"requests[{index}]") for index, request in enumerate(requests)]
        before = await self.store.find_repeated(key)
        if before is not None:
            return before
        batch_id = self.ids.new("batch")
        runs = [replace(await self.runs.prepare(run), batch_id=batch_id) for run in drafts]
        draft = BatchDraft(batch_id, caller.organization_id, caller.subject_id, self.clock.now(), callback_url)
        batch = await self.store.start(key, draft, runs)
        # A process that ends here leaves the runs in their queues, where another one finds them.
        if batch.id == batch_id:
            await self.worker.fill_places(caller.organization_id)
        return await self.store.get(caller.organization_id, batch.id)

    def _draft(self, caller: Principal, request: RunRequest, field: str) -> Run:
        messages = require_valid_inputs(request.messages, min_messages=1, field=f"{field}.messages")
        config = valid_config(request.config, f"{field}.config")
        require_batch_config(config, f"{field}.config")
        request = replace(request, messages=messages, config=replace(config, otids_repeat=True))
        return self.runs.new_run(caller, request, background=True)

    async def get(self, caller: Principal, batch_id: str) -> Batch:
        """Returns a batch. Raises NotFound."""
        return await self.store.get(caller.organization_id, batch_id)

    async def list(self, caller: Principal, page: PageQuery) -> Page[Batch]:
        """Returns a page of batches ordered by creation."""
        return await self.store.list(caller.organization_id, page)

    async def cancel(self, caller: Principal, batch_id: str) -> Batch:
        """Cancels the runs of a batch that have not ended. Raises NotFound."""
        if await self.store.mark_cancelled(caller.organization_id, batch_id):
            await self.runs.cancel(caller, RunFilter(batch_id=batch_id), ())
        return await self.store.get(caller.organization_id, batch_id)


@dataclass(frozen=True, eq=False)
class CallbackService:
    """Hands out callbacks and events of webhooks that are due, and stores the results of their calls."""

    store: CallbackStore
    runs: RunStore
    batches: BatchStore
    secrets: WebhookSecrets
    clock: Clock

    async def claim(self, limit: int) -> Sequence[tuple[ClaimedCallback, Run | Batch | WebhookCall]]:
        """Returns callbacks of all organizations that are due, with what has ended. Raises InvalidArgument."""
        if not 0 <= limit <= MAX_CLAIMS:
            raise InvalidArgument(f"max_callbacks must be between 0 and {MAX_CLAIMS}.", field="max_callbacks")
        found: list[tuple[ClaimedCallback, Run | Batch | WebhookCall]] = []
        for callback in await self.store.claim(limit or _DEFAULT_CLAIMS):
            try:
                found.append((callback, await self._target(callback)))
            except NotFound:
                continue  # deleted meanwhile, with its callback
            except SecretUnreadable as error:
                await self.record(
                    callback.organization_id, callback.target_id, callback.attempt, status=None, error=error.message
                )
        return found

    async def _target(self, callback: ClaimedCallback) -> Run | Batch | WebhookCall:
        if callback.webhook is not None:
            return self.secrets.sign(callback, callback.webhook)
        store = self.runs if is_id(callback.target_id, "run") else self.batches
        return await store.get(callback.organization_id, callback.target_id)

    async def record(
        self, organization_id: str, target_id: str, attempt: int, *, status: int | None, error: str | None
    ) -> None:
        """Stores the result of a call. Does nothing if a later attempt was claimed. Raises InvalidArgument."""
        require_text(organization_id, "organization_id", min_chars=1)
        if not any(is_id(target_id, kind) for kind in ("run", "batch", "delivery")):
            raise InvalidArgument("target_id must be the id of a run, a batch or a delivery.", field="target_id")
        if attempt < 1:
            raise InvalidArgument("attempt must be at least 1.", field="attempt")
        # The text is that of the called server, or of an error on the way there.
        shown = well_formed(error)[:MAX_ERROR] if error is not None else None
        await self.store.record(
            organization_id, target_id, attempt, sent_at=self.clock.now(), status=status, error=shown
        )
