"""Replaces a window with a smaller one, and stores the memories of the messages that leave."""

import re
from typing import Final

import structlog
from mnemesh_kit.errors import (
    Aborted,
    DeadlineExceeded,
    FailedPrecondition,
    MnemeshError,
    NotFound,
    RequestIdReused,
    ResourceExhausted,
    Unavailable,
)

from mnemesh_orchestrator.model.compaction import Compaction
from mnemesh_orchestrator.model.context_window import ContextWindow
from mnemesh_orchestrator.model.episodes import EpisodeCommit
from mnemesh_orchestrator.model.leases import Lease
from mnemesh_orchestrator.ports.recall import RecallPort
from mnemesh_orchestrator.ports.recall_writes import RecallWrites

_log = structlog.get_logger("mnemesh.compaction")

_MEMORY_INDEX: Final = re.compile(r"memories\[(\d+)\]")
_MAX_MEMORIES: Final = 100
"""The maximum number of memories per window."""

Memories = tuple[EpisodeCommit, ...]


class WindowReplacement:
    """Applies compactions: stores the window and its memories in one transaction of recall.

    A repeat has no further effect, even after a crash, because the window has a new version by then.
    """

    def __init__(self, recall: RecallPort, writes: RecallWrites) -> None:
        self._recall = recall
        self._writes = writes

    async def apply(
        self, request_id: str, agent_id: str, conversation_id: str, compaction: Compaction, lease: Lease
    ) -> ContextWindow:
        """Returns the new window.

        A memory that recall refuses permanently is left out; the window is replaced nevertheless.

        Raises:
            WindowMoved, LeaseLost: as ReplaceContext of recall. No memory is stored.
            Unavailable, DeadlineExceeded: recall cannot be reached.
        """
        memories = compaction.commits[:_MAX_MEMORIES]

        async def replace(epoch: int) -> ContextWindow:
            return await self._recall.replace_context(
                request_id,
                agent_id,
                conversation_id,
                compaction.base_version,
                compaction.message_ids,
                (compaction.summary,),
                system_text=compaction.system_text,
                run_id=lease.run_id,
                epoch=epoch,
                memories=memories,
            )

        while True:
            try:
                return await self._writes.write(lease, replace)
            except (Unavailable, DeadlineExceeded, ResourceExhausted, Aborted, RequestIdReused):
                raise
            except MnemeshError as error:
                if not memories:
                    raise
                memories = _without_refused(memories, error)


def _without_refused(memories: Memories, error: MnemeshError) -> Memories:
    """Returns the memories without those that recall refuses, or with less in them."""
    if isinstance(error, FailedPrecondition | NotFound):
        # Another author closed or erased a fact since the model saw it.
        fact_id = error.metadata.get("fact_id") or error.metadata.get("resource_id", "")
        smaller = tuple(memory.without(fact_id) for memory in memories)
        if smaller != memories:
            return smaller
    match = _MEMORY_INDEX.match(error.field or "")
    index = int(match[1]) if match else None
    _log.warning("episodes_refused", count=len(memories) if index is None else 1, error=error.message)
    return () if index is None else (*memories[:index], *memories[index + 1 :])
