"""Changes of the embedder of an archive."""

import asyncio

from google.protobuf.field_mask_pb2 import FieldMask
from mnemesh.archival.v1.archives_pb2 import Archive
from mnemesh.archival.v1.archives_service_pb2 import GetArchiveRequest, UpdateArchiveRequest
from mnemesh_testkit.timeouts import scaled

from .conftest import ArchivalServer

MASK = FieldMask(paths=["embedder"])


async def archive_of(archival: ArchivalServer, archive: str) -> Archive:
    """Returns an archive as it is now."""
    got: Archive = (await archival.archives.GetArchive(GetArchiveRequest(archive_id=archive))).archive
    return got


async def change(archival: ArchivalServer, archive: str, embedder: str) -> Archive:
    """Sets the embedder of an archive. The service then embeds the passages in the background."""
    request = UpdateArchiveRequest(archive=Archive(id=archive, embedder=embedder), update_mask=MASK)
    changed: Archive = (await archival.archives.UpdateArchive(request)).archive
    return changed


async def wait_until_serving(archival: ArchivalServer, archive: str, embedder: str) -> Archive:
    """Waits until searches of an archive use an embedder. Returns the archive."""
    async with asyncio.timeout(scaled(60)):
        while True:
            found = await archive_of(archival, archive)
            if found.embedder == embedder:
                return found
            await asyncio.sleep(0.01)
