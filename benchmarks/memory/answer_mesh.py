"""The mesh that answers questions: new stores in a directory, and the model providers of the environment."""

import os
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Final

from mnemesh_cli.supervisor.config import MeshConfig
from mnemesh_cli.supervisor.supervisor import Supervisor
from mnemesh_client import Mnemesh
from mnemesh_kit.services import SERVICES
from mnemesh_kit.sql import SqlConfig
from mnemesh_retrieval.config import IndexConfig

from benchmarks.mesh import free_ports

_PLACES: Final = frozenset(
    field.name.upper() for config in (SqlConfig, IndexConfig, MeshConfig) for field in fields(config)
) - {"EMBEDDER"}
"""The settings that say where a mesh listens and stores, and who may call it. Those of the environment may be those of
a deployment, which must not get the data of a benchmark."""


@asynccontextmanager
async def answering_mesh(directory: Path) -> AsyncIterator[Mnemesh]:
    """Runs a mesh on free ports with stores in `directory`; yields a client of it."""
    ports = free_ports(len(SERVICES))
    places = {spec.port_variable: str(port) for spec, port in zip(SERVICES, ports, strict=True)}
    with _environment(without_places(os.environ) | places | {"MNEMESH_DATA_DIR": str(directory / "data")}):
        config = MeshConfig.from_env()
        mesh = Supervisor(config, lambda line: print(f"  mesh: {line}", file=sys.stderr), processes=True)
        await mesh.start()
        try:
            async with _client(config) as client:
                yield client
        finally:
            await mesh.stop()


def without_places(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables without those that lead to another mesh or to its stores."""
    services = [f"{spec.name.upper()}_" for spec in SERVICES]
    return {name: value for name, value in environment.items() if not _is_place(name, services)}


def _is_place(variable: str, services: list[str]) -> bool:
    if not variable.startswith("MNEMESH_"):
        return False
    name = variable.removeprefix("MNEMESH_")
    own = [name, *(name.removeprefix(service) for service in services if name.startswith(service))]
    return name.endswith(("TARGET", "TOKEN")) or not _PLACES.isdisjoint(own)


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Replaces the environment, which the supervisor and the client read."""
    before = dict(os.environ)
    try:
        os.environ.clear()
        os.environ.update(variables)
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _client(config: MeshConfig) -> Mnemesh:
    return Mnemesh(
        config.address("orchestrator"),
        blocks=config.address("blocks"),
        recall=config.address("recall"),
        archival=config.address("archival"),
        tools=config.address("tools"),
    )
