"""Downloads contents by URL under the rules of egress."""

from __future__ import annotations

import ipaddress
from contextlib import suppress
from typing import Final
from urllib.parse import unquote, urlsplit

from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.text import require_no_nul
from mnemesh_sandbox.egress.connections import EgressRefused
from mnemesh_sandbox.egress.downloads import Downloader, DownloadFailed, DownloadLimits
from mnemesh_sandbox.egress.policy import EgressPolicy, NetworkAccess
from mnemesh_sandbox.egress.resolver import Resolver
from mnemesh_sandbox.egress.targets import require_allowed, target_of

from mnemesh_files.blobs.contents import Contents
from mnemesh_files.errors import ContentMismatch, FileTooLarge
from mnemesh_files.model.files import FileHeader
from mnemesh_files.model.ingestion import Job
from mnemesh_files.store.base.ingestion import IngestionStore

USER_AGENT: Final = "mnemesh-files"
_GENERIC: Final = frozenset({"", "application/octet-stream", "binary/octet-stream"})


class ImportFailed(Exception):
    """The content could not be downloaded. The message is for the owner of the file."""


def checked_url(url: str, policy: EgressPolicy) -> tuple[str, str]:
    """Returns the URL without its fragment, and the name of the file in it.

    Raises:
        InvalidArgument: imports are off, or the URL is not allowed. Addresses of names are checked at the download.
    """
    if policy.access is NetworkAccess.NONE:
        raise InvalidArgument("This server does not download files (MNEMESH_FILES_IMPORTS).", field="url")
    require_no_nul(url, "url")
    try:
        target = target_of(url)
        with suppress(ValueError):
            require_allowed(target.host, ipaddress.ip_address(target.host), target.port, policy)
    except EgressRefused as error:
        raise InvalidArgument(f"url is not allowed. {error}", field="url") from error
    name = unquote(urlsplit(target.url).path).rstrip("/").rpartition("/")[2]
    return target.url, name or target.host


class Importer:
    """Downloads the contents of files.

    Args:
        downloader: makes the downloads; it checks every address, also after redirects.
        resolver: resolves names.
        limits: of one download.
        contents: stores the contents.
        store: the files.
    """

    def __init__(
        self,
        downloader: Downloader,
        resolver: Resolver,
        limits: DownloadLimits,
        contents: Contents,
        store: IngestionStore,
    ) -> None:
        self._downloader = downloader
        self._resolver = resolver
        self._limits = limits
        self._contents = contents
        self._store = store

    async def fetch(self, job: Job) -> None:
        """Downloads the content of a file and stores it.

        Raises:
            ImportFailed: the server, the rules of egress, a limit, or the announced size or hash.
            LeaseLost, StorageFull, Unavailable: the stores.
        """
        url, file = job.file.source_url or "", job.file
        header = FileHeader(
            file.folder_id, file.original_name, size_bytes=job.expected_size, sha256=job.expected_sha256
        )
        resolve = self._resolver.for_organization(job.organization_id)
        try:
            async with self._downloader.open(url, resolve, self._limits) as download:
                content = await self._contents.receive(job.organization_id, header, download.chunks)
                media_type = download.media_type
        except (DownloadFailed, FileTooLarge, ContentMismatch) as error:
            raise ImportFailed(f"The download failed: {error}") from error
        known = media_type not in _GENERIC
        await self._store.fetched(job, content, media_type if known else "")
