"""The store of extractions of facts: the progress of each agent, and what a day has used."""

from collections.abc import Sequence
from datetime import date, datetime
from typing import Protocol

from mnemesh_orchestrator.model.memory_extraction import (
    ExtractedRange,
    ExtractionClaim,
    ExtractionJob,
    ExtractionUsage,
)


class MemoryExtractionStore(Protocol):
    """Every message of an agent is processed once: `record` keeps what was extracted until `advance` moves on.

    The end of a run counts the turn; see `RunStore.finish`. A claim that another process took over changes nothing:
    its methods return False.
    """

    async def due(self, instance_id: str, limit: int) -> Sequence[ExtractionJob]:
        """Returns agents whose messages are to be processed now and that no other process holds, longest due first."""
        ...

    async def claim(self, job: ExtractionJob, instance_id: str) -> ExtractionClaim | None:
        """Takes the right to process an agent's messages, also if none is due. None if another process has it.

        It ends with `release`, or some minutes after the last call.
        """
        ...

    async def record(self, claim: ExtractionClaim, extracted: ExtractedRange) -> bool:
        """Keeps what was extracted, before it is stored in recall."""
        ...

    async def discard(self, claim: ExtractionClaim) -> bool:
        """Drops what was extracted: its messages were erased, and the rest is extracted again."""
        ...

    async def advance(self, claim: ExtractionClaim, until: int) -> bool:
        """Notes that the messages up to a sequence id are processed."""
        ...

    async def release(self, claim: ExtractionClaim, due_at: datetime | None = None, *, failed: bool = False) -> bool:
        """Gives up the right. The agent is due at `due_at`; without one, when enough turns have completed."""
        ...

    async def usage(self, job: ExtractionJob, day: date) -> ExtractionUsage:
        """Returns what an agent and its organization have used on a day."""
        ...

    async def add_usage(self, job: ExtractionJob, day: date, tokens: int) -> None:
        """Counts a call and its tokens."""
        ...

    async def purge_usage(self, before: date) -> None:
        """Deletes the figures of earlier days."""
        ...
