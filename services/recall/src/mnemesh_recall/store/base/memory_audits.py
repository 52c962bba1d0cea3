"""The Protocol of the reads of a memory audit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mnemesh_recall.model.episodes import Episode, Fact, Scope


class MemoryAuditStore(Protocol):
    """The memories of an organization, as an audit reads them. Every method is one transaction."""

    async def list_stored(
        self, organization_id: str, scopes: Sequence[Scope], position: int, limit: int
    ) -> tuple[list[Episode | Fact], int | None]:
        """Returns memories in the order of their storage, the facts first, and the position after them.

        `position` is 0 at the start. The position after the last memory is None.
        """
        ...

    async def list_valid(self, organization_id: str, scope: Scope, limit: int) -> list[Fact]:
        """Returns the open facts of a scope that are valid now, those that were stored last first."""
        ...

    async def existing_messages(self, organization_id: str, message_ids: Sequence[str]) -> frozenset[str]:
        """Returns those of the messages that exist."""
        ...
