"""Reads of memory that begin before a run is stored: its turn waits for both together, and no run is taken in vain."""

import asyncio
from collections import OrderedDict
from contextvars import copy_context
from dataclasses import dataclass
from typing import Final

import structlog
from mnemesh_kit.deadline import set_remaining
from mnemesh_kit.errors import TEMPORARY, MnemeshError

from mnemesh_orchestrator.loop.context_reader import ContextReader, Essentials
from mnemesh_orchestrator.loop.retry import RESTART_SECONDS, RetryPolicy
from mnemesh_orchestrator.model.claims import TurnClaim
from mnemesh_orchestrator.model.conversations import default_conversation_id
from mnemesh_orchestrator.model.runs import Run
from mnemesh_orchestrator.runs.lease_renewal import LeaseRenewer

_log = structlog.get_logger("mnemesh.runs")

_KNOWN_CONVERSATIONS: Final = 1_000


@dataclass(frozen=True, slots=True)
class _Begun:
    """Reads that have begun, and what they assume: the lease before the run's, and whose blocks the turn sees."""

    reads: asyncio.Future[Essentials]
    epoch: int
    holder_id: str | None


class EarlyReads:
    """Begins the reads of a turn before its run is claimed, and returns them if the claim shows that they are current.

    The holders of a conversation's leases write its window. The reads begin when this process has released the last
    lease that it held, or has seen none. If the claim has the next epoch, no other holder came between them and the
    claim, so they are the same as reads after it. Otherwise, the turn reads again. A crash loses nothing: reads change
    nothing.
    """

    def __init__(self, context: ContextReader, renewer: LeaseRenewer, retry: RetryPolicy) -> None:
        self._context = context
        self._renewer = renewer
        self._retry = retry
        self._begun: dict[str, _Begun] = {}
        self._holders: OrderedDict[str, str | None] = OrderedDict()

    def begin(self, run: Run) -> None:
        """Begins the reads of a new run, if this process executed the last turn of its conversation."""
        epoch = self._renewer.released_epoch(run.conversation_id)
        if epoch is not None and run.conversation_id in self._holders and run.id not in self._begun:
            self._begin(run, epoch)

    def _begin(self, run: Run, epoch: int) -> None:
        """Begins reads that are current if `epoch` was the last one before the run's: 0 if there was none."""
        self.discard(run.id)
        holder_id, context = self._holders.get(run.conversation_id), copy_context()
        context.run(set_remaining, None)  # the run does not end with the caller's deadline
        reads = context.run(self._context.essentials, run.conversation_id, run.agent_id, holder_id)
        reads.add_done_callback(_retrieve)
        self._begun[run.id] = _Begun(reads, epoch, holder_id)

    def discard(self, run_id: str) -> None:
        """Ends the reads of a run that nothing has waited for."""
        begun = self._begun.pop(run_id, None)
        if begun is not None:
            begun.reads.cancel()

    async def essentials(self, claim: TurnClaim) -> Essentials:
        """Returns what a claimed turn needs: what was read early, if it is current, or else new reads.

        Raises:
            Unavailable, DeadlineExceeded: recall or blocks is unavailable.
        """
        conversation = claim.conversation
        self._remember(conversation.id, conversation.holder_id)
        begun = self._begun.pop(claim.run.id, None)
        if begun is not None:
            if (begun.epoch + 1, begun.holder_id) == (claim.lease.epoch, conversation.holder_id):
                return await begun.reads
            begun.reads.cancel()
        return await self._context.essentials(conversation.id, conversation.agent_id, conversation.holder_id)

    async def require(self, run: Run) -> None:
        """Reads what the turn of a new run needs, before the run is stored. The turn uses it if it is current.

        Raises:
            Unavailable, DeadlineExceeded, ServerBusy: recall or blocks does not answer within RESTART_SECONDS.
        """

        async def read() -> None:
            self._begin(run, self._renewer.released_epoch(run.conversation_id) or 0)
            await self._begun[run.id].reads

        try:
            await self._retry.call(read, RESTART_SECONDS)
        except MnemeshError as error:
            self.discard(run.id)
            if isinstance(error, TEMPORARY):
                error.final = True  # It has been asked long enough. The caller must know now.
                raise
            _log.info("essentials_refused", error=error.message)  # they answer: the run shows what is wrong
        except BaseException:
            self.discard(run.id)
            raise

    async def require_services(self, agent_id: str) -> None:
        """Waits until recall and blocks answer about an agent. Raises the errors of `require`."""
        conversation_id = default_conversation_id(agent_id)
        try:
            await self._retry.call(lambda: self._context.essentials(conversation_id, agent_id, None), RESTART_SECONDS)
        except TEMPORARY as error:
            error.final = True
            raise
        except MnemeshError as error:
            _log.info("essentials_refused", error=error.message)

    def _remember(self, conversation_id: str, holder_id: str | None) -> None:
        self._holders[conversation_id] = holder_id
        self._holders.move_to_end(conversation_id)
        if len(self._holders) > _KNOWN_CONVERSATIONS:
            self._holders.popitem(last=False)


def _retrieve(reads: asyncio.Future[Essentials]) -> None:
    """Retrieves an error that nothing waits for, so that asyncio does not log it."""
    if not reads.cancelled():
        reads.exception()
