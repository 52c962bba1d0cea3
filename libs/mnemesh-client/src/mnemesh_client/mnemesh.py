"""The client: one object with a part for each kind of thing that a mesh holds."""

from __future__ import annotations

import os
from types import TracebackType
from typing import Self

from mnemesh_kit.channels import DEADLINE_SECONDS, Channels

from mnemesh_client.addresses import Addresses
from mnemesh_client.agents import AgentsClient
from mnemesh_client.archives import ArchivesClient, PassagesClient
from mnemesh_client.blocks import BlocksClient
from mnemesh_client.episodes import EpisodesClient, FactsClient
from mnemesh_client.identities import IdentitiesClient
from mnemesh_client.messages import MessagesClient
from mnemesh_client.models import ModelsClient
from mnemesh_client.prompts import PromptsClient
from mnemesh_client.providers import ProvidersClient
from mnemesh_client.runs import RunsClient
from mnemesh_client.tools import ToolsClient
from mnemesh_client.traces import TracesClient

PATIENCE_SECONDS = 60.0


class Mnemesh:
    """A connection to a mesh.

    ```python
    async with Mnemesh("localhost:50050") as e:
        agent = await e.agents.create(name="ada", model="openai/gpt-4.1-mini", blocks={"human": "", "persona": "Kind."})
        async for event in agent.send("My name is Ada."):
            ...
    ```

    Parts: `agents`, `prompts`, `runs`, `models`, `providers` and `identities` (orchestrator), `blocks`, `messages`,
    `episodes`, `facts` and `traces` (recall), `archives` and `passages` (archival), `tools`. What they hand out are the
    contracts' own messages; lists are asynchronous iterators that fetch their pages by themselves; every call that
    changes something carries a request_id, so that a repeat after a broken connection has no second effect. Errors
    are `mnemesh_client.errors.MnemeshError`s with `code`, `reason` and `metadata`.
    """

    def __init__(
        self,
        target: str | Addresses | None = None,
        *,
        blocks: str | None = None,
        recall: str | None = None,
        archival: str | None = None,
        tools: str | None = None,
        token: str | None = None,
        auth_key_file: str | None = None,
        deadline: float = DEADLINE_SECONDS,
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        """Prepares a connection; nothing is sent before the first call.

        Args:
            target: address of the orchestrator, or the addresses of all rooms; None is MNEMESH_TARGET, or
                localhost:50050.
            blocks: addresses of the other rooms; None is MNEMESH_BLOCKS_TARGET (and so on), or the room's default
                port on the orchestrator's host.
            recall: see `blocks`.
            archival: see `blocks`.
            tools: see `blocks`.
            token: a bearer token; None is MNEMESH_TOKEN. Not needed on loopback without authentication.
            auth_key_file: instead of a token, the mesh's key file, to sign tokens with.
            deadline: seconds for one call.
            patience: seconds for which a broken stream is taken up again before it is given up.
        """
        self.addresses = (
            target
            if isinstance(target, Addresses)
            else Addresses.resolve(target, blocks=blocks, recall=recall, archival=archival, tools=tools)
        )
        if token is None and auth_key_file is None:
            token = os.environ.get("MNEMESH_TOKEN") or None
        self._channels = Channels(token=token, auth_key_file=auth_key_file, deadline=deadline)
        orchestrator = self._channels.channel(self.addresses.orchestrator)
        archives = self._channels.channel(self.addresses.archival)
        self.agents = AgentsClient(self, orchestrator)
        self.runs = RunsClient(orchestrator, patience)
        self.models = ModelsClient(orchestrator)
        self.prompts = PromptsClient(orchestrator)
        self.providers = ProvidersClient(orchestrator)
        self.identities = IdentitiesClient(orchestrator)
        self.blocks = BlocksClient(self._channels.channel(self.addresses.blocks))
        recalled = self._channels.channel(self.addresses.recall)
        self.messages = MessagesClient(recalled)
        self.episodes = EpisodesClient(recalled)
        self.facts = FactsClient(recalled)
        self.traces = TracesClient(recalled)
        self.archives = ArchivesClient(archives)
        self.passages = PassagesClient(archives)
        self.tools = ToolsClient(self._channels.channel(self.addresses.tools))

    async def __aenter__(self) -> Self:
        """The client itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes the connection."""
        await self.close()

    async def close(self) -> None:
        """Closes the connection; calls on the way are cancelled, runs go on at the server."""
        await self._channels.close()
