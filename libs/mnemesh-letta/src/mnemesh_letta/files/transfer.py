"""Imports Letta's agent files into a mesh, and exports agents as such files."""

from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

from mnemesh.agents.v1 import agents_pb2, agents_service_pb2
from mnemesh.agents.v1.agent_records_pb2 import AgentRecord
from mnemesh.blocks.v1.blocks_pb2 import Block
from mnemesh.blocks.v1.blocks_service_pb2 import CreateBlockRequest
from mnemesh_client.mnemesh import Mnemesh
from mnemesh_kit.errors import AlreadyExists, FailedPrecondition, InvalidArgument, MnemeshError, NotFound
from mnemesh_kit.ids import derive_id

from mnemesh_letta.convert.resources import upload_text
from mnemesh_letta.files.reading import AgentFile, FolderText, read_agent_file
from mnemesh_letta.files.writing import write_agent_file

_BATCH_RECORDS: Final = 100
_REFUSALS: Final = (InvalidArgument, NotFound, AlreadyExists, FailedPrecondition)
"""The errors that concern what was sent, so that the rest can be imported."""
_DEADLINE_SECONDS: Final = 3600.0


class LettaImport:
    """One import of an agent file. Repeating it with the same namespace creates nothing twice.

    Args:
        mnemesh: the mesh.
        data: the bytes of the file, or its JSON.
        namespace: names the import; agents of another namespace are other agents.
        options: what the settings of the files give way to; request_id, keep_ids and id_namespace are not read, and
            name only if the file has one agent.

    Raises:
        InvalidArgument: the file is not an agent file of Letta, or none of its agents can be read.
        ResourceExhausted: the file is too large.
    """

    def __init__(
        self,
        mnemesh: Mnemesh,
        data: object,
        namespace: str,
        *,
        options: agents_service_pb2.ImportOptions | None = None,
    ) -> None:
        self._mnemesh = mnemesh
        self._namespace = namespace
        self._options = options or agents_service_pb2.ImportOptions()
        self._file: AgentFile = read_agent_file(data, namespace)
        self._is_group = len(self._file.agents) > 1
        self.notes: list[str] = list(self._file.left_out)
        """What was not imported, or not as it was: a sentence each."""

    async def run(self) -> list[agents_pb2.Agent]:
        """Imports folders, MCP servers, blocks and agents, and returns the agents in the order of the file.

        An agent that the mesh refuses is left out, and named in `notes`, unless it is the only one.

        Raises:
            NotFound: MODEL_UNKNOWN: the mesh does not have the model of the agents.
            MnemeshError: the mesh refuses all agents, or a service is away.
        """
        await self._upload()
        await self._register()
        await self._create_blocks()
        embedders = {item.handle async for item in self._mnemesh.models.embedding_models()}
        agents: list[agents_pb2.Agent] = []
        refusal: MnemeshError | None = None
        for agent_id in list(self._file.agents):
            records = self._file.agents.pop(agent_id)
            name = next((record.agent.name for record in records if record.HasField("agent")), agent_id)
            try:
                agents.append(await self._agent(agent_id, records, embedders))
            except _REFUSALS as error:
                refusal = refusal or error
                self.notes.append(f"The agent {name[:100]} is not imported: {error.message}")
        if refusal is not None and not agents:
            raise refusal
        return agents

    async def _agent(self, agent_id: str, records: Sequence[AgentRecord], embedders: set[str]) -> agents_pb2.Agent:
        for record in records:
            if record.HasField("agent") and record.agent.HasField("embedder"):
                self._choose_embedder(record.agent, embedders)
            if record.HasField("folder") and record.folder.embedder not in embedders:
                record.folder.embedder = ""
        options = agents_service_pb2.ImportOptions()
        options.CopyFrom(self._options)
        options.request_id = derive_id("request", self._namespace, agent_id)
        options.keep_ids = True
        options.id_namespace = self._namespace
        if self._is_group:
            options.ClearField("name")

        async def requests() -> AsyncIterator[agents_service_pb2.ImportAgentRequest]:
            yield agents_service_pb2.ImportAgentRequest(options=options)
            for start in range(0, len(records), _BATCH_RECORDS):
                yield agents_service_pb2.ImportAgentRequest(records=records[start : start + _BATCH_RECORDS])

        response = await self._mnemesh.agents.stub.ImportAgent(requests(), timeout=_DEADLINE_SECONDS)
        # A group is created with the last of its agents, and skipped before.
        self.notes += [f"{item.id}: {item.reason}" for item in response.skipped if not item.id.startswith("group-")]
        return response.agent

    def _choose_embedder(self, agent: agents_pb2.Agent, embedders: set[str]) -> None:
        if agent.embedder not in embedders:
            if not self._options.HasField("embedder"):
                self.notes.append(f"The embedder {agent.embedder} of {agent.name} is not here: it gets the default one")
            agent.ClearField("embedder")

    async def _create_blocks(self) -> None:
        for block in self._file.blocks:
            request = CreateBlockRequest(
                request_id=derive_id("request", self._namespace, block.id),
                block=Block(
                    label=block.label,
                    value=block.value,
                    description=block.description if block.HasField("description") else None,
                    limit=block.limit,
                    read_only=block.read_only,
                    tags=block.tags,
                    metadata=block.metadata if block.HasField("metadata") else None,
                ),
            )
            try:
                await self._mnemesh.blocks.stub.CreateBlock(request)
            except _REFUSALS as error:
                self.notes.append(f"The block {block.label} is not imported: {error.message}")
            else:
                self.notes.append(f"The block {block.label} is imported; no agent of the file has it.")

    async def _upload(self) -> None:
        for item in self._file.files:
            try:
                await self._upload_text(item)
            except _REFUSALS as error:
                self.notes.append(f"The file {item.name} is not imported: {error.message}")

    async def _upload_text(self, item: FolderText) -> None:
        try:
            folder = await self._mnemesh.folders.find(item.folder)
        except NotFound:
            folder = await self._mnemesh.folders.create(
                item.folder, request_id=derive_id("request", self._namespace, item.folder)
            )
        request_id = derive_id("request", self._namespace, item.folder, item.name)
        await upload_text(self._mnemesh, folder.id, item.name, item.text, request_id)

    async def _register(self) -> None:
        known = {server.name async for server in self._mnemesh.mcp_servers.list()}
        for server in self._file.mcp_servers:
            name, url = server["server_name"], server.get("server_url")
            if name in known:
                continue
            if not url:
                self.notes.append(f"The MCP server {name} is a program of another host. Register it here again.")
                continue
            transport: Any = "sse" if server.get("server_type") == "sse" else "streamable_http"
            try:
                await self._mnemesh.mcp_servers.create(name, url, transport=transport)
            except MnemeshError as error:
                self.notes.append(f"The MCP server {name} is not registered: {error.message}")
            else:
                self.notes.append(f"The MCP server {name} is registered without its token. Set it again.")


async def export_letta(
    mnemesh: Mnemesh, agent_ids: Sequence[str], *, conversation_id: str | None = None
) -> dict[str, Any]:
    """Returns the JSON of an agent file with these agents, and the texts of their files.

    Args:
        mnemesh: the mesh.
        agent_ids: the agents.
        conversation_id: the conversation whose messages, window and blocks the file has; None is the default one.

    Raises:
        NotFound: there is no such agent, or an agent does not have the conversation.
    """
    agents = [[record async for record in _records(mnemesh, agent_id)] for agent_id in agent_ids]
    data = write_agent_file(agents, conversation_id=conversation_id)
    folders = {record.folder.id: record.folder.name for records in agents for record in records if record.folder.id}
    sources = {source["name"]: source["id"] for source in data["sources"]}
    for folder_id, name in folders.items():
        async for file in mnemesh.files.list(folder_id=folder_id):
            is_text = file.media_type.startswith("text/")
            text = (await mnemesh.files.read(file.id)).decode() if is_text else await mnemesh.files.text(file.id)
            data["files"].append(
                {
                    "id": f"file-{len(data['files'])}",
                    "source_id": sources[name],
                    "file_name": f"{name}/{file.name}",
                    "original_file_name": file.name,
                    "file_type": file.media_type,
                    "file_size": len(text.encode()),
                    "processing_status": "completed",
                    "content": text,
                }
            )
    return data


async def _records(mnemesh: Mnemesh, agent_id: str) -> AsyncIterator[AgentRecord]:
    request = agents_service_pb2.ExportAgentRequest(agent_id=agent_id)
    async for response in mnemesh.agents.stub.ExportAgent(request, timeout=_DEADLINE_SECONDS):
        for record in response.records:
            yield record
