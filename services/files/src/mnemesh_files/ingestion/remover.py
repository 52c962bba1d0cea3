"""The worker that removes what is deleted: archives, passages, texts and contents."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Final

import structlog
from mnemesh_kit.call_context import Principal, as_principal
from mnemesh_kit.errors import TEMPORARY, MnemeshError
from mnemesh_kit.ids import derive_id
from mnemesh_kit.metrics import Counter
from mnemesh_kit.time import Clock

from mnemesh_files.clients import ArchivalClient
from mnemesh_files.errors import ArchiveGone, EmbedderUnknown
from mnemesh_files.store.ingestion import Removal, RemovalStore

LEASE: Final = timedelta(minutes=5)
RETRY: Final = timedelta(seconds=10)
POLL_SECONDS: Final = 5.0
BATCH: Final = 20
SUBJECT: Final = derive_id("user", "files")
"""The author of what the service does by itself."""
_log = structlog.get_logger("mnemesh.files")


def archive_request(folder_id: str) -> str:
    """Returns the request id with which the archive of a folder is created."""
    return f"{folder_id}/archive"


class Remover:
    """Carries out removals, one after another.

    Args:
        store: the removals.
        archival: the archives and passages.
        sweep: removes the contents that nothing refers to.
        clock: the clock.
    """

    def __init__(
        self, store: RemovalStore, archival: ArchivalClient, sweep: Callable[[], Awaitable[object]], clock: Clock
    ) -> None:
        self._store = store
        self._archival = archival
        self._sweep = sweep
        self._clock = clock
        self._wake = asyncio.Event()
        self.removed = Counter("mnemesh_files_removals", "Removals that were carried out, by kind.", ["kind"])

    def wake(self) -> None:
        """Makes the worker look for removals at once."""
        self._wake.set()

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            self._wake.clear()
            await self.run_due()
            try:
                async with asyncio.timeout(POLL_SECONDS):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def run_due(self) -> None:
        """Carries out everything that is due."""
        while removals := await self._store.claim(self._clock.now() + LEASE, BATCH):
            for removal in removals:
                await self._try(removal)
        await self._sweep()

    async def _try(self, removal: Removal) -> None:
        fields = {"kind": removal.kind, "id": removal.id, "organization_id": removal.organization_id}
        try:
            with as_principal(Principal(removal.organization_id, SUBJECT)):
                await self._remove(removal)
            await self._store.done(removal)
        except TEMPORARY as error:
            _log.warning("removal_postponed", **fields, error=error.message)
            await self._store.postpone(removal, self._clock.now() + RETRY)
        except MnemeshError:
            _log.exception("removal_failed", **fields)  # repeated after the lease
        else:
            self.removed.inc(removal.kind)
            _log.info("removed", **fields)

    async def _remove(self, removal: Removal) -> None:
        match removal.kind:
            case "archive":
                await self._remove_archive(removal)
            case "passages":
                try:
                    details = removal.details
                    await self._archival.delete_passages(details["archive_id"], details["passage_ids"])
                except ArchiveGone:
                    return
            case _:
                await self._remove_file(removal)

    async def _remove_archive(self, removal: Removal) -> None:
        """Removes the archive of a folder, which is deleted or was never created."""
        archive_id = removal.details.get("archive_id")
        if archive_id is None:
            # The call that created the archive may have been lost. A repeated one returns its id.
            name, embedder = removal.details["name"], removal.details["embedder"]
            try:
                archive = await self._archival.create_archive(archive_request(removal.id), name, embedder)
            except EmbedderUnknown:
                return
            archive_id = archive.id
        await self._archival.delete_archive(f"{removal.id}/removal", archive_id)

    async def _remove_file(self, removal: Removal) -> None:
        archive_id = await self._store.archive_of(removal.organization_id, removal.details["folder_id"])
        if archive_id is not None:
            try:
                await self._archival.delete_passages_of_file(archive_id, removal.id)
            except ArchiveGone:
                _log.warning("archive_of_folder_is_gone", archive_id=archive_id)
        await self._store.delete_texts(removal.organization_id, removal.id)
