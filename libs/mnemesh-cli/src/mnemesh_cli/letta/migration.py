"""Migrates one organization of a Letta database into the organization of the caller."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Final, Protocol

from mnemesh.agents.v1 import agent_records_pb2, agents_service_pb2
from mnemesh.agents.v1.agent_records_pb2 import AgentRecord
from mnemesh_cli.letta.database import LettaDatabase
from mnemesh_cli.letta.records import AgentRecords, Target
from mnemesh_cli.letta.report import Report
from mnemesh_cli.letta.unattached import FolderMigration, UnattachedMigration
from mnemesh_client.letta_files.agents import model_handle
from mnemesh_client.letta_files.values import Row
from mnemesh_client.mnemesh import Mnemesh
from mnemesh_kit.errors import FailedPrecondition, InvalidArgument, MnemeshError
from mnemesh_kit.ids import derive_id

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
            # A default conversation is no row of Letta. What an earlier agent brought along is counted there.
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
        await FolderMigration(self._database, self._mnemesh, target, self.report).run()
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
