"""The worker that downloads and parses files and embeds their passages, and the removal of what was deleted."""

import asyncio
import ipaddress
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import msgspec
import structlog
from mnemesh_kit.call_context import Principal, as_principal
from mnemesh_kit.errors import TEMPORARY, InvalidArgument, MnemeshError
from mnemesh_kit.ids import IdSource, derive_id
from mnemesh_kit.metrics import Counter, Gauge, Histogram, Metric
from mnemesh_kit.text import require_no_nul
from mnemesh_kit.time import Clock
from mnemesh_sandbox.egress.downloads import Downloader, DownloadFailed, DownloadLimits
from mnemesh_sandbox.egress.policy import (
    EgressPolicy,
    EgressRefused,
    NetworkAccess,
    Resolver,
    require_allowed,
    target_of,
)
from mnemesh_types.files import FileHeader, FileStatus

from mnemesh_files.blobs.contents import BlobStore, Contents
from mnemesh_files.chunks import Passage, passages_of
from mnemesh_files.clients import ArchivalClient, NewPassage
from mnemesh_files.errors import ArchiveGone, ContentMismatch, ContentMissing, EmbedderUnknown, FileTooLarge, LeaseLost
from mnemesh_files.model.files import FilePassage, Job, ParsedText, planned_passages
from mnemesh_files.parsers.document import Cause, DocumentKind, DocumentUnreadable, ParsedDocument, ParserUnavailable
from mnemesh_files.parsers.parser import DocumentParser
from mnemesh_files.store.ingestion import IngestionStore, Removal, RemovalStore

REMOVAL_LEASE: Final = timedelta(minutes=5)
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
        while removals := await self._store.claim(self._clock.now() + REMOVAL_LEASE, BATCH):
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


USER_AGENT: Final = "mnemesh-files"
_GENERIC: Final = frozenset({"", "application/octet-stream", "binary/octet-stream"})

LEASE: Final = timedelta(seconds=60)
RENEWAL_SECONDS: Final = 20.0
MAX_FAILURES: Final = 5
EMBED_BATCH: Final = 100
SMALL_BYTES: Final = 2_000_000
"""The size up to which a file is processed while large files occupy all workers but one."""
_INTERNAL: Final = "An internal error occurred. The server's log has the details. Process the file again."
_INTERRUPTED: Final = (
    "The processing of the file was interrupted {count} times in a row. Divide the file, or process it again."
)


@dataclass(slots=True)
class Measured:
    """One claim."""

    outcome: str = "error"


class IngestionFigures:
    """Counts the claims on files and their duration."""

    def __init__(self) -> None:
        self._running = 0
        self.waiting = 0
        """The number of files that are due, when the worker last looked."""
        self.processed = Counter("mnemesh_files_processed", "Claims on files that ended, by outcome.", ["outcome"])
        self.seconds = Histogram("mnemesh_files_processing_seconds", "Duration of the processing of files.")

    @contextmanager
    def measured(self) -> Iterator[Measured]:
        """Measures the block as one claim, whose outcome it sets."""
        measured, began = Measured(), time.monotonic()
        self._running += 1
        try:
            yield measured
        finally:
            self._running -= 1
            self.processed.inc(measured.outcome)
            self.seconds.observe(time.monotonic() - began)

    def metrics(self) -> Sequence[Metric]:
        running = Gauge("mnemesh_files_processing", "Files that are being processed.", lambda: float(self._running))
        waiting = Gauge("mnemesh_files_waiting", "Files that wait to be processed.", lambda: float(self.waiting))
        return [self.processed, self.seconds, running, waiting]


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
        await self._store.record_fetched(job, content, media_type if known else "")


class TextReader:
    """Parses contents and divides texts."""

    def __init__(self, blobs: BlobStore, open_parser: Callable[[], Awaitable[DocumentParser]], ids: IdSource) -> None:
        """Opens the parser with the first file."""
        self._blobs = blobs
        self._open_parser = open_parser
        self._opening = asyncio.Lock()
        self._parser: DocumentParser | None = None
        self._ids = ids

    async def document(self, job: Job) -> ParsedDocument:
        """Returns the parsed content of a file.

        Raises:
            DocumentUnreadable, ParserUnavailable: see DocumentParser.parse.
            Unavailable, ContentMissing: see BlobStore.
        """
        file = job.file
        if file.blob_id is None:
            raise ContentMissing(file.id)
        async with self._opening:
            parser = self._parser = self._parser or await self._open_parser()
        async with self._blobs.local_copy(file.blob_id) as path:
            return await parser.parse(path, file.original_name, file.media_type)

    def parsed_text(self, document: ParsedDocument) -> ParsedText:
        """Returns the text of a document under a new id."""
        facts = {
            "total_lines": document.total_lines,
            "total_chars": document.total_chars,
            "total_pages": document.total_pages,
            "page_starts": _json(document.page_starts),
            "warnings": _json(document.warnings),
            "kind": document.kind.value,
            "language": document.language,
        }
        return ParsedText(self._ids.new("text"), document.lines, facts, document.media_type)

    def restored(self, lines: Sequence[str], facts: Mapping[str, Any]) -> ParsedDocument:
        """Returns the document of a stored text, as far as passages depend on it."""
        return ParsedDocument(
            kind=DocumentKind(facts["kind"]),
            media_type="",
            text="\n".join(lines),
            language=facts["language"],
            page_starts=tuple(msgspec.json.decode(facts["page_starts"])),
        )

    async def passages(self, document: ParsedDocument, chunk_size: int) -> Sequence[Passage]:
        """Returns the passages of a document, in order."""
        return await asyncio.to_thread(passages_of, document, chunk_size)


def _json(values: Sequence[Any]) -> str:
    return msgspec.json.encode(values).decode()


class IngestionWorker:
    """Processes files, several at a time.

    Args:
        store: the claims and what they write.
        archival: the archives.
        reader: reads contents as texts with passages.
        importer: downloads contents.
        clock: the clock.
        concurrency: how many files are processed at a time.
        exclusive: whether no other process uses the store, so that every lease at start is of a process that ended.
    """

    def __init__(
        self,
        store: IngestionStore,
        archival: ArchivalClient,
        reader: TextReader,
        importer: Importer,
        clock: Clock,
        *,
        concurrency: int,
        exclusive: bool,
    ) -> None:
        self._store = store
        self._archival = archival
        self._reader = reader
        self._importer = importer
        self._clock = clock
        self._concurrency = concurrency
        self._exclusive = exclusive
        self._last = ""
        self._added = asyncio.Event()
        self.figures = IngestionFigures()

    def wake(self) -> None:
        """Makes the workers look for files at once."""
        self._added.set()

    async def run(self) -> None:
        """Runs until cancelled."""
        if self._exclusive:
            self._exclusive = False
            await self._store.expire_leases()
        running: dict[asyncio.Task[None], bool] = {}
        try:
            while True:
                self._added.clear()
                while len(running) < self._concurrency and (job := await self._claim_next(running)) is not None:
                    task = asyncio.create_task(self.process(job), name=f"processing of {job.file.id}")
                    running[task] = _is_large(job)
                    task.add_done_callback(lambda ended: self._ended(running, ended))
                self.figures.waiting = await self._store.count_waiting()
                with suppress(TimeoutError):
                    async with asyncio.timeout(POLL_SECONDS):
                        await self._added.wait()
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    def _ended(self, running: dict[asyncio.Task[None], bool], task: asyncio.Task[None]) -> None:
        del running[task]
        self._added.set()

    async def _claim_next(self, running: Mapping[asyncio.Task[None], bool]) -> Job | None:
        """Claims the next file. Large files leave one of several workers to small ones."""
        is_reserved = self._concurrency > 1 and sum(running.values()) >= self._concurrency - 1
        return await self._claim(SMALL_BYTES if is_reserved else None)

    async def run_due(self) -> int:
        """Processes everything that is due, one file after another; returns the number of files."""
        count = 0
        while (job := await self._claim()) is not None:
            await self.process(job)
            count += 1
        return count

    async def _claim(self, max_bytes: int | None = None) -> Job | None:
        job = await self._store.claim(self._last, self._clock.now() + LEASE, max_bytes)
        if job is not None:
            self._last = job.organization_id
        return job

    async def process(self, job: Job) -> None:
        """Processes a claimed file. Every error ends in the status of the file or in another attempt."""
        fields = {"file_id": job.file.id, "organization_id": job.organization_id, "claim": job.claim}
        with self.figures.measured() as measured:
            try:
                with as_principal(Principal(job.organization_id, SUBJECT)):
                    async with self._renewed(job):
                        await self._process(job)
                measured.outcome = "completed"
                _log.info("file_processed", **fields)
            except LeaseLost:
                measured.outcome = "lost"
                _log.info("file_lease_lost", **fields)
            except TEMPORARY as error:
                measured.outcome = "postponed"
                _log.warning("file_postponed", **fields, error=error.message)
                await _record(self._store.postpone(job, self._clock.now() + RETRY))
            except (DocumentUnreadable, ParserUnavailable, ImportFailed, ArchiveGone) as error:
                _log.info("file_failed", **fields, error=str(error))
                await _record(self._store.fail(job, str(error)))
            except Exception:
                _log.exception("file_processing_failed", **fields)
                await _record(self._store.fail(job, _INTERNAL))

    async def _process(self, job: Job) -> None:
        if job.failures > MAX_FAILURES:
            raise DocumentUnreadable(Cause.FAILED, _INTERRUPTED.format(count=job.failures - 1))
        if job.file.status is FileStatus.FETCHING:
            await self._importer.fetch(job)
            self.wake()
            return
        text_id, document = job.next_text_id, None
        if text_id is None:
            text_id, document = await self._read(job)
        await self._embed(job, text_id, document)
        await self._store.complete(job, text_id)

    async def _read(self, job: Job) -> tuple[str, Sequence[Passage]]:
        """Parses the content of a file and stores its text; returns the id of the text, and its passages."""
        document = await self._reader.document(job)
        text = self._reader.parsed_text(document)
        divided = await self._reader.passages(document, job.chunk_size)
        fresh = [
            FilePassage(
                position,
                derive_id("passage", text.id, str(position)),
                passage.text_hash,
                passage.start_line,
                passage.end_line,
                embedded=False,
            )
            for position, passage in enumerate(divided)
        ]
        known = [passage for passages in (await self._store.passages(job)).values() for passage in passages]
        await self._store.add_text(job, text, planned_passages(fresh, known))
        return text.id, divided

    async def _embed(self, job: Job, text_id: str, divided: Sequence[Passage] | None) -> None:
        """Inserts the passages that the archive does not have."""
        missing = [each for each in (await self._store.passages(job)).get(text_id, ()) if not each.embedded]
        if missing and divided is None:
            document = self._reader.restored(await self._store.text(job, text_id), job.next_text)
            divided = await self._reader.passages(document, job.chunk_size)
        for start in range(0, len(missing), EMBED_BATCH):
            some = missing[start : start + EMBED_BATCH]
            new = [NewPassage(each.passage_id, (divided or ())[each.position].text, each.position) for each in some]
            request_id = f"{text_id}/{some[0].position}/{len(some)}"
            file = (job.file.id, job.file.name)
            await self._archival.insert_passages(request_id, job.archive_id, job.file.folder_id, file, new)
            positions = [each.position for each in some]
            await self._store.record_embedded(job, text_id, positions, self._clock.now() + LEASE)

    @asynccontextmanager
    async def _renewed(self, job: Job) -> AsyncIterator[None]:
        """Renews the lease while the block runs; a lost lease cancels the block and raises LeaseLost."""
        lost: LeaseLost | None = None
        task = asyncio.current_task()

        async def renew() -> None:
            nonlocal lost
            while True:
                await asyncio.sleep(RENEWAL_SECONDS)
                try:
                    await self._store.renew(job, self._clock.now() + LEASE)
                except LeaseLost as error:
                    lost = error
                    if task is not None:
                        task.cancel()
                    return
                except MnemeshError as error:
                    _log.warning("lease_not_renewed", file_id=job.file.id, error=error.message)

        renewing = asyncio.create_task(renew())
        try:
            yield
        except asyncio.CancelledError:
            if lost is None or task is None or task.uncancel() > 0:
                raise
            raise lost from None
        finally:
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)


def _is_large(job: Job) -> bool:
    return job.file.size_bytes > SMALL_BYTES or job.file.status is FileStatus.FETCHING


async def _record(ending: Awaitable[None]) -> None:
    """Records the end of a claim. If that fails, the file is claimed again after the lease."""
    try:
        await ending
    except MnemeshError as error:
        _log.warning("file_end_not_recorded", error=error.message)
