"""`mnemesh files search` and `mnemesh files grep`: searches of an agent's files."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated

import typer
from mnemesh.files.v1 import agent_files_service_pb2
from mnemesh_cli.connection import Connection, choose_agent
from mnemesh_cli.display.records import print_json
from mnemesh_cli.display.terminal import notice, output
from rich.text import Text

AgentOption = Annotated[
    str | None,
    typer.Option("--agent", "-a", help="Id or name of the agent that holds the files.", show_default="the first agent"),
]


def search(
    context: typer.Context,
    query: Annotated[str, typer.Argument(metavar="QUERY", help="Words or a question.")],
    agent: AgentOption = None,
    limit: Annotated[int, typer.Option(min=1, max=50, help="Maximum number of results.")] = 5,
) -> None:
    """Search the files of an agent by words and meaning."""
    asyncio.run(_search(context.obj, agent, query, limit, as_json=context.obj.as_json))


async def _search(connection: Connection, key: str | None, query: str, limit: int, *, as_json: bool) -> None:
    async with connection.open() as mnemesh:
        agent = await choose_agent(mnemesh, key)
        response = await agent.files.search(query, limit=limit)
    for hit in response.hits:
        if as_json:
            print_json(hit)
        else:
            place = _place(hit.file_name, hit.start_line, hit.end_line, hit.start_page)
            output().print(Text(place, style="cyan"))
            output().print(Text(_indented(hit.text)))
    _print_skipped(response.skipped)
    if response.degraded:
        notice("the embedder does not answer; only words were compared")
    if not response.hits:
        notice("Nothing matches.")


def grep(
    context: typer.Context,
    pattern: Annotated[str, typer.Argument(metavar="PATTERN", help="A regular expression; case is ignored.")],
    agent: AgentOption = None,
    include: Annotated[str | None, typer.Option(help='Only files whose name matches, such as "*.py".')] = None,
    context_lines: Annotated[int, typer.Option("--context", "-C", min=0, max=20, help="Lines around each match.")] = 0,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Maximum number of matches.")] = 100,
) -> None:
    """Find lines in the files of an agent. Exits with 1 if there are none."""
    raise typer.Exit(
        asyncio.run(_grep(context.obj, agent, pattern, include, context_lines, limit, as_json=context.obj.as_json))
    )


async def _grep(
    connection: Connection,
    key: str | None,
    pattern: str,
    include: str | None,
    context_lines: int,
    limit: int,
    *,
    as_json: bool,
) -> int:
    shown, offset = 0, 0
    async with connection.open() as mnemesh:
        agent = await choose_agent(mnemesh, key)
        while True:
            page = await agent.files.grep(
                pattern, include=include, context_lines=context_lines, offset=offset, limit=min(100, limit - shown)
            )
            for match in page.matches:
                (print_json if as_json else _print_match)(match)
            shown += len(page.matches)
            if not page.HasField("next_offset") or shown >= limit:
                break
            offset = page.next_offset
    _print_skipped(page.skipped)
    if page.timed_out:
        notice("the time was over before all files were searched")
    if page.total_matches > shown or page.capped:
        notice(f"{shown} of {page.total_matches}{' or more' if page.capped else ''} matches; see --limit")
    return 0 if shown else 1


def _print_match(match: agent_files_service_pb2.GrepMatch) -> None:
    console = output()
    first = match.line - len(match.lines_before)
    for number, line in enumerate(match.lines_before, first):
        console.print(Text(f"{match.file_name}-{number}- {line}", style="dim"))
    console.print(Text(f"{match.file_name}:{match.line}: ", style="cyan"), Text(match.text), sep="")
    for number, line in enumerate(match.lines_after, match.line + 1):
        console.print(Text(f"{match.file_name}-{number}- {line}", style="dim"))


def _print_skipped(skipped: Sequence[agent_files_service_pb2.SkippedFile]) -> None:
    for file in skipped:
        cause = agent_files_service_pb2.SkipCause.Name(file.cause).removeprefix("SKIP_CAUSE_").lower()
        notice(f"not searched: {file.file_name} ({cause.replace('_', ' ')})")


def _place(name: str, start_line: int, end_line: int, page: int) -> str:
    lines = f":{start_line}-{end_line}" if start_line else ""
    return f"{name}{lines}" + (f" (page {page})" if page else "")


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.strip().splitlines())
