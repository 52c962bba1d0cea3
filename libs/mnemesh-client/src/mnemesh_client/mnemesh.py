"""The client: one object with an attribute for each kind of resource."""

import os
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import Self, cast

from mnemesh.agents.v1 import agents_service_pb2_grpc
from mnemesh.files.v1 import agent_files_service_pb2_grpc
from mnemesh.server.v1 import server_service_pb2, server_service_pb2_grpc
from mnemesh_kit.config import TlsSettings
from mnemesh_kit.errors import InvalidArgument, Unavailable
from mnemesh_kit.outgoing import DEADLINE_SECONDS

from mnemesh_client.addresses import Addresses, running_addresses
from mnemesh_client.agent import AgentCalls
from mnemesh_client.agent_files import AgentFiles
from mnemesh_client.agents import AgentsClient
from mnemesh_client.archives import ArchivesClient, EmbeddingsClient, PassagesClient
from mnemesh_client.audit import AuditClient
from mnemesh_client.blocks import BlocksClient
from mnemesh_client.budgets import BudgetsClient
from mnemesh_client.conversations import ConversationsClient
from mnemesh_client.episodes import EpisodesClient, FactsClient
from mnemesh_client.files import FilesClient, FoldersClient
from mnemesh_client.groups import GroupsClient, SleeptimeClient
from mnemesh_client.identities import IdentitiesClient
from mnemesh_client.mcp_servers import McpServersClient
from mnemesh_client.messages import MessagesClient
from mnemesh_client.models import ModelsClient, PromptsClient, ProvidersClient
from mnemesh_client.patience import PatientChannel
from mnemesh_client.runs import RunsClient
from mnemesh_client.schedules import SchedulesClient
from mnemesh_client.tools import ToolsClient, WebClient
from mnemesh_client.traces import TracesClient
from mnemesh_client.transport import Channel, Channels
from mnemesh_client.webhooks import WebhooksClient

PATIENCE_SECONDS = 60.0


def _running(data_dir: str | os.PathLike[str] | None) -> Mapping[str, str] | None:
    """Returns the addresses of the mesh on a data directory, or on that of the environment if there is one."""
    if data_dir is not None:
        return running_addresses(data_dir)
    with suppress(Unavailable):
        if directory := os.environ.get("MNEMESH_DATA_DIR"):
            return running_addresses(directory)
    return None


class Mnemesh:
    """A client of a mesh.

    ```python
    async with Mnemesh("localhost:50050") as client:
        agent = await client.agents.create(name="ada", model="openai/gpt-6-luna", blocks={"human": ""})
        async for event in agent.send("My name is Ada."):
            ...
    ```

    Its attributes are `agents`, `conversations`, `prompts`, `runs`, `groups`, `sleeptime`, `models`, `providers`,
    `identities`, `budgets`, `schedules` and `webhooks` (orchestrator), `blocks`, `messages`, `episodes`, `facts` and
    `traces` (recall), `archives`, `passages` and `embeddings` (archival), `tools`, `mcp_servers` and `web` (tools),
    `folders` and `files` (files), and `audit` (the changes in all of them).
    Their methods return the messages of the contracts. Lists are asynchronous iterators that fetch further pages as
    needed. Every call that changes something has a request_id, so that a retry after a broken connection has no second
    effect. Errors are `mnemesh_client.errors.MnemeshError`s with `code`, `reason` and `metadata`.
    """

    def __init__(
        self,
        target: str | Addresses | None = None,
        *,
        data_dir: str | os.PathLike[str] | None = None,
        blocks: str | None = None,
        recall: str | None = None,
        archival: str | None = None,
        tools: str | None = None,
        files: str | None = None,
        token: str | None = None,
        auth_key_file: str | None = None,
        deadline: float = DEADLINE_SECONDS,
        patience: float = PATIENCE_SECONDS,
        tls: TlsSettings | None = None,
        channels: Channels | None = None,
    ) -> None:
        """Creates a client. It connects at the first call.

        Args:
            target: the address of the orchestrator, or the addresses of all services; None is MNEMESH_TARGET, or the
                mesh that runs on `data_dir`, or localhost:50050. Connections to an address `tls://host:port` are always
                encrypted.
            data_dir: the data directory of a mesh that `mnemesh up` runs on this machine, in place of an address; None
                is MNEMESH_DATA_DIR, if a mesh runs on it.
            blocks: the address of the blocks service; None is MNEMESH_BLOCKS_TARGET, or the orchestrator, which
                forwards the calls.
            recall: the address of the recall service, with the same defaults.
            archival: the address of the archival service, with the same defaults.
            tools: the address of the tools service, with the same defaults.
            files: the address of the files service, with the same defaults.
            token: a bearer token; None is MNEMESH_TOKEN. A mesh without authentication needs none.
            auth_key_file: the key file of the mesh, to sign tokens with instead.
            deadline: the deadline of a call, in seconds.
            patience: the time for which a call, stream, upload or download is retried while a server that has answered
                before is away, in seconds.
            tls: the files for encrypted connections; None is MNEMESH_GRPC_TLS_CA_FILE and the variables like it. With
                a file, all connections are encrypted.
            channels: the channels of all calls, in place of `token`, `auth_key_file`, `deadline` and `tls`.

        Raises:
            ConfigError: a file of keys or certificates is missing or wrong.
            InvalidArgument: both an address and a data directory are given.
            Unavailable: no mesh runs on `data_dir`.
        """
        if target is not None and data_dir is not None:
            raise InvalidArgument("Set the address or the data directory of the mesh, not both.", field="data_dir")
        self.addresses = (
            target
            if isinstance(target, Addresses)
            else Addresses.resolve(
                target,
                blocks=blocks,
                recall=recall,
                archival=archival,
                tools=tools,
                files=files,
                running=_running(data_dir),
                env=os.environ if data_dir is None else {},
            )
        )
        if token is None and auth_key_file is None:
            token = os.environ.get("MNEMESH_TOKEN") or None
        tls = tls if tls is not None else TlsSettings.from_env()
        self._channels = channels or Channels(token=token, auth_key_file=auth_key_file, deadline=deadline, tls=tls)
        self._patience = patience
        self._by_target: dict[str, Channel] = {}
        orchestrator = self._channel(self.addresses.orchestrator)
        archival_channel = self._channel(self.addresses.archival)
        self.conversations = ConversationsClient(orchestrator)
        self.runs = RunsClient(orchestrator, patience)
        self.sleeptime = SleeptimeClient(orchestrator, self.runs)
        self.groups = GroupsClient(orchestrator, self.runs, self.sleeptime)
        self.models = ModelsClient(orchestrator)
        self.prompts = PromptsClient(orchestrator)
        self.providers = ProvidersClient(orchestrator)
        self.identities = IdentitiesClient(orchestrator)
        self.budgets = BudgetsClient(orchestrator)
        self.schedules = SchedulesClient(orchestrator)
        self.webhooks = WebhooksClient(orchestrator)
        self.blocks = BlocksClient(self._channel(self.addresses.blocks))
        recall_channel = self._channel(self.addresses.recall)
        self.messages = MessagesClient(recall_channel)
        self.episodes = EpisodesClient(recall_channel)
        self.facts = FactsClient(recall_channel)
        self.traces = TracesClient(recall_channel)
        self.archives = ArchivesClient(archival_channel, patience)
        self.passages = PassagesClient(archival_channel)
        self.embeddings = EmbeddingsClient(archival_channel)
        self.tools = ToolsClient(self._channel(self.addresses.tools))
        self.mcp_servers = McpServersClient(self._channel(self.addresses.tools))
        self.web = WebClient(self._channel(self.addresses.tools))
        files_channel = self._channel(self.addresses.files)
        self.folders = FoldersClient(files_channel)
        self.files = FilesClient(files_channel, self.folders, patience)
        self.audit = AuditClient(lambda service: self._channel(dict(self.addresses.items())[service]))
        self._agent_files = agent_files_service_pb2_grpc.AgentFileServiceStub(files_channel)
        self.agents = AgentsClient(
            AgentCalls(
                agents=agents_service_pb2_grpc.AgentServiceStub(orchestrator),
                runs=self.runs,
                groups=self.groups,
                sleeptime=self.sleeptime,
                blocks=self.blocks,
                messages=self.messages,
                passages=self.passages,
                files=self._agent_files,
            )
        )

    def _channel(self, target: str) -> Channel:
        known = self._by_target.get(target)
        if known is None:
            patient = PatientChannel(self._channels.channel(target), self._patience)
            known = self._by_target[target] = cast("Channel", patient)
        return known

    async def __aenter__(self) -> Self:
        """Returns the client."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes the client."""
        await self.close()

    def agent_files(self, agent_id: str) -> AgentFiles:
        """Returns the files of an agent."""
        return AgentFiles(self._agent_files, agent_id)

    async def server_info(self, service: str = "orchestrator") -> server_service_pb2.GetServerInfoResponse:
        """Returns the name and version of a running service, and the gRPC services that it serves.

        Args:
            service: the name of the service, such as "blocks".

        Raises:
            Unimplemented: the service is of a release that does not report its version.
        """
        channel = self._channels.channel(dict(self.addresses.items())[service])
        stub = server_service_pb2_grpc.ServerServiceStub(channel)
        return await stub.GetServerInfo(server_service_pb2.GetServerInfoRequest(service=service))

    async def whoami(self) -> server_service_pb2.Caller:
        """Returns the caller that the token names: organization, subject, role, agents, expiry and issuer."""
        stub = server_service_pb2_grpc.ServerServiceStub(self._channels.channel(self.addresses.orchestrator))
        return (await stub.GetServerStatus(server_service_pb2.GetServerStatusRequest())).caller

    async def close(self) -> None:
        """Closes all connections. Open calls are cancelled; runs continue on the server."""
        await self._channels.close()
