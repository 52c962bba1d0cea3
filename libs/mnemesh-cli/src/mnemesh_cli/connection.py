"""The connection options of the command line, and the choice of an agent."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

from mnemesh_cli.options import mesh_config
from mnemesh_cli.supervisor.config import MeshConfig
from mnemesh_cli.supervisor.data_lock import lock_holder
from mnemesh_client.addresses import Addresses
from mnemesh_client.agent import Agent
from mnemesh_client.mnemesh import Mnemesh
from mnemesh_kit.errors import InvalidArgument, NotFound

FIRST_AGENT_TAG: Final = "first-agent"
NO_AGENTS: Final = "There are no agents. Create one with `mnemesh agents create`."


@dataclass(frozen=True, slots=True)
class Connection:
    """The address of a mesh and the credentials for it. Every command finds it as `context.obj`."""

    target: str | None = None
    token: str | None = None
    key_file: str | None = None

    @classmethod
    def from_env(cls, target: str | None) -> Connection:
        """Reads the credentials: MNEMESH_TOKEN, or else MNEMESH_AUTH_KEY_FILE to sign tokens with, or none."""
        token = os.environ.get("MNEMESH_TOKEN") or None
        return cls(target, token, None if token else os.environ.get("MNEMESH_AUTH_KEY_FILE") or None)

    def addresses(self, config: MeshConfig | None = None) -> Addresses:
        """Returns the addresses of the mesh: see `Addresses.resolve`.

        A mesh that runs on the data directory (of `config`, or of the environment) is known by its lock file.
        """
        holder = lock_holder((config or mesh_config(None)).data_path)
        return Addresses.resolve(self.target, running=holder.addresses if holder is not None else None)

    def open(self, addresses: Addresses | None = None) -> Mnemesh:
        """Returns a client of the mesh at `addresses`."""
        return Mnemesh(addresses or self.addresses(), token=self.token, auth_key_file=self.key_file)


async def first_agent(mnemesh: Mnemesh) -> Agent | None:
    """Returns the agent that `mnemesh up --chat` created, or None if there is none."""
    async for agent in mnemesh.agents.list(tags_all=[FIRST_AGENT_TAG], order="asc", limit=1):
        return agent
    return None


async def choose_agent(mnemesh: Mnemesh, key: str | None) -> Agent:
    """Returns the agent with an id or name; without a key, the first agent or the only one.

    Raises:
        NotFound: there is no such agent.
        InvalidArgument: several agents match.
    """
    if key is not None:
        return await mnemesh.agents.find(key)
    first = await first_agent(mnemesh)
    if first is not None:
        return first
    agents = [agent async for agent in mnemesh.agents.list(limit=2)]
    if not agents:
        raise NotFound(NO_AGENTS)
    if len(agents) > 1:
        raise InvalidArgument("There are several agents. Name one by its id or name.", field="agent")
    return agents[0]
