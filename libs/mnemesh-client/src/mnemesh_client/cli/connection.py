"""How a command reaches the mesh, and which agent it means."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

from mnemesh_kit.errors import InvalidArgument, NotFound

from mnemesh_client.agent import Agent
from mnemesh_client.mnemesh import Mnemesh

FIRST_AGENT_TAG: Final = "first-agent"


@dataclass(frozen=True, slots=True)
class Connection:
    """What the options before the command and the environment say; handed on as the context's object."""

    target: str | None = None
    token: str | None = None
    key_file: str | None = None

    @classmethod
    def from_env(cls, target: str | None) -> Connection:
        """With MNEMESH_TOKEN, or signing with MNEMESH_AUTH_KEY_FILE, or neither."""
        token = os.environ.get("MNEMESH_TOKEN") or None
        return cls(target, token, None if token else os.environ.get("MNEMESH_AUTH_KEY_FILE") or None)

    def open(self) -> Mnemesh:
        """A client."""
        return Mnemesh(self.target, token=self.token, auth_key_file=self.key_file)


async def first_agent(mnemesh: Mnemesh) -> Agent | None:
    """The agent that `mnemesh up --chat` made, if there is one."""
    async for agent in mnemesh.agents.list(tags_all=[FIRST_AGENT_TAG], order="asc", limit=1):
        return agent
    return None


async def choose_agent(mnemesh: Mnemesh, key: str | None) -> Agent:
    """The agent with that id or name; without a key the first agent, or the only one.

    Raises:
        NotFound: there is none.
        InvalidArgument: several could be meant.
    """
    if key is not None:
        return await mnemesh.agents.find(key)
    first = await first_agent(mnemesh)
    if first is not None:
        return first
    agents = [agent async for agent in mnemesh.agents.list(limit=2)]
    if not agents:
        raise NotFound("There is no agent yet; `mnemesh agents create` makes one.")
    if len(agents) > 1:
        raise InvalidArgument("There are several agents; name one by its id or name.", field="agent")
    return agents[0]
