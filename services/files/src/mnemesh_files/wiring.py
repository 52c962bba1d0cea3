"""Builds the service from its parts. Only this module chooses implementations."""

from dataclasses import dataclass

import structlog
from mnemesh.files.v1 import agent_files_service_pb2_grpc, files_service_pb2_grpc, folders_service_pb2_grpc
from mnemesh_kit.audit import AuditLog
from mnemesh_kit.call_context import Role
from mnemesh_kit.channels import Channels
from mnemesh_kit.config import TlsSettings
from mnemesh_kit.ids import IdSource, RandomIds
from mnemesh_kit.local_calls import LocalServers
from mnemesh_kit.server import Assembly, periodic
from mnemesh_kit.services import service
from mnemesh_kit.sql import Database, open_database
from mnemesh_kit.time import Clock, SystemClock
from mnemesh_sandbox import Isolation, Sandbox
from mnemesh_sandbox.egress.downloads import Downloader
from mnemesh_sandbox.egress.policy import Resolver

from mnemesh_files.blobs.contents import BlobStore, Contents, LocalBlobStore, SizeLimits
from mnemesh_files.blobs.s3 import S3BlobStore
from mnemesh_files.clients import AgentsClient, ArchivalClient, PassageSearchClient, PictureReader
from mnemesh_files.config import Config
from mnemesh_files.errors import REMOTE
from mnemesh_files.ingestion import USER_AGENT, Importer, IngestionWorker, Remover, TextReader, checked_url
from mnemesh_files.parsers.parser import DocumentParser
from mnemesh_files.rpc.agent_files import AgentFilesServicer
from mnemesh_files.rpc.files import FilesServicer, FoldersServicer
from mnemesh_files.store.agent_files import AgentFileStore, AnnouncementStore
from mnemesh_files.store.file_rows import BlobRecords
from mnemesh_files.store.files import FileStore, UploadStore
from mnemesh_files.store.folders import TOMBSTONE_LIFE, FolderStore
from mnemesh_files.store.ingestion import IngestionStore, RemovalStore, TextStore
from mnemesh_files.store.tables import owners
from mnemesh_files.usecases.agent_files import RETRY_SECONDS, AgentFileService, Announcer, FileViews
from mnemesh_files.usecases.file_search import FileSearchService, GrepService
from mnemesh_files.usecases.files import FileService, FolderService, UploadService, UploadStores

PURGE_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class Parts:
    """What the service consists of below its use cases."""

    database: Database
    folders: FolderStore
    files: FileStore
    uploads: UploadStore
    contents: Contents
    worker: IngestionWorker
    remover: Remover


_log = structlog.get_logger("mnemesh.files")


async def assemble(
    config: Config,
    *,
    clock: Clock | None = None,
    ids: IdSource | None = None,
    archival: ArchivalClient | None = None,
    passages: PassageSearchClient | None = None,
    agents: AgentsClient | None = None,
    sandbox: Sandbox | None = None,
    blobs: BlobStore | None = None,
    local: LocalServers | None = None,
) -> Assembly:
    """Migrates the database and returns the service, ready to start.

    The sandbox of parsers is opened with the first document that is not a text file, unless one is given.
    """
    clock, ids = clock or SystemClock(), ids or RandomIds()
    database = await open_database(config, "mnemesh_files")
    tls = TlsSettings.of(config)
    channels = Channels(local=local, errors=REMOTE, auth_key_file=config.auth_key_file, role=Role.SERVICE, tls=tls)
    archival = archival or ArchivalClient(channels.channel(config.archival_target))
    passages = passages or PassageSearchClient(channels.channel(config.archival_target))
    agents = agents or AgentsClient(channels.channel(config.orchestrator_target))
    blobs = blobs or blob_store(config)
    resolver = Resolver()
    parsers = Parsers(config, sandbox)
    parts = build(config, database, archival, blobs, parsers, resolver, clock, ids)
    worker, remover = parts.worker, parts.remover
    folders = FolderService(parts.folders, archival, clock, ids, remover.wake)

    def allowed_url(url: str) -> tuple[str, str]:
        return checked_url(url, config.egress)

    files = FileService(parts.files, parts.folders, parts.contents, ids, allowed_url, worker.wake, remover.wake)
    stores = UploadStores(parts.uploads, parts.files, parts.folders)
    uploads = UploadService(stores, parts.contents, clock, ids, config.max_uploads, worker.wake)
    agent_store, texts = AgentFileStore(database, clock), TextStore(database)
    announcer = Announcer(AnnouncementStore(database, clock), agents, clock)
    agent_files = AgentFileService(agent_store, FileViews(texts), announcer)
    grep = GrepService(agent_store, texts)
    search = FileSearchService(agent_store, texts, passages)

    if is_exclusive(config) and config.s3 is None:
        await parts.contents.discard_unfinished(at_start=True)

    async def purge() -> None:
        await parts.folders.purge_ledger()
        await parts.folders.purge_tombstones(clock.now() - TOMBSTONE_LIFE)
        await parts.uploads.expire()
        await parts.contents.discard_unfinished()

    return Assembly(
        name="files",
        servicers=[
            (folders_service_pb2_grpc.add_FolderServiceServicer_to_server, FoldersServicer(folders, agent_files)),
            (files_service_pb2_grpc.add_FileServiceServicer_to_server, FilesServicer(files, uploads)),
            (
                agent_files_service_pb2_grpc.add_AgentFileServiceServicer_to_server,
                AgentFilesServicer(agent_files, grep, search),
            ),
        ],
        service_names=service("files").proto_services,
        audit_log=AuditLog(database, clock, config.audit_retention_days),
        find_owners=owners(database).find,
        background=[
            worker.run,
            remover.run,
            periodic(PURGE_SECONDS, purge),
            periodic(RETRY_SECONDS, announcer.announce_due),
        ],
        metrics=[
            *worker.figures.metrics(),
            remover.removed,
            parts.contents.received_bytes,
            parts.contents.received_contents,
        ],
        properties=parsers.properties,
        close=[database.close, channels.close, blobs.close, resolver.close, parsers.close, grep.close],
    )


def is_exclusive(config: Config) -> bool:
    """Returns whether no other process uses the database."""
    return config.database.startswith("sqlite")


def blob_store(config: Config) -> BlobStore:
    return LocalBlobStore(config.blobs_path) if config.s3 is None else S3BlobStore(config.s3)


def build(
    config: Config,
    database: Database,
    archival: ArchivalClient,
    blobs: BlobStore,
    parsers: "Parsers",
    resolver: Resolver,
    clock: Clock,
    ids: IdSource,
) -> Parts:
    """Returns the stores and workers over an open database."""
    limits = SizeLimits(config.max_file_mb * 1024 * 1024, config.organization_mb * 1024 * 1024)
    contents = Contents(blobs, BlobRecords(database), clock, ids, limits)
    ingestion = IngestionStore(database, clock)
    downloader = Downloader(config.egress, USER_AGENT)
    return Parts(
        database=database,
        folders=FolderStore(database, clock),
        files=FileStore(database, clock),
        uploads=UploadStore(database, clock),
        contents=contents,
        worker=IngestionWorker(
            ingestion,
            archival,
            TextReader(blobs, parsers.open, ids),
            Importer(downloader, resolver, config.downloads, contents, ingestion),
            clock,
            concurrency=config.workers,
            exclusive=is_exclusive(config),
        ),
        remover=Remover(RemovalStore(database, clock), archival, contents.sweep, clock),
    )


class Parsers:
    """Opens the parser of documents with its sandbox and the model that reads images, and closes them."""

    def __init__(self, config: Config, sandbox: Sandbox | None) -> None:
        self._config = config
        self._sandbox = sandbox
        self.properties: dict[str, str] = {"sandbox.minimum": config.min_sandbox}
        """The isolation of parsers, which is known once the sandbox is open."""
        if sandbox is not None:
            self.properties |= _properties(sandbox.isolation)
        self._vision: PictureReader | None = None

    async def open(self) -> DocumentParser:
        """Returns the parser. It opens the sandbox, which probes the host, with the first document that needs it."""
        config = self._config
        if config.vision_base_url:
            self._vision = PictureReader(config.vision_base_url, config.vision_model, config.vision_api_key)
        limits, concurrency = config.parsing, config.workers
        return DocumentParser(self._open_sandbox, limits, concurrency=concurrency, pictures=self._vision)

    async def _open_sandbox(self) -> Sandbox:
        if self._sandbox is None:
            self._sandbox = (await Sandbox.open(self._config.sandbox)).warmed(self._config.warm_processes)
            self.properties |= _properties(self._sandbox.isolation)
            _log_isolation(self._sandbox.isolation, self._config)
        return self._sandbox

    async def close(self) -> None:
        """Closes the sandbox."""
        if self._sandbox is not None:
            await self._sandbox.close()
        if self._vision is not None:
            await self._vision.close()


def _properties(isolation: Isolation) -> dict[str, str]:
    bounds = {f"sandbox.{resource}": bound for resource, bound in isolation.bounds.items()}
    return {"sandbox.level": isolation.level.name.lower(), **bounds}


def _log_isolation(isolation: Isolation, config: Config) -> None:
    fields = {
        "level": isolation.level.name.lower(),
        "minimum": config.min_sandbox,
        "bounds": isolation.bounds,
        "layers": sorted(isolation.layers),
        "missing": dict(isolation.missing),
    }
    if isolation.level < config.sandbox.minimum:
        _log.error("sandbox_below_minimum", **fields)
    else:
        _log.info("sandbox_probed", **fields)
