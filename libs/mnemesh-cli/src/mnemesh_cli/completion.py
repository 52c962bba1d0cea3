"""Completion of names and ids: asks the mesh, and offers nothing if it does not answer at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from itertools import islice
from typing import Final

import typer
from mnemesh_cli.global_options import connection_of
from mnemesh_client.mnemesh import Mnemesh

_SECONDS: Final = 1.5
_MOST: Final = 200
Complete = Callable[[typer.Context, str], list[tuple[str, str]]]


def completer(noun: str) -> Complete:
    """Returns what offers the names, or else the ids, of resources of a kind such as "agent"."""

    def complete(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
        if noun not in _SOURCES:
            return []
        try:
            found = asyncio.run(asyncio.wait_for(_names(ctx, noun), _SECONDS))
        except Exception:  # an error message would appear in the middle of the line that the user types
            return []
        return list(islice((each for each in found if each[0].startswith(incomplete)), _MOST))

    return complete


async def _names(ctx: typer.Context, noun: str) -> list[tuple[str, str]]:
    async with connection_of(ctx).open(deadline=_SECONDS) as mnemesh:
        return [row async for row in _SOURCES[noun](mnemesh)]


async def _agents(mnemesh: Mnemesh) -> AsyncIterator[tuple[str, str]]:
    async for agent in mnemesh.agents.list(limit=_MOST):
        yield agent.name, agent.id
        yield agent.id, agent.name


async def _groups(mnemesh: Mnemesh) -> AsyncIterator[tuple[str, str]]:
    async for group in mnemesh.groups.list(limit=_MOST):
        if group.description:
            yield group.description, group.id
        yield group.id, group.description


async def _folders(mnemesh: Mnemesh) -> AsyncIterator[tuple[str, str]]:
    async for folder in mnemesh.folders.list(limit=_MOST):
        yield folder.name, folder.description


async def _tools(mnemesh: Mnemesh) -> AsyncIterator[tuple[str, str]]:
    async for tool in mnemesh.tools.list(limit=_MOST):
        yield tool.name, tool.description.partition("\n")[0]


async def _models(mnemesh: Mnemesh) -> AsyncIterator[tuple[str, str]]:
    async for model in mnemesh.models.list():
        yield model.handle, model.display_name


async def _providers(mnemesh: Mnemesh) -> AsyncIterator[tuple[str, str]]:
    async for provider in mnemesh.providers.list():
        yield provider.name, provider.type


async def _archives(mnemesh: Mnemesh) -> AsyncIterator[tuple[str, str]]:
    async for archive in mnemesh.archives.list(limit=_MOST):
        yield archive.id, archive.name


async def _blocks(mnemesh: Mnemesh) -> AsyncIterator[tuple[str, str]]:
    async for block in mnemesh.blocks.list(limit=_MOST):
        yield block.id, block.label


async def _runs(mnemesh: Mnemesh) -> AsyncIterator[tuple[str, str]]:
    async for run in mnemesh.runs.list(limit=_MOST // 10):
        yield run.id, run.create_time.ToJsonString()[:16]


async def _conversations(mnemesh: Mnemesh) -> AsyncIterator[tuple[str, str]]:
    async for conversation in mnemesh.conversations.list(limit=_MOST):
        yield conversation.id, conversation.summary


async def _identities(mnemesh: Mnemesh) -> AsyncIterator[tuple[str, str]]:
    async for identity in mnemesh.identities.list(limit=_MOST):
        yield identity.id, identity.name


_SOURCES: Final = {
    "agent": _agents,
    "archive": _archives,
    "block": _blocks,
    "conversation": _conversations,
    "folder": _folders,
    "group": _groups,
    "identity": _identities,
    "model": _models,
    "provider": _providers,
    "run": _runs,
    "tool": _tools,
}
