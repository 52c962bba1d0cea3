"""The rate and the memory with which files are stored and processed."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from mnemesh_cli.directories.sync import for_each
from mnemesh_client import Mnemesh

from benchmarks.files.texts import text
from benchmarks.mesh import RunningMesh
from benchmarks.processes import difference

MEASURED: Final = ("files", "archival", "orchestrator", "load")
_PARALLEL: Final = 8
_SAMPLE_SECONDS: Final = 1.0
_STALLED_SECONDS: Final = 300.0


async def ingest(mesh: RunningMesh, client: Mnemesh, count: int, size: int) -> dict[str, Any]:
    """Uploads `count` files of `size` bytes to a new folder and waits until all are processed."""
    folder = await client.folders.create("ingestion")

    async def upload(number: int) -> None:
        await client.files.upload(folder.id, text(number, size).encode(), name=f"report-{number:05}.md")

    cpu, before = mesh.processes.cpu_ms(), mesh.processes.own_mb()
    began = time.perf_counter()
    async with _peaks(mesh) as peaks:
        await for_each(range(count), _PARALLEL, upload)
        uploaded = time.perf_counter() - began
        await _processed(client, folder.id, count)
        took = time.perf_counter() - began
    used = difference(cpu, mesh.processes.cpu_ms())
    stored = await client.folders.get(folder.id)
    return {
        "files": count,
        "bytes": stored.size_bytes,
        "passages": sum([file.total_chunks async for file in client.files.list(folder_id=folder.id)]),
        "failed": await client.files.count(folder_id=folder.id, statuses=("error",)),
        "upload_seconds": round(uploaded, 2),
        "processed_seconds": round(took, 2),
        "cpu_ms_per_file": {name: round(used[name] / count, 2) for name in MEASURED},
        "own_mb_before": {name: round(before[name], 1) for name in MEASURED},
        "own_mb_peak": {name: round(peaks[name], 1) for name in MEASURED},
    }


async def _processed(client: Mnemesh, folder_id: str, count: int) -> None:
    """Waits until all files are processed.

    Raises:
        RuntimeError: none was processed for five minutes.
    """
    known, since = -1, time.monotonic()
    while known < count:
        done = await client.files.count(folder_id=folder_id, statuses=("completed", "error"))
        if done > known:
            known, since = done, time.monotonic()
            print(f"  processed {done:,} of {count:,}", file=sys.stderr, flush=True)
        elif time.monotonic() - since > _STALLED_SECONDS:
            raise RuntimeError(f"The processing stopped after {done:,} files.")
        await asyncio.sleep(_SAMPLE_SECONDS)


@asynccontextmanager
async def _peaks(mesh: RunningMesh) -> AsyncIterator[dict[str, float]]:
    """Yields the largest memory of each process so far, in MB that the kernel cannot reclaim."""
    peaks = mesh.processes.own_mb()

    async def sample() -> None:
        while True:
            await asyncio.sleep(_SAMPLE_SECONDS)
            now = await asyncio.to_thread(mesh.processes.own_mb)
            peaks.update({name: max(value, peaks[name]) for name, value in now.items()})

    sampling = asyncio.ensure_future(sample())
    try:
        yield peaks
    finally:
        sampling.cancel()
