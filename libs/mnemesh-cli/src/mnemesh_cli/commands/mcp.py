"""`mnemesh mcp`: the memory of agents as an MCP server on standard input and output."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer
from mnemesh_cli.connection import Connection
from mnemesh_kit.config import StartupError
from mnemesh_kit.extras import install_hint


def mcp(
    context: typer.Context,
    agent: Annotated[
        str | None,
        typer.Option(
            "--agent",
            "-a",
            help="Name or id of the agent whose memory is used by default.",
            show_default="the only agent",
        ),
    ] = None,
) -> None:
    """Serve the memory of agents to an MCP client, on standard input and output."""
    asyncio.run(_serve(context.obj, agent))


async def _serve(connection: Connection, agent: str | None) -> None:
    try:
        from mnemesh_client.mcp_server import memory_server  # noqa: PLC0415 -- an extra
    except ModuleNotFoundError as error:
        raise StartupError(f"The package mcp is not installed. {install_hint('mnemesh-cli', 'mcp')}") from error
    async with connection.open() as mnemesh:
        if agent is not None:
            agent = (await mnemesh.agents.find(agent)).id
        await memory_server(lambda _: mnemesh, agent).run_stdio_async()
