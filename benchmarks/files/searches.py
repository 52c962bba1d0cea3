"""The time of grep over many megabytes, and of searches by words and meaning."""

import asyncio
from functools import partial
from typing import Any, Final

from mnemesh_cli.directories.sync import for_each
from mnemesh_client import Agent, Mnemesh

from benchmarks.files.texts import text
from benchmarks.files.timing import figures, timed

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
