"""Callbacks that are due. A gateway calls them."""

from collections.abc import Sequence

from mnemesh_kit.clock import Clock
from mnemesh_kit.errors import InvalidArgument, NotFound
from mnemesh_kit.ids import is_id
from mnemesh_kit.text import require_text
from mnemesh_kit.unicode import well_formed

from mnemesh_orchestrator.model.batches import Batch
from mnemesh_orchestrator.model.callbacks import MAX_CLAIMS, MAX_ERROR, ClaimedCallback
from mnemesh_orchestrator.model.runs import Run
from mnemesh_orchestrator.store.base import RunStore
from mnemesh_orchestrator.store.base.batches import BatchStore, CallbackStore

_DEFAULT_CLAIMS = 20


class CallbackService:
    """Hands out callbacks that are due, and stores the results of their calls."""

    def __init__(self, store: CallbackStore, runs: RunStore, batches: BatchStore, clock: Clock) -> None:
        self._store = store
        self._runs = runs
        self._batches = batches
        self._clock = clock

    async def claim(self, limit: int) -> Sequence[tuple[ClaimedCallback, Run | Batch]]:
        """Returns callbacks of all organizations that are due, with what has ended. Raises InvalidArgument."""
        if not 0 <= limit <= MAX_CLAIMS:
            raise InvalidArgument(f"max_callbacks must be between 0 and {MAX_CLAIMS}.", field="max_callbacks")
        found: list[tuple[ClaimedCallback, Run | Batch]] = []
        for callback in await self._store.claim(limit or _DEFAULT_CLAIMS):
            try:
                found.append((callback, await self._target(callback)))
            except NotFound:
                continue  # deleted meanwhile, with its callback
        return found

    async def _target(self, callback: ClaimedCallback) -> Run | Batch:
        store = self._runs if is_id(callback.target_id, "run") else self._batches
        return await store.get(callback.organization_id, callback.target_id)

    async def record(
        self, organization_id: str, target_id: str, attempt: int, *, status: int | None, error: str | None
    ) -> None:
        """Stores the result of a call. Does nothing if a later attempt was claimed. Raises InvalidArgument."""
        require_text(organization_id, "organization_id", min_chars=1)
        if not is_id(target_id, "run") and not is_id(target_id, "batch"):
            raise InvalidArgument("target_id must be the id of a run or a batch.", field="target_id")
        if attempt < 1:
            raise InvalidArgument("attempt must be at least 1.", field="attempt")
        # The text is that of the called server, or of an error on the way there.
        shown = well_formed(error)[:MAX_ERROR] if error is not None else None
        await self._store.record(
            organization_id, target_id, attempt, sent_at=self._clock.now(), status=status, error=shown
        )
