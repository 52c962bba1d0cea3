"""Agent files of Letta (.af): `mnemesh import FILE.af` and `mnemesh export --format letta`."""

import asyncio
import hashlib
import json
from enum import StrEnum
from pathlib import Path

from mnemesh.agents.v1.agents_service_pb2 import ImportOptions
from mnemesh_cli.connection import Connection, with_free_name
from mnemesh_cli.display.records import print_done
from mnemesh_cli.display.terminal import notice
from mnemesh_kit.errors import InvalidArgument
from mnemesh_letta.files.transfer import LettaImport, export_letta


class ExportFormat(StrEnum):
    """The form of an export."""

    MNEMESH = "mnemesh"
    LETTA = "letta"


async def import_letta_file(connection: Connection, path: Path, model: str | None) -> None:
    """Imports an agent file. The same file creates the same agents, once.

    Raises:
        InvalidArgument: the file cannot be read, or is not an agent file of Letta.
    """
    content = await asyncio.to_thread(_content, path)
    async with connection.open() as mnemesh:
        restored = LettaImport(
            mnemesh, content, hashlib.sha256(content).hexdigest(), options=ImportOptions(model=model)
        )
        agents = await restored.run()
        for note in restored.notes:
            notice(note)
        agents = [(await with_free_name(mnemesh, mnemesh.agents.handle(agent))).proto for agent in agents]
    for agent in agents:
        print_done(f"{agent.name}: {agent.id}", agent, as_json=connection.as_json)


async def export_letta_file(connection: Connection, key: str, directory: Path) -> None:
    """Writes an agent to <directory>/<agent_id>.af."""
    async with connection.open() as mnemesh:
        agent = await mnemesh.agents.find(key)
        data = await export_letta(mnemesh, [agent.id])
    path = directory / f"{agent.id}.af"
    await asyncio.to_thread(_write, path, json.dumps(data, ensure_ascii=False, indent=2) + "\n")
    counts = {
        "messages": len(data["agents"][0]["messages"]),
        "blocks": len(data["blocks"]),
        "tools": len(data["tools"]),
    }
    notice("passages, runs, revisions of blocks and values of secrets have no place in an agent file")
    text = f"{path}: {', '.join(f'{count} {name}' for name, count in counts.items())}"
    print_done(text, {"agent_id": agent.id, "path": str(path), **counts}, as_json=connection.as_json)


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be read: {error.strerror}", field="dir") from error


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
