"""The Protocol of the store of archives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.paging import Page, PageQuery

from mnemesh_archival.model.archives import Archive, ArchiveFilter, Erasure, Summary


@dataclass(frozen=True, slots=True)
class ArchiveRef:
    """The fields of an archive that a search needs."""

    id: str
    embedder: str
    passage_count: int
    dimension: int


@dataclass(frozen=True, slots=True)
class ErasedAgent:
    """The numbers of deleted passages and archives."""

    passages: int
    archives: int


class ArchiveStore(Protocol):
    """Archives and the agents that they are attached to.

    A mutation with an idempotency key that took effect before returns the first result and changes nothing.
    Mutations raise RequestIdReused for a key with other content, and all methods ArchiveNotFound for an archive that
    does not exist.

    Example:
        >>> archive_id = await store.create_archive("org-1", archive, ["agent-1"], key)
        >>> await store.detach("org-1", "agent-1", archive_id, None)
    """

    async def create_archive(
        self, organization_id: str, archive: Archive, agent_ids: Sequence[str], key: RequestKey | None
    ) -> str:
        """Creates an archive and attaches it to the agents, atomically. Returns its id. Raises AgentErased."""

    async def get_archive(self, organization_id: str, archive_id: str) -> Archive:
        """Returns an archive, with the progress of a change of its embedder."""

    async def list_archives(
        self, organization_id: str, filter_: ArchiveFilter, page: PageQuery, by_name: bool
    ) -> Page[Archive]:
        """Returns a page of archives by creation time or by name; ties by id."""

    async def count_archives(self, organization_id: str, filter_: ArchiveFilter) -> int:
        """Returns the number of archives."""

    async def update_archive(
        self, organization_id: str, archive: Archive, fields: frozenset[str], key: RequestKey | None
    ) -> None:
        """Sets the named fields to the values of `archive`.

        A new embedder is set at once if the archive has no passages. Otherwise a change starts (see ReembeddingStore)
        and replaces an unfinished one. Setting the current embedder cancels an unfinished change.
        """

    async def delete_archive(self, organization_id: str, archive_id: str, key: RequestKey | None) -> None:
        """Deletes an archive and its passages, and detaches it. Deleting it again is not an error."""

    async def attach(self, organization_id: str, agent_id: str, archive_id: str, key: RequestKey | None) -> None:
        """Attaches an archive to an agent; a second time has no effect. Raises AgentErased."""

    async def detach(self, organization_id: str, agent_id: str, archive_id: str, key: RequestKey | None) -> None:
        """Detaches an archive. Raises ArchiveNotFound if it is not attached to the agent."""

    async def list_agents(self, organization_id: str, archive_id: str, page: PageQuery) -> Page[str]:
        """Returns a page of the agents that an archive is attached to, by id."""

    async def scope(
        self, organization_id: str, agent_id: str | None, archive_id: str | None, archive_ids: Sequence[str] = ()
    ) -> list[ArchiveRef]:
        """Returns the archives that a filter covers.

        They are those of the agent, the one archive, or all of the organization if both are None. With `archive_ids`,
        they are those of them that are among these.

        Raises:
            ArchiveNotFound: an archive does not exist or is not attached to the agent.
        """

    async def summary(self, organization_id: str, agent_id: str, if_revision: int | None) -> Summary:
        """Returns the counters of an agent's archives without counting rows. Unknown agents have empty ones."""

    async def erase_agent(
        self, organization_id: str, agent_id: str, erasure: Erasure, key: RequestKey | None
    ) -> ErasedAgent:
        """Writes a tombstone of the agent, detaches its archives and deletes what `erasure` says.

        An archive that another agent holds is never deleted. Erasing an agent again is not an error.
        """
