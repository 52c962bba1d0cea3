"""Short ids: every command accepts the beginning of an id, as tables show it, in place of the whole id."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from mnemesh_cli.connection import Connection

if TYPE_CHECKING:
    from mnemesh_client.mnemesh import Mnemesh  # a line without ids does not import it

_MOST: Final = 10_000
_SHOWN: Final = 5
_TEXTS: Final = frozenset(
    {
        *("text", "query", "queries", "value", "name", "description", "summary", "reason", "content"),
        *("paths", "args", "tag", "human", "persona"),
    }
)
"""Parameters whose value may be any text."""
_NAMED: Final = ("agent", "file", "group", "mcp_server", "provider", "source", "tool")
"""The kinds whose rows have names, which may look like the beginning of an id: "agent-1"."""


async def _of_agents(mnemesh: "Mnemesh", noun: str) -> AsyncIterator[Any]:
    """Yields the facts or the episodes of all agents."""
    async for agent in mnemesh.agents.list(order="desc", limit=_MOST):
        async for row in getattr(mnemesh, noun).list(agent_id=agent.id, limit=_MOST):
            yield row


_LISTS: "Final[Mapping[str, Callable[[Mnemesh], AsyncIterator[Any]]]]" = {
    "agent": lambda mnemesh: mnemesh.agents.list(order="desc", limit=_MOST),
    "archive": lambda mnemesh: mnemesh.archives.list(order="desc", limit=_MOST),
    "block": lambda mnemesh: mnemesh.blocks.list(order="desc", limit=_MOST),
    "episode": lambda mnemesh: _of_agents(mnemesh, "episodes"),
    "fact": lambda mnemesh: _of_agents(mnemesh, "facts"),
    "conv": lambda mnemesh: mnemesh.conversations.list(order="desc", limit=_MOST),
    "file": lambda mnemesh: mnemesh.files.list(order="desc", limit=_MOST),
    "group": lambda mnemesh: mnemesh.groups.list(order="desc", limit=_MOST),
    "identity": lambda mnemesh: mnemesh.identities.list(limit=_MOST),
    "mcp_server": lambda mnemesh: mnemesh.mcp_servers.list(order="desc", limit=_MOST),
    "message": lambda mnemesh: mnemesh.messages.list(order="desc", limit=_MOST),
    "passage": lambda mnemesh: mnemesh.passages.list(order="desc", limit=_MOST),
    "provider": lambda mnemesh: mnemesh.providers.list(limit=_MOST),
    "run": lambda mnemesh: mnemesh.runs.list(order="desc", limit=_MOST),
    "source": lambda mnemesh: mnemesh.folders.list(order="desc", limit=_MOST),
    "tool": lambda mnemesh: mnemesh.tools.list(order="desc", limit=_MOST),
}
"""By the kind with which ids begin: what yields the newest rows of it."""
_UNNAMED: Final = [kind for kind in _LISTS if kind not in _NAMED]
_SHORT: Final = re.compile(
    rf"(?P<kind>{'|'.join(_NAMED)})-[0-9a-f][0-9a-f-]{{3,34}}|(?P<other>{'|'.join(_UNNAMED)})-[0-9a-f][0-9a-f-]{{0,34}}"
)


def resolve_short_ids(connection: Connection, values: dict[str, Any]) -> None:
    """Replaces the short ids among the arguments of a line by whole ones. What may be a name stays.

    Raises:
        NotFound: no id begins with a short one.
        InvalidArgument: several ids begin with a short one. The message has the candidates.
    """
    found = {text for name, value in values.items() if name not in _TEXTS for text in _short(value)}
    if not found:
        return
    whole = asyncio.run(_resolve(connection, found))
    for name, value in values.items():
        if name in _TEXTS:
            continue
        if isinstance(value, str):
            values[name] = whole.get(value, value)
        elif isinstance(value, list | tuple):
            values[name] = type(value)(whole.get(each, each) if isinstance(each, str) else each for each in value)


def _short(value: Any) -> list[str]:
    values = value if isinstance(value, list | tuple) else [value]
    return [each for each in values if isinstance(each, str) and _SHORT.fullmatch(each)]


async def _resolve(connection: Connection, shorts: set[str]) -> dict[str, str]:
    from mnemesh_kit.errors import InvalidArgument, NotFound  # noqa: PLC0415

    whole: dict[str, str] = {}
    async with connection.open() as mnemesh:
        for short in sorted(shorts):
            match = _SHORT.fullmatch(short)
            assert match is not None  # noqa: S101  (it was matched before)
            ids: list[str] = []
            async for row in _LISTS[match["kind"] or match["other"]](mnemesh):
                if getattr(row, "name", None) == short:
                    ids = []  # it is a name
                    break
                if row.id.startswith(short):
                    ids.append(row.id)
            if len(ids) > 1:
                listed = ", ".join(ids[:_SHOWN]) + (", …" if len(ids) > _SHOWN else "")
                raise InvalidArgument(f"{len(ids)} ids begin with {short}: {listed}.", field="id")
            if ids:
                whole[short] = ids[0]
            elif match["other"]:
                raise NotFound(f"No id begins with {short}.", resource_id=short)
    return whole
