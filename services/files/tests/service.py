"""A files service in process over a real archival service, whose workers run when a test says so."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import sqlalchemy as sa
from mnemesh.archival.v1 import passages_service_pb2 as archival_rpc
from mnemesh.archival.v1.passages_service_pb2_grpc import PassageServiceStub
from mnemesh_files.clients import ArchivalClient, NewPassage
from mnemesh_files.config import Config
from mnemesh_files.errors import REMOTE
from mnemesh_files.ingestion import IngestionWorker, Remover
from mnemesh_files.wiring import assemble
from mnemesh_kit.sql import Database
from mnemesh_kit.time import FrozenClock
from mnemesh_testkit.mesh.in_process import probe_sandbox
from mnemesh_testkit.mesh.local_services import in_process, local_services
from mnemesh_testkit.suites.files.calls import Files


class CountingArchival(ArchivalClient):
    """Counts the passages that are sent to be embedded."""

    embedded = 0

    async def insert_passages(
        self, request_id: str, archive_id: str, folder_id: str, file: tuple[str, str], passages: Sequence[NewPassage]
    ) -> None:
        self.embedded += len(passages)
        await super().insert_passages(request_id, archive_id, folder_id, file, passages)


@dataclass
class Service:
    """The service and what a test looks at."""

    client: Files
    worker: IngestionWorker
    remover: Remover
    archival: CountingArchival
    database: Database
    clock: FrozenClock
    passages_stub: Any
    config: Config

    async def passages(self, archive_id: str) -> list[str]:
        """The texts of an archive, in order."""
        request = archival_rpc.ListPassagesRequest(page_size=1000, order=1)
        request.filter.archive_id = archive_id
        return [passage.text for passage in (await self.passages_stub.ListPassages(request)).passages]

    async def count(self, table: str) -> int:
        """The number of rows of a table."""
        query = sa.text(f"SELECT count(*) FROM {table}")
        return await self.database.read(lambda conn: int(conn.execute(query).scalar_one()))

    def blobs(self) -> list[Path]:
        """The files of the blob store."""
        return [path for path in self.config.blobs_path.rglob("*") if path.is_file()]

    async def work(self, advance: float = 0.0) -> None:
        """Processes and removes everything that is due, after the clock has advanced."""
        self.clock.advance(seconds=advance)
        await self.worker.run_due()
        await self.remover.run_due()


@asynccontextmanager
async def archival_service(directory: Path) -> AsyncIterator[Any]:
    """A channel to a real archival service in memory."""
    async with local_services(directory, "archival", errors=REMOTE) as services:
        yield services["archival"]


@asynccontextmanager
async def opened(directory: Path, archival: Any, clock: FrozenClock, **settings: Any) -> AsyncIterator[Service]:
    """The service on a directory. A second one finds what the first one stored."""
    directory.mkdir(exist_ok=True)
    url = f"sqlite:///{directory / 'files.db'}"
    config = Config(
        port=0, data_dir=str(directory), database_url=url, log_level="error", shutdown_grace_seconds=0,
        **({"private_networks": "127.0.0.0/8"} | settings),
    )  # fmt: skip
    client = CountingArchival(archival)
    sandbox = await probe_sandbox(replace(config.sandbox))
    assembly = await assemble(config, archival=client, sandbox=sandbox, clock=clock)
    workers = [cast("Any", task).__self__ for task in assembly.background if hasattr(task, "__self__")]
    (worker,) = (each for each in workers if isinstance(each, IngestionWorker))
    (remover,) = (each for each in workers if isinstance(each, Remover))
    database = Database.open(url)
    try:
        async with in_process(assembly, background=False) as channel:
            yield Service(
                Files(channel), worker, remover, client, database, clock, PassageServiceStub(archival), config
            )
    finally:
        await database.close()
