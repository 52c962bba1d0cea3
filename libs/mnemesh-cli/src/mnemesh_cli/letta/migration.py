"""Migrates one organization of a Letta database into the organization of the caller."""

from __future__ import annotations

from typing import Final, Protocol

from mnemesh.agents.v1.agent_records_pb2 import AgentRecord
from mnemesh_cli.letta.agent_import import AgentImporter
from mnemesh_cli.letta.database import LettaDatabase
from mnemesh_cli.letta.folders import FolderMigration
from mnemesh_cli.letta.records import AgentRecords, Target
from mnemesh_cli.letta.report import Report
from mnemesh_cli.letta.unattached import UnattachedMigration
from mnemesh_client.letta_files.agents import model_handle
from mnemesh_client.letta_files.values import Row
from mnemesh_client.mnemesh import Mnemesh
from mnemesh_kit.errors import FailedPrecondition, InvalidArgument

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
