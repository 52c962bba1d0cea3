"""Measures files: `python -m benchmarks.files`, or `make bench-files`.

Files are stored and processed; lines are found in many megabytes; turns of agents with and without files alternate. The
model is a fake one that answers immediately.
"""

import argparse
import asyncio
import json
import os
import platform
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import uvloop
from mnemesh_cli.directories.sync import for_each
from mnemesh_client import Agent, Mnemesh, window
from mnemesh_client.addresses import Addresses
from mnemesh_kit.errors import MnemeshError
from mnemesh_kit.services import SERVICES

from benchmarks.agents import WORDS
from benchmarks.measurement import percentiles
from benchmarks.mesh import RunningMesh, fake_model, running_mesh
from benchmarks.processes import difference

_WORDS: Final = WORDS.split()
_WORDS_PER_LINE: Final = 12


def text(number: int, size: int) -> str:
    """Returns a text of about `size` characters. Equal numbers have equal texts. Line 7 names the number."""
    chance, lines, length = random.Random(number), [f"# Report {number}", ""], 0
    while length < size:
        line = " ".join(chance.choices(_WORDS, k=_WORDS_PER_LINE))
        if len(lines) == 6:
            line += f" reference-{number:05}"
        lines.append(line)
        length += len(line) + 1
    return "\n".join(lines) + "\n"


async def timed(call: Callable[[], Awaitable[Any]]) -> float:
    """Returns the duration of a call in milliseconds."""
    began = time.perf_counter()
    await call()
    return (time.perf_counter() - began) * 1000


def figures(milliseconds: Sequence[float]) -> dict[str, float]:
    """Returns the median and the 95th percentile."""
    p50, p95 = percentiles(milliseconds)
    return {"p50_ms": round(p50, 2), "p95_ms": round(p95, 2)}


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


_FILE_BYTES: Final = 5_000_000
_QUERY: Final = "the winter garden by the river"
PATTERNS: Final = {
    "a word in one line": "reference-00003",
    "a word in every file": r"reference-\d{5}",
    "a word in many lines": "harbour",
    "an expression": r"\b(gar|let)\w+ (river|winter)\b.*yellow$",
    "a word in no line": "zeppelin",
}


async def measure_grep(client: Mnemesh, agent: Agent, megabytes: int, times: int) -> dict[str, Any]:
    """Attaches a folder with so many megabytes of text to an agent and finds lines in it.

    Grep needs only the parsed text, so the measurement does not wait until all of it is embedded; the embedding uses
    the same cores meanwhile. The folder is deleted at the end.
    """
    folder = await client.folders.create("grep", chunk_size=1000)
    count = max(1, megabytes * 1_000_000 // _FILE_BYTES)
    size = min(_FILE_BYTES, megabytes * 1_000_000)

    async def upload(number: int) -> None:
        await client.files.upload(folder.id, text(number, size).encode(), name=f"large-{number:03}.md")

    await for_each(range(count), 4, upload)
    await agent.files.attach(folder.id)
    await _parsed(client, folder.id, count)
    rows = []
    for name, pattern in PATTERNS.items():
        found = await agent.files.grep(pattern)
        took = [await timed(partial(agent.files.grep, pattern)) for _ in range(times)]
        rows.append({"pattern": name, "matches": found.total_matches, "timed_out": found.timed_out, **figures(took)})
    stored = await client.folders.get(folder.id)
    await client.folders.delete(folder.id)
    return {"files": count, "bytes": stored.size_bytes, "patterns": rows}


async def measure_search(agent: Agent, times: int) -> dict[str, Any]:
    """Searches the files of an agent by words and meaning."""
    return figures([await timed(partial(agent.files.search, _QUERY)) for _ in range(times)])


async def _parsed(client: Mnemesh, folder_id: str, count: int) -> None:
    while await client.files.count(folder_id=folder_id, statuses=("embedding", "completed")) < count:
        failed = [file async for file in client.files.list(folder_id=folder_id, statuses=("error",), limit=1)]
        if failed:
            raise RuntimeError(f"{failed[0].name}: {failed[0].error_message}")
        await asyncio.sleep(1.0)


_FILES: Final = 20
_OPEN: Final = 5
_WINDOW_LINES: Final = 100
_WARM_UP: Final = 5


async def measure_views(mesh: RunningMesh, client: Mnemesh, turns: int) -> dict[str, Any]:
    """Alternates turns of three agents: without files, with closed files, and with open windows."""
    folder = await client.folders.create("views", description="Reports.")
    stored = [
        await client.files.upload(folder.id, text(number, 20_000).encode(), name=f"view-{number:02}.md")
        for number in range(_FILES)
    ]
    async for _ in client.files.wait_all(each.file.id for each in stored):
        pass
    agents = {
        kind: await client.agents.create(kind, model="openai/one-step", blocks={"human": "", "persona": ""})
        for kind in ("no files", "closed files", "open files")
    }
    for kind in ("closed files", "open files"):
        await agents[kind].files.attach(folder.id)
    names = [file.name async for file in agents["open files"].files.list(limit=_OPEN)]
    await agents["open files"].files.open(*(window(name, 0, _WINDOW_LINES) for name in names))
    took: dict[str, list[float]] = {kind: [] for kind in agents}
    cpu: dict[str, float] = dict.fromkeys(agents, 0.0)
    for number in range(_WARM_UP + turns):
        for kind, agent in agents.items():
            before = mesh.processes.cpu_ms()
            milliseconds = await timed(partial(agent.ask, "Hello."))
            if number >= _WARM_UP:
                took[kind].append(milliseconds)
                used = difference(before, mesh.processes.cpu_ms())
                cpu[kind] += used["orchestrator"] + used["files"]
    return {
        "turns": turns,
        "files": _FILES,
        "open": _OPEN,
        "lines": _WINDOW_LINES,
        "kinds": {kind: {**figures(took[kind]), "cpu_ms": round(cpu[kind] / turns, 2)} for kind in agents},
        "directories": await _directories(agents["open files"], turns),
    }


async def _directories(agent: Agent, times: int) -> dict[str, Any]:
    """Measures the call of the files section: unchanged since a revision, and whole."""
    revision = (await agent.files.directories()).revision
    calls = {"unchanged": partial(agent.files.directories_since, revision), "whole": agent.files.directories}
    return {name: figures([await timed(call) for _ in range(times)]) for name, call in calls.items()}


def machine_text(machine: Mapping[str, Any]) -> str:
    """Returns one line about the machine."""
    return (
        f"{machine['cpus']} cpus, load {machine['load_average']:.1f}, Python {machine['python']}, {machine['platform']}"
    )


def _ingestion(found: Mapping[str, Any]) -> str:
    files, megabytes = found["files"], found["bytes"] / 1e6
    rows = [
        ("files, MB, passages", f"{files:,}, {megabytes:,.0f}, {found['passages']:,}"),
        ("uploaded in s (files/s)", f"{found['upload_seconds']:,.0f} ({files / found['upload_seconds']:,.0f})"),
        ("processed in s (files/s)", f"{found['processed_seconds']:,.0f} ({files / found['processed_seconds']:,.1f})"),
        ("failed", str(found["failed"])),
    ]
    for name, milliseconds in found["cpu_ms_per_file"].items():
        memory = f"{found['own_mb_before'][name]:,.0f} → {found['own_mb_peak'][name]:,.0f} MB"
        rows.append((f"{name}: CPU per file, memory", f"{milliseconds:.1f} ms, {memory}"))
    return "\n".join(["| ingestion | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)])


def _grep(grep: Mapping[str, Any]) -> str:
    lines = [f"| grep in {grep['bytes'] / 1e6:,.0f} MB | matches | p50 ms | p95 ms |", "|---|--:|--:|--:|"]
    for row in grep["patterns"]:
        late = " (time over)" if row["timed_out"] else ""
        lines.append(f"| {row['pattern']}{late} | {row['matches']:,} | {row['p50_ms']:.0f} | {row['p95_ms']:.0f} |")
    return "\n".join(lines)


def _search(search: Mapping[str, Any]) -> str:
    return f"search in all passages: p50 {search['p50_ms']:.0f} ms, p95 {search['p95_ms']:.0f} ms"


def _views(views: Mapping[str, Any]) -> str:
    lines = ["| turn of an agent with | p50 ms | p95 ms | CPU ms (orchestrator, files) |", "|---|--:|--:|--:|"]
    for kind, row in views["kinds"].items():
        lines.append(f"| {kind} | {row['p50_ms']:.1f} | {row['p95_ms']:.1f} | {row['cpu_ms']:.1f} |")
    for kind, row in views["directories"].items():
        lines.append(f"| (GetDirectories, {kind}) | {row['p50_ms']:.1f} | {row['p95_ms']:.1f} | |")
    return "\n".join(lines)


TABLES: Final[Mapping[str, Callable[[Mapping[str, Any]], str]]] = {
    "views": _views,
    "grep": _grep,
    "ingestion": _ingestion,
    "search": _search,
}


async def _measure(directory: Path, arguments: argparse.Namespace) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    """Yields the results of each part with its name."""
    async with fake_model() as model, running_mesh(directory, model) as mesh:
        addresses = Addresses(**{spec.name: mesh.config.address(spec.name) for spec in SERVICES})
        async with Mnemesh(addresses, deadline=120.0) as client:
            yield "views", await measure_views(mesh, client, arguments.turns)
            agent = await client.agents.create("searches", model="openai/one-step")
            yield "grep", await measure_grep(client, agent, arguments.grep_mb, arguments.times)
            yield "ingestion", await ingest(mesh, client, arguments.files, arguments.bytes)
            await agent.files.attach((await client.folders.find("ingestion")).id)
            yield "search", await measure_search(agent, arguments.times)


async def _run(directory: Path, arguments: argparse.Namespace) -> None:
    """Measures, and prints and writes the results of each part when it has ended."""
    results: dict[str, Any] = {
        "machine": {
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "platform": platform.platform(),
            "python": platform.python_version(),
            "cpus": len(os.sched_getaffinity(0)),
            "load_average": os.getloadavg()[0],
        }
    }
    print(machine_text(results["machine"]))
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    async with aclosing(_measure(directory, arguments)) as parts:
        async for name, part in parts:
            results[name] = part
            print(f"\n{TABLES[name](part)}", flush=True)
            arguments.out.write_text(json.dumps(results, indent=2) + "\n")
    print(f"\nwritten to {arguments.out}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.files", description=__doc__)
    parser.add_argument("--files", type=int, default=10_000, help="files to process (%(default)s)")
    parser.add_argument("--bytes", type=int, default=20_000, help="size of each (%(default)s)")
    parser.add_argument("--grep-mb", type=int, default=100, help="megabytes in which lines are found (%(default)s)")
    parser.add_argument("--turns", type=int, default=100, help="turns of each agent (%(default)s)")
    parser.add_argument("--times", type=int, default=20, help="calls of each kind (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="a few files and turns, as a smoke test")
    parser.add_argument("--out", type=Path, default=Path("build/bench-files.json"), help="the JSON (%(default)s)")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.files, arguments.grep_mb, arguments.turns, arguments.times = 20, 1, 3, 2
    return arguments


def main() -> int:
    """Runs the benchmark."""
    arguments = _arguments()
    with tempfile.TemporaryDirectory(prefix="mnemesh-files-") as directory:
        try:
            uvloop.run(_run(Path(directory), arguments))
        except (MnemeshError, RuntimeError) as error:
            print(f"bench-files: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
