"""Writes to recall under a lease, also where recall knows a higher epoch than the orchestrator's database."""

from collections.abc import Awaitable, Callable
from typing import TypeVar
from weakref import WeakKeyDictionary

import structlog

from mnemesh_orchestrator.errors import LeaseLost
from mnemesh_orchestrator.model.journal import Lease

T = TypeVar("T")

_log = structlog.get_logger("mnemesh.loop")


class RecallWrites:
    """Gives writes to recall their epoch.

    The orchestrator's database decides who holds a conversation. Recall only refuses writes of earlier holders, by
    their lower epoch. If it refuses a lease that is held, its epoch comes from a database that was replaced by an older
    backup, or from a caller that may not write. The lease then overtakes it.
    """

    def __init__(self, overtake: Callable[[Lease, int], Awaitable[int]]) -> None:
        """Creates the writes of one process.

        Args:
            overtake: raises the epochs of a held lease above one that recall knows; see `LeaseStore.overtake`.
        """
        self._overtake = overtake
        self._raised: WeakKeyDictionary[Lease, int] = WeakKeyDictionary()

    async def write(self, lease: Lease, write: Callable[[int], Awaitable[T]]) -> T:
        """Returns the result of a write, which gets the epoch of the lease.

        Raises:
            LeaseLost: another process holds the conversation now.
        """
        epoch = self._raised.get(lease, lease.recall_epoch)
        try:
            return await write(epoch)
        except LeaseLost as error:
            known = error.metadata.get("epoch", "")
            if not known.isdecimal() or int(known) <= epoch:
                raise
            raised = await self._overtake(lease, int(known))
            _log.warning("epoch_overtaken", conversation_id=lease.conversation_id, epoch=raised, known=int(known))
            self._raised[lease] = raised
            return await write(raised)
