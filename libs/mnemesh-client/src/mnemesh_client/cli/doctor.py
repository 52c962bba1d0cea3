"""What `mnemesh doctor` finds."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from mnemesh_kit.config import StartupError
from mnemesh_kit.errors import MnemeshError, Unavailable

from mnemesh_client.addresses import Addresses
from mnemesh_client.cli.connection import Connection
from mnemesh_client.cli.error_text import explain
from mnemesh_client.cli.first_agent import REHEARSAL
from mnemesh_client.supervisor import health
from mnemesh_client.supervisor.config import ROOMS, MeshConfig, module_of
from mnemesh_client.supervisor.data_lock import lock_holder

_TOO_NEW_PYTHON: Final = (3, 13)
_MODEL_VARIABLES: Final = (
    "MNEMESH_MODEL",
    "OPENAI_BASE_URL",
    "OPENAI_API_KEY",
    "ANTHROPIC_BASE_URL",
    "ANTHROPIC_API_KEY",
)
_LITTLE_SPACE: Final = 500 * 1024 * 1024
_OFFLINE_EMBEDDER: Final = "mnemesh/wordllama-256"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. `state` is "ok", "note" or "problem"."""

    subject: str
    text: str
    state: str = "ok"

    @property
    def is_problem(self) -> bool:
        """Whether something has to be done about it."""
        return self.state == "problem"

    @property
    def mark(self) -> str:
        """The state as a sign."""
        return {"ok": "✓", "note": "·", "problem": "✗"}[self.state]

    @property
    def style(self) -> str:
        """The state as a colour."""
        return {"ok": "", "note": "dim", "problem": "red"}[self.state]


async def examine(config: MeshConfig, connection: Connection, env: Mapping[str, str]) -> list[Finding]:
    """Everything that can be told from here, about this machine's mesh or the one that is connected to."""
    findings = [_python(), _data_dir(config), _embedder(config)]
    findings += [finding for room in ROOMS if (finding := _installed(room)) is not None]
    addresses = _addresses(config, connection.target, env)
    states = await asyncio.gather(*(health.status(address) for address in addresses.values()))
    running = any(state == "SERVING" for state in states)
    findings += [_room(room, addresses[room], state, running) for room, state in zip(addresses, states, strict=True)]
    return [*findings, await _model(addresses["orchestrator"], connection, env)]


def how_to_change(model: str) -> str:
    """What a person can do to get another model."""
    if model == REHEARSAL:
        return "no LLM; set OPENAI_API_KEY, ANTHROPIC_API_KEY or OPENAI_BASE_URL for a real one"
    return "change it with MNEMESH_MODEL=provider/model"


def _addresses(config: MeshConfig, target: str | None, env: Mapping[str, str]) -> dict[str, str]:
    if target is not None:
        return dict(Addresses.resolve(target, env=env).items())
    return {room: env.get(f"MNEMESH_{room.upper()}_TARGET") or config.address(room) for room in ROOMS}


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    if not (3, 11) <= sys.version_info[:2] < _TOO_NEW_PYTHON:
        return Finding("python", f"{version}; mnemesh needs 3.11 or 3.12", "problem")
    return Finding("python", f"{version} at {sys.executable}")


def _data_dir(config: MeshConfig) -> Finding:
    directory = config.data_path
    there = next(path for path in (directory, *directory.parents) if path.exists())
    if not os.access(there, os.W_OK | os.X_OK):
        text = f"{directory} cannot be written; choose another with MNEMESH_DATA_DIR"
        return Finding("data", text, "problem")
    free = shutil.disk_usage(there).free
    if free < _LITTLE_SPACE:
        return Finding("data", f"{directory} has only {free // 2**20} MB left", "problem")
    holder = lock_holder(directory)
    use = f"in use by pid {holder.get('pid')}" if holder else "not in use"
    return Finding("data", f"{directory}, {use}, {free // 2**30} GB free")


async def _model(address: str, connection: Connection, env: Mapping[str, str]) -> Finding:
    async with Connection(address, connection.token, connection.key_file).open() as mnemesh:
        try:
            model = (await mnemesh.models.default()).handle
        except Unavailable:
            given = [name for name in _MODEL_VARIABLES if env.get(name)]
            return Finding("model", f"chosen by {', '.join(given)}" if given else REHEARSAL, "note")
        except MnemeshError as error:
            return Finding("model", explain(error), "problem")
    return Finding("model", f"{model} ({how_to_change(model)})")


def _embedder(config: MeshConfig) -> Finding:
    if config.embedder == _OFFLINE_EMBEDDER and importlib.util.find_spec("wordllama") is None:
        return Finding("embedder", f"{config.embedder} is not installed", "problem")
    return Finding("embedder", config.embedder)


def _installed(room: str) -> Finding | None:
    try:
        module_of(room)
    except StartupError as error:
        return Finding(room, str(error), "problem")
    return None


def _room(room: str, address: str, state: str, running: bool) -> Finding:
    if state == "SERVING":
        return Finding(room, f"{address} answers")
    if state != "UNAVAILABLE":
        return Finding(room, f"{address} says {state}", "problem")
    if running:
        return Finding(room, f"{address} does not answer; see its log", "problem")
    if _is_open(address):
        return Finding(room, f"{address} is taken by something that is not mnemesh", "problem")
    return Finding(room, f"{address} does not answer; `mnemesh up` starts a mesh", "note")


def _is_open(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=1.0):
            return True
    except (OSError, ValueError):
        return False
