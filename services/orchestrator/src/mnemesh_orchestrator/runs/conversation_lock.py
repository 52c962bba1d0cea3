"""The lock of a conversation for work that is no run: a reset, a compaction, a fork. No run executes meanwhile."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import structlog
from mnemesh_kit.deadline import remaining
from mnemesh_kit.errors import MnemeshError
from mnemesh_kit.ids import IdSource

from mnemesh_orchestrator.errors import LeaseLost
from mnemesh_orchestrator.loop.journal import shielded
from mnemesh_orchestrator.model.leases import Lease
from mnemesh_orchestrator.model.run_config import OnBusy
from mnemesh_orchestrator.runs.lease_renewal import LeaseRenewer
from mnemesh_orchestrator.store.base.leases import LeaseStore

T = TypeVar("T", bound=Lease | None)

_log = structlog.get_logger("mnemesh.runs")

POLL_SECONDS: Final = 0.2
"""The time between two requests for the lock. Each request keeps the position in the queue."""
MAX_WAIT_SECONDS: Final = 600.0
"""The longest wait for the lock."""
RESERVE_SECONDS: Final = 1.0
"""The part of the caller's time that is kept for the answer that the lock was not free; at most a tenth of it."""


class ConversationLock:
    """Grants the leases of conversations to work that is no run, in the order in which runs and work were requested."""

    def __init__(
        self, store: LeaseStore, renewer: LeaseRenewer, start_next: Callable[[str], Awaitable[None]], ids: IdSource
    ) -> None:
        """Creates the lock of every conversation.

        Args:
            store: the leases.
            renewer: renews the leases of this process.
            start_next: starts the next run of a conversation, if one waits.
            ids: creates the ids of queue entries.
        """
        self._store = store
        self._renewer = renewer
        self._start_next = start_next
        self._ids = ids

    @asynccontextmanager
    async def take(
        self, organization_id: str, agent_id: str, conversation_id: str, on_busy: OnBusy = OnBusy.WAIT
    ) -> AsyncIterator[Lease]:
        """Holds the lease of a conversation for a block of code.

        The block begins when earlier runs and other work are done, on every replica. With REJECT, or if the deadline
        of the call comes first, it does not begin. Later runs wait until the block ends. Writes to recall that carry
        the lease's `run_id` (which names no run) and `epoch` are refused once another process has the conversation.

        Raises:
            NotFound: the agent or conversation does not exist.
            ConversationBusy: the lock was not free in time. `run_id` names a run that executes or waits.
            LeaseLost: the lease was lost, and the block was cancelled.
        """
        holder, lost = asyncio.current_task(), asyncio.Event()

        def on_loss() -> None:
            lost.set()
            if holder is not None:
                holder.cancel()

        request = _Request(organization_id, agent_id, conversation_id, self._ids.new("run"))
        try:
            lease = await self._wait(request, on_loss, on_busy)
        except BaseException as error:
            if request.is_queued or not isinstance(error, MnemeshError):
                await shielded(self._leave_queue(request))
            raise
        try:
            yield lease
        except asyncio.CancelledError:
            if holder is not None and lost.is_set() and holder.uncancel() == 0:
                raise LeaseLost("The turn slot was lost.", conversation_id=conversation_id) from None
            raise
        finally:
            await shielded(self._release(lease))

    async def _wait(self, request: "_Request", on_loss: Callable[[], None], on_busy: OnBusy) -> Lease:
        loop = asyncio.get_running_loop()
        last = loop.time() + (_max_wait() if on_busy is OnBusy.WAIT else 0)
        while (left := last - loop.time()) > 0:
            request.is_queued = True
            lease = await self._attempt(self._store.acquire_or_wait, request, on_loss)
            if lease is not None:
                return lease
            await asyncio.sleep(min(left, POLL_SECONDS))
        return await self._attempt(self._store.acquire, request, on_loss)

    async def _attempt(
        self, acquire: Callable[..., Coroutine[Any, Any, T]], request: "_Request", on_loss: Callable[[], None]
    ) -> T:
        async with self._renewer.claiming(request.conversation_id):
            lease = await shielded(
                acquire(
                    request.organization_id,
                    request.agent_id,
                    request.conversation_id,
                    request.slot_id,
                    self._renewer.instance_id,
                    reclaim=not self._renewer.holds(request.conversation_id),
                )
            )
            if lease is not None:
                self._renewer.keep(lease, on_loss)
            return lease

    async def _leave_queue(self, request: "_Request") -> None:
        """Removes a request from the queue, so that those after it do not wait for it."""
        try:
            if await self._store.leave_queue(request.conversation_id, request.slot_id):
                await self._start_next(request.conversation_id)
        except MnemeshError as error:
            _log.warning("queue_entry_not_removed", conversation_id=request.conversation_id, error=error.message)

    async def _release(self, lease: Lease) -> None:
        self._renewer.drop(lease)
        try:
            has_next = await self._store.release(lease)
        except MnemeshError as error:
            _log.warning("lease_not_released", conversation_id=lease.conversation_id, error=error.message)
            return
        if has_next:
            await self._start_next(lease.conversation_id)


@dataclass(slots=True)
class _Request:
    """A request for the lock of a conversation."""

    organization_id: str
    agent_id: str
    conversation_id: str
    slot_id: str
    is_queued: bool = False


def _max_wait() -> float:
    left = remaining()
    return MAX_WAIT_SECONDS if left is None else min(MAX_WAIT_SECONDS, left - min(RESERVE_SECONDS, left / 10))
