"""Migrates one organization of a Letta database into the organization of the caller."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from mnemesh.agents.v1 import agent_records_pb2, agents_service_pb2, identities_service_pb2
from mnemesh.agents.v1.agent_records_pb2 import AgentRecord
from mnemesh.archival.v1 import archives_service_pb2, passages_service_pb2
from mnemesh.blocks.v1 import blocks_service_pb2
from mnemesh.files.v1 import folders_service_pb2
from mnemesh.tools.v1 import mcp_servers_pb2, tools_service_pb2
from mnemesh_client.mnemesh import Mnemesh
from mnemesh_kit.errors import FailedPrecondition, InvalidArgument, MnemeshError, NotFound
from mnemesh_kit.ids import derive_id

from mnemesh_letta.convert import resources
from mnemesh_letta.convert.settings import model_handle
from mnemesh_letta.convert.values import Row
from mnemesh_letta.database.database import LettaDatabase
from mnemesh_letta.database.records import AgentRecords, Target, archive_records, same_model
from mnemesh_letta.database.report import Report

SOURCE_TAG: Final = "imported-from:"
_PASSAGES_PER_CALL: Final = 100
_PROVIDER_TYPES: Final = {"google_vertex": "google_ai", "lmstudio_openai": "lmstudio"}

Seen = Callable[[str, str], bool]


class UnattachedMigration:
    """Creates what is missing, by the ordinary calls. What a name, a key or a tag finds is used."""

    def __init__(
        self, database: LettaDatabase, mnemesh: Mnemesh, target: Target, report: Report, has_seen: Seen
    ) -> None:
        self._database = database
        self._mnemesh = mnemesh
        self._target = target
        self._report = report
        self._has_seen = has_seen

    async def folders(self) -> None:
        """Creates folders by their names, and uploads the files that they do not have."""
        async for row in self._database.rows("sources", order=("created_at", "id")):
            folder_id = await self._folder(row)
            known = {file.name: file.id async for file in self._mnemesh.files.list(folder_id=folder_id)}
            files = await self._database.all("files", order=("created_at", "id"), source_id=row["id"])
            for file in files:
                await self._file(folder_id, file, known)

    async def _folder(self, row: Row) -> str:
        folder = resources.folder(row)
        try:
            found = await self._mnemesh.folders.find(folder.name)
        except NotFound:
            folder.embedder = same_model(folder.embedder, self._target.embedders) or ""
            request_id = derive_id("request", "letta", row["id"])
            request = folders_service_pb2.CreateFolderRequest(request_id=request_id, folder=folder)
            found = (await self._mnemesh.folders.stub.CreateFolder(request)).folder
            self._report.counts["folders"].created += 1
        else:
            self._report.counts["folders"].existing += 1
        self._report.ids[row["id"]] = found.id
        return found.id

    async def _file(self, folder_id: str, row: Row, known: Mapping[str, str]) -> None:
        name = resources.file_name(row)
        if name in known:
            self._report.ids[row["id"]] = known[name]
            self._report.counts["files"].existing += 1
            return
        contents = await self._database.all("file_contents", file_id=row["id"])
        if not contents or not contents[0]["text"]:
            self._report.skip("files", row["id"], f"Letta has no text of {name}")
            return
        if name != resources.original_name(row):
            self._report.change("files", row["id"], f"stored as {name}: Letta keeps the text of a file, not the file")
        try:
            request_id = derive_id("request", "letta", row["id"])
            file_id = await resources.upload_text(self._mnemesh, folder_id, name, contents[0]["text"], request_id)
        except MnemeshError as error:
            self._report.skip("files", row["id"], error.message)
            return
        self._report.ids[row["id"]] = file_id
        self._report.counts["files"].created += 1

    async def providers(self) -> None:
        """Creates the organization's own providers, without their keys. The server's come from its environment."""
        known = {provider.name: provider.has_api_key async for provider in self._mnemesh.providers.list()}
        counts = self._report.counts["providers"]
        async for row in self._database.rows("providers", order=("created_at", "id"), provider_category="byok"):
            counts.letta += 1
            if row["name"] in known:
                counts.existing += 1
                if not known[row["name"]]:
                    self._without_key(row)
                continue
            kind = str(row["provider_type"])
            fields = {key: row[key] for key in ("base_url", "api_version", "region") if row.get(key)}
            try:
                await self._mnemesh.providers.create(row["name"], _PROVIDER_TYPES.get(kind, kind), **fields)
            except MnemeshError as error:
                self._report.skip("providers", row["id"], error.message)
                continue
            counts.created += 1
            self._without_key(row)

    def _without_key(self, row: Row) -> None:
        self._report.change("providers", row["id"], f"the key of {row['name']} is not copied; set it again")

    async def mcp_servers(self) -> None:
        """Registers MCP servers by their URL, without tokens and headers."""
        known = {server.name: server.status async for server in self._mnemesh.mcp_servers.list()}
        counts = self._report.counts["mcp servers"]
        async for row in self._database.rows("mcp_server", order=("created_at", "id")):
            if row["server_name"] in known:
                counts.existing += 1
                if known[row["server_name"]] != mcp_servers_pb2.MCP_SERVER_STATUS_REACHABLE:
                    self._without_token(row)
                continue
            kind = str(row["server_type"]).lower()
            if kind == "stdio" or not row.get("server_url"):
                self._report.skip("mcp servers", row["id"], "a program of another host; register it here again")
                continue
            try:
                await self._mnemesh.mcp_servers.create(
                    row["server_name"], row["server_url"], transport="sse" if kind == "sse" else "streamable_http"
                )
            except MnemeshError as error:
                self._report.skip("mcp servers", row["id"], error.message)
                continue
            counts.created += 1
            self._without_token(row)

    def _without_token(self, row: Row) -> None:
        self._report.change("mcp servers", row["id"], "its token and headers are not copied; set them again")

    async def tools(self) -> None:
        """Creates the custom tools that no migrated agent holds."""
        async for row in self._database.rows("tools", order=("created_at", "id")):
            if self._has_seen("tools", row["id"]):
                continue
            if resources.is_builtin_tool(row):
                self._report.counts["tools"].letta -= 1
                continue
            try:
                tool = resources.custom_tool(row)
            except ValueError as error:
                self._report.skip("tools", row["id"], str(error))
                continue
            found = [known async for known in self._mnemesh.tools.list(names=[tool.name])]
            request_id = derive_id("request", "letta", row["id"])
            request = tools_service_pb2.CreateToolRequest(request_id=request_id, tool=tool)
            await self._once("tools", row["id"], found, self._mnemesh.tools.stub.CreateTool, request)

    async def identities(self) -> None:
        """Creates the identities that no migrated agent has."""
        known = {identity.identifier_key async for identity in self._mnemesh.identities.list()}
        async for row in self._database.rows("identities", order=("created_at", "id")):
            if self._has_seen("identities", row["id"]):
                continue
            request_id = derive_id("request", "letta", row["id"])
            request = identities_service_pb2.UpsertIdentityRequest(
                request_id=request_id, identity=resources.identity(row)
            )
            answer = await self._mnemesh.identities.stub.UpsertIdentity(request)
            counts = self._report.counts["identities"]
            # A repeated call has the answer of the first one.
            created = answer.created and answer.identity.identifier_key not in known
            counts.created += created
            counts.existing += not created
            self._report.ids[row["id"]] = answer.identity.id

    async def blocks(self) -> None:
        """Creates the blocks that no migrated agent holds. They get a tag with the id that they had."""
        async for row in self._database.rows("block", order=("created_at", "id")):
            if self._has_seen("blocks", row["id"]):
                continue
            tag = SOURCE_TAG + row["id"]
            links = self._database.rows("blocks_tags", order=("tag",), block_id=row["id"])
            tags = [link["tag"] async for link in links]
            found = [known async for known in self._mnemesh.blocks.list(tags_any=[tag], limit=1)]
            request_id = derive_id("request", "letta", row["id"])
            block = resources.block(row, tags=[*tags, tag])
            if block.label != row["label"]:
                self._report.change("blocks", row["id"], f"the label {row['label']!r} is {block.label} here")
            request = blocks_service_pb2.CreateBlockRequest(request_id=request_id, block=block)
            await self._once("blocks", row["id"], found, self._mnemesh.blocks.stub.CreateBlock, request)
            history = await self._database.count("block_history", block_id=row["id"])
            if history:
                self._report.counts["block revisions"].skipped += history
                self._report.change("block revisions", row["id"], "revisions of a block that no agent holds")

    async def archives(self) -> None:
        """Creates the archives that no migrated agent holds, with their passages, whose ids are kept."""
        known = {archive.name: archive.id async for archive in self._mnemesh.archives.list()}
        async for row in self._database.rows("archives", order=("created_at", "id")):
            if not self._has_seen("archives", row["id"]):
                await self._archive(row, known)

    async def _archive(self, row: Row, known: dict[str, str]) -> None:
        archive_id = known.get(row["name"], "")
        counts = self._report.counts["archives"]
        arrived = (
            {item.id async for item in self._mnemesh.passages.list(archive_id=archive_id)} if archive_id else set()
        )
        batch: list[Any] = []
        async for record in self._records(row):
            if record.HasField("archive"):
                if archive_id:
                    self._report.ids[row["id"]] = archive_id
                    counts.existing += 1
                    continue
                request_id = derive_id("request", "letta", row["id"])
                request = archives_service_pb2.CreateArchiveRequest(request_id=request_id, archive=record.archive)
                archive_id = (await self._mnemesh.archives.stub.CreateArchive(request)).archive.id
                self._report.ids[row["id"]] = archive_id
                counts.created += 1
            elif record.passage.passage.id in arrived:
                self._report.counts["passages"].existing += 1
            else:
                batch.append(record.passage.passage)
                if len(batch) == _PASSAGES_PER_CALL:
                    await self._insert(archive_id, batch)
                    batch = []
        if batch:
            await self._insert(archive_id, batch)

    def _records(self, row: Row) -> AsyncIterator[Any]:
        return archive_records(self._database, [row["id"]], self._target.embedders, self._report)

    async def _insert(self, archive_id: str, passages: list[Any]) -> None:
        for passage in passages:
            passage.ClearField("archive_id")
        request_id = derive_id("request", "letta", *(passage.id for passage in passages))
        request = passages_service_pb2.InsertPassagesRequest(
            request_id=request_id, archive_id=archive_id, passages=passages
        )
        answer = await self._mnemesh.passages.stub.InsertPassages(request)
        for passage, result in zip(passages, answer.results, strict=True):
            if result.HasField("failure"):
                self._report.skip("passages", passage.id, result.failure.message)
            else:
                self._report.counts["passages"].created += 1
                self._report.vector_uses[result.vector_use] += 1

    async def _once(
        self, kind: str, id_: str, found: Sequence[Any], create: Callable[[Any], Any], request: Any
    ) -> None:
        counts = self._report.counts[kind]
        if found:
            counts.existing += 1
            self._note_id(id_, found[0].id)
            return
        try:
            answer = await create(request)
        except MnemeshError as error:
            self._report.skip(kind, id_, error.message)
        else:
            counts.created += 1
            self._note_id(id_, getattr(answer, kind.removesuffix("s")).id)

    def _note_id(self, id_: str, new_id: str) -> None:
        if new_id != id_:
            self._report.ids[id_] = new_id


NAMES: Final = {
    agent_records_pb2.RECORD_TYPE_AGENT: "agents",
    agent_records_pb2.RECORD_TYPE_IDENTITY: "identities",
    agent_records_pb2.RECORD_TYPE_TOOL: "tools",
    agent_records_pb2.RECORD_TYPE_BLOCK: "blocks",
    agent_records_pb2.RECORD_TYPE_BLOCK_REVISION: "block revisions",
    agent_records_pb2.RECORD_TYPE_CONVERSATION: "conversations",
    agent_records_pb2.RECORD_TYPE_RUN: "runs",
    agent_records_pb2.RECORD_TYPE_STEP: "steps",
    agent_records_pb2.RECORD_TYPE_MESSAGE: "messages",
    agent_records_pb2.RECORD_TYPE_ARCHIVE: "archives",
    agent_records_pb2.RECORD_TYPE_PASSAGE: "passages",
}
"""The rows of the report that count records of these types. Folders and groups are counted by themselves."""
_BATCH_BYTES: Final = 1_000_000
_BATCH_RECORDS: Final = 500
"""ImportAgent takes at most 1,000 records in a request."""
_DEADLINE_SECONDS: Final = 24 * 3600.0

OnRecord = Callable[[AgentRecord], None]

_COUNTED: Final = {
    "tools": "tools", "identities": "identities", "folders": "sources", "files": "files", "blocks": "block",
    "block revisions": "block_history", "agents": "agents", "conversations": "conversations", "messages": "messages",
    "runs": "runs", "steps": "steps", "archives": "archives", "passages": "archival_passages", "groups": "groups",
    "mcp servers": "mcp_server",
}  # fmt: skip
_LEFT_OUT: Final = {
    "jobs": "jobs are records of work that has ended",
    "provider_traces": "traces of model calls are not migrated",
    "llm_batch_items": "batches of model calls are not migrated",
    "sandbox_configs": "settings of sandboxes do not apply to this server",
    "prompts": "stored prompts have no counterpart",
}


class _Batches:
    """The requests of a call. gRPC cancels their reader when the call ends early: no record is lost by that."""

    def __init__(self, requests: AsyncIterator[agents_service_pb2.ImportAgentRequest]) -> None:
        self._requests = requests
        self._reading: asyncio.Task[agents_service_pb2.ImportAgentRequest | None] | None = None

    async def next(self) -> agents_service_pb2.ImportAgentRequest | None:
        """Returns the next one, or None. One that a cancelled reader waited for is passed over."""
        if self._reading is not None:
            await asyncio.wait([self._reading])
        self._reading = asyncio.create_task(self._read())
        return await asyncio.shield(self._reading)

    async def stop(self) -> None:
        """Cancels the read that is in progress."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    async def _read(self) -> agents_service_pb2.ImportAgentRequest | None:
        return await anext(self._requests, None)


class AgentImporter:
    """Imports agents one by one. What several agents share is counted once."""

    def __init__(self, mnemesh: Mnemesh, report: Report, on_record: OnRecord) -> None:
        self._stub = mnemesh.agents.stub
        self._report = report
        self._on_record = on_record
        self._seen: set[tuple[str, str]] = set()
        self.new_ids: set[str] = set()
        """Ids of resources that this run created, where they differ from those in Letta."""
        self.refused_groups: dict[str, str] = {}
        """Why a group was not created, when its last agent had arrived."""

    async def run(self, agent_id: str, records: AsyncIterator[AgentRecord]) -> None:
        """Imports an agent. A repeated call goes on where the last one ended.

        Raises:
            MnemeshError: the mesh refused a record, or is not available.
        """
        repeated = dict.fromkeys(NAMES.values(), 0)
        options = agents_service_pb2.ImportOptions(
            request_id=derive_id("request", "letta", agent_id), keep_ids=True, id_namespace="letta"
        )

        batches = _Batches(self._batches(records, repeated))
        failures: list[Exception] = []

        async def requests() -> AsyncIterator[agents_service_pb2.ImportAgentRequest]:
            try:
                yield agents_service_pb2.ImportAgentRequest(options=options)
                while (batch := await batches.next()) is not None:
                    yield batch
            except Exception as error:
                failures.append(error)
                raise

        try:
            response = await self._stub.ImportAgent(requests(), timeout=_DEADLINE_SECONDS)
            # An agent that an earlier run has sent is answered at once. All its records are counted nevertheless.
            while await batches.next() is not None:
                pass
        except (asyncio.CancelledError, MnemeshError) as error:
            # gRPC cancels a call whose requests cannot be made, and does not say why.
            if failures:
                raise failures[0] from error
            raise
        finally:
            await batches.stop()
        self._count(response, repeated)

    async def _batches(
        self, records: AsyncIterator[AgentRecord], repeated: dict[str, int]
    ) -> AsyncIterator[agents_service_pb2.ImportAgentRequest]:
        batch = agents_service_pb2.ImportAgentRequest()
        size = 0
        async for record in records:
            self._count_repeated(record, repeated)
            self._on_record(record)
            batch.records.append(record)
            size += record.ByteSize()
            if size >= _BATCH_BYTES or len(batch.records) == _BATCH_RECORDS:
                yield batch
                batch, size = agents_service_pb2.ImportAgentRequest(), 0
        yield batch

    def _count_repeated(self, record: AgentRecord, repeated: dict[str, int]) -> None:
        kind = record.WhichOneof("record") or ""
        match kind:
            case "block":
                key = ("blocks", record.block.block.id)
            case "block_revision":
                key = ("block revisions", f"{record.block_revision.block_id}/{record.block_revision.revision}")
            case "passage":
                key = ("passages", record.passage.passage.id)
            case "identity" | "tool" | "archive":
                key = ("identities" if kind == "identity" else f"{kind}s", getattr(record, kind).id)
            case _:
                return
        if key in self._seen:
            repeated[key[0]] += 1
        self._seen.add(key)

    def _count(self, response: agents_service_pb2.ImportAgentResponse, repeated: dict[str, int]) -> None:
        for counts in response.counts:
            name = NAMES.get(counts.type)
            if name is None:
                continue
            # A default conversation is not a row of Letta. What an earlier agent brought along is counted there.
            again = repeated[name] + (1 if name == "conversations" else 0)
            existing = max(0, counts.existing - again)
            created = counts.created - max(0, again - counts.existing)
            row = self._report.counts[name]
            row.existing += existing + (created if response.replayed else 0)
            row.created += 0 if response.replayed else created
        for skipped in response.skipped:
            name = NAMES.get(skipped.type)
            if skipped.type == agent_records_pb2.RECORD_TYPE_AGENT:
                self._report.change("agents", response.agent.id, f"{skipped.id}: {skipped.reason}")
            elif skipped.type == agent_records_pb2.RECORD_TYPE_GROUP:
                self.refused_groups[skipped.id] = skipped.reason
            elif name is not None:
                self._report.skip(name, skipped.id, skipped.reason)
        if not response.replayed:
            self._report.vector_uses.update({item.use: item.passages for item in response.vector_uses})
        self._report.ids.update(response.ids)
        if not response.replayed:
            self.new_ids.update(response.ids.values())

    def has_seen(self, kind: str, id_: str) -> bool:
        """Returns whether a shared resource was part of an imported agent."""
        return (kind, id_) in self._seen


class Progress(Protocol):
    """Receives the progress of a migration."""

    def agent(self, name: str, number: int, total: int, messages: int) -> None:
        """An agent with so many messages begins."""
        ...

    def message(self) -> None:
        """A message was sent."""
        ...


class Migration:
    """One run of a migration. A further run continues it, and creates nothing twice.

    Args:
        database: of Letta.
        mnemesh: the mesh.
        organization_id: of Letta; None is the only one that has data.
        model: for agents whose model the mesh does not have.
        progress: receives the progress.
    """

    def __init__(
        self,
        database: LettaDatabase,
        mnemesh: Mnemesh,
        *,
        organization_id: str | None = None,
        model: str | None = None,
        progress: Progress,
    ) -> None:
        self._database = database
        self._mnemesh = mnemesh
        self._organization_id = organization_id
        self._model = model
        self._progress = progress
        self.report = Report()
        self._importer = AgentImporter(mnemesh, self.report, self._sent)

    async def run(self) -> Report:
        """Migrates everything, and returns the report.

        Raises:
            InvalidArgument: several organizations have data, and none was named.
            FailedPrecondition: the mesh does not have the model of an agent. Nothing was migrated.
        """
        organization = await self._organization()
        self._database.select_organization(organization["id"])
        self.report.counts["organizations"].letta = 1
        self.report.counts["organizations"].existing = 1
        agents = await self._database.all("agents", order=("created_at", "id"))
        target = await self._target()
        self._check_models(agents, target)
        for name, table in _COUNTED.items():
            self.report.counts[name].letta = await self._database.count(table)
        unattached = UnattachedMigration(self._database, self._mnemesh, target, self.report, self._importer.has_seen)
        await unattached.providers()
        await unattached.mcp_servers()
        await unattached.folders()
        for number, row in enumerate(agents, 1):
            await self._agent(row, number, len(agents), target)
        await unattached.tools()
        await unattached.identities()
        await unattached.blocks()
        await unattached.archives()
        await self._groups()
        await self._left_out()
        return self.report

    async def _organization(self) -> Row:
        organizations = await self._database.organizations()
        if self._organization_id is not None:
            organizations = [row for row in organizations if row["id"] == self._organization_id]
            if not organizations:
                message = f"The organization {self._organization_id} has no data in this database."
                raise InvalidArgument(message, field="organization")
        if not organizations:
            raise FailedPrecondition("The database has no data to migrate.")
        if len(organizations) > 1:
            names = ", ".join(f"{row['id']} ({row['name']})" for row in organizations)
            message = f"Several organizations have data. Name one with --organization: {names}."
            raise InvalidArgument(message, field="organization")
        return organizations[0]

    async def _target(self) -> Target:
        tools = self._mnemesh.tools.list(exclude_types=["custom", "mcp", "client"])
        embedders = self._mnemesh.models.embedding_models()
        return Target(
            builtin_tools=frozenset([tool.name async for tool in tools]),
            models=frozenset([model.handle async for model in self._mnemesh.models.list()]),
            embedders=frozenset([embedder.handle async for embedder in embedders]),
            model=self._model,
        )

    def _check_models(self, agents: list[Row], target: Target) -> None:
        if self._model is not None:
            if self._model not in target.models:
                raise InvalidArgument(f"The mesh has no model {self._model}.", field="model")
            return
        unknown = sorted({model_handle(row.get("llm_config") or {}) for row in agents} - target.models)
        if unknown:
            raise FailedPrecondition(
                f"The mesh has no model {', '.join(unknown)}. Configure its provider, or name another model for its"
                " agents with --model."
            )

    async def _agent(self, row: Row, number: int, total: int, target: Target) -> None:
        messages = await self._database.count("messages", agent_id=row["id"])
        self._progress.agent(row["name"] or row["id"], number, total, messages)
        records = AgentRecords(self._database, row, target, self.report)
        try:
            await self._importer.run(row["id"], records.read())
        except InvalidArgument as error:
            self.report.skip("agents", row["id"], error.message)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            self.report.skip("agents", row["id"], f"the agent cannot be read: {error}")

    def _sent(self, record: AgentRecord) -> None:
        if record.HasField("message"):
            self._progress.message()

    async def _groups(self) -> None:
        """A group exists once all its agents do, under a new id."""
        counts = self.report.counts["groups"]
        async for row in self._database.rows("groups"):
            group_id = self.report.ids.get(row["id"])
            if group_id is None:
                reason = self._importer.refused_groups.get(row["id"], "one of its agents was not migrated")
                self.report.skip("groups", row["id"], reason)
            elif group_id in self._importer.new_ids:
                counts.created += 1
            else:
                counts.existing += 1

    async def _left_out(self) -> None:
        for table, reason in _LEFT_OUT.items():
            count = await self._database.count(table)
            if count:
                self.report.change(table.replace("_", " "), "1 row" if count == 1 else f"{count} rows", reason)
