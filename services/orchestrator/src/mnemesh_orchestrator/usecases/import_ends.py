"""The end of an import: the agent becomes visible, with its tools, its partner and its groups."""

from dataclasses import replace
from typing import Final

from mnemesh_kit.errors import MnemeshError, NotFound
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.secret_variables import SecretVariables

from mnemesh_orchestrator.builtin.schemas import BUILTIN_SCHEMAS
from mnemesh_orchestrator.model.agents import Agent, AgentState, AttachedTool
from mnemesh_orchestrator.model.group_changes import background_manager
from mnemesh_orchestrator.model.groups import Group
from mnemesh_orchestrator.model.transfers import AgentImport, ImportReport, Record, RecordType
from mnemesh_orchestrator.ports.tools import ToolsPort
from mnemesh_orchestrator.store.base import AgentStore
from mnemesh_orchestrator.store.base.agent_imports import AgentImportStore
from mnemesh_orchestrator.usecases.agents import AgentService
from mnemesh_orchestrator.usecases.groups import GroupService
from mnemesh_orchestrator.usecases.import_batches import ImportBatches, ImportWriter
from mnemesh_orchestrator.usecases.reconciliation import UNAVAILABLE

_NO_TOOL: Final = "The organization has no tool with this name. The agent is imported without it."
_NO_SECRET: Final = "The record has no value of the secret. Set it again."  # noqa: S105 - a sentence
_NO_IDENTITY: Final = "There is no such identity. The agent is imported without it."
_NEW_PARTNER: Final = "The agent has a new partner, in a group with the default settings."
_NO_MEMBER: Final = "{agent_id} does not exist. The group is created when the last of its agents is imported."


class ImportEnds:
    """Ends imports. Every step can be repeated."""

    def __init__(
        self,
        store: AgentImportStore,
        agents: AgentStore,
        writer: ImportWriter,
        tools: ToolsPort,
        service: AgentService,
        groups: GroupService,
        secrets: SecretVariables,
    ) -> None:
        self._store = store
        self._agents = agents
        self._writer = writer
        self._tools = tools
        self._service = service
        self._groups = groups
        self._secrets = secrets

    async def agent(self, started: AgentImport) -> Agent:
        """Returns the agent of an import that has ended. Raises NotFound if it was deleted since."""
        return await self._agents.get(started.organization_id, started.agent_id)

    async def finish(self, batches: ImportBatches, given: Record) -> tuple[Agent, ImportReport]:
        """Makes the agent visible, and stores the report."""
        report = batches.report
        agent = await self._complete(batches, given)
        wants_partner, agent = bool(agent.enable_sleeptime), replace(agent, enable_sleeptime=None)
        await self._writer.restore_default_window(batches)
        await self._store.activate(batches.started, replace(agent, state=AgentState.ACTIVE))
        report.of(RecordType.AGENT).created = 1
        if wants_partner:
            key = RequestKey(agent.organization_id, "UpdateAgent", batches.request_id("partner"), "")
            changes, count = {"enable_sleeptime": True}, _count_of_turns(batches)
            await self._service.update(batches.caller, key, agent.id, changes, sleeptime_turns_counter=count)
            report.note(given, agent.id, _NEW_PARTNER)
        if batches.groups:
            report.of(RecordType.GROUP).existing = 0
            for record in batches.groups:
                await self._create_group(batches, record, wants_partner=wants_partner)
        report.ids = batches.ids.changed
        await self._store.end(batches.started, report)
        return await self.agent(batches.started), report

    async def _complete(self, batches: ImportBatches, given: Record) -> Agent:
        """Returns the agent with its tools, identities and secrets under the ids of this import."""
        agent, report = batches.agent, batches.report
        for secret in agent.secrets:
            if secret.name not in batches.options.secrets:
                report.note(given, secret.name, _NO_SECRET)
        return replace(
            agent,
            tools=await self._attached(batches, given),
            identity_ids=await self._identities(batches, given),
            secrets=self._secrets.sealed(agent.id, dict(sorted(batches.options.secrets.items()))),
            holds_folders=batches.report.counts.get(int(RecordType.FOLDER)) is not None,
        )

    async def _attached(self, batches: ImportBatches, given: Record) -> tuple[AttachedTool, ...]:
        tools = batches.agent.tools
        names = [tool.name for tool in tools if tool.tool_id is not None or tool.name not in BUILTIN_SCHEMAS]
        stored = {tool.name: tool.id for tool in await self._tools.definitions((), names)} if names else {}
        attached = []
        for tool in tools:
            if tool.name in stored:
                attached.append(replace(tool, tool_id=stored[tool.name]))
            elif tool.name in BUILTIN_SCHEMAS:
                attached.append(replace(tool, tool_id=None))
            else:
                batches.report.note(given, tool.name, _NO_TOOL)
        return tuple(attached)

    async def _identities(self, batches: ImportBatches, given: Record) -> tuple[str, ...]:
        known: list[str] = []
        for identity_id in batches.agent.identity_ids:
            if identity_id in batches.ids.known:
                known.append(batches.ids.known[identity_id])
            else:
                batches.report.note(given, identity_id, _NO_IDENTITY)
        return tuple(dict.fromkeys(known))

    async def _create_group(self, batches: ImportBatches, record: Record, *, wants_partner: bool) -> None:
        """Creates a group if all its agents exist. Groups of one namespace are created once."""
        given: Group = record.body
        if wants_partner and given.manager.manager_agent_id == batches.started.former_id:
            batches.report.skip(record, _NEW_PARTNER)
            return
        ids, organization_id = batches.ids, batches.agent.organization_id
        manager_id = ids.optional("agent", given.manager.manager_agent_id)
        members = tuple(ids.of("agent", agent_id) for agent_id in given.agent_ids)
        for agent_id in filter(None, (*members, manager_id)):
            try:
                await self._agents.get(organization_id, agent_id)
            except NotFound:
                batches.report.skip(record, _NO_MEMBER.format(agent_id=agent_id))
                return
        draft = replace(
            given,
            agent_ids=members,
            manager=replace(given.manager, manager_agent_id=manager_id),
            shared_block_ids=tuple(ids.of("block", block_id) for block_id in given.shared_block_ids),
            attachments=(),
        )
        namespace = batches.options.id_namespace or batches.options.request_id
        key = RequestKey(organization_id, "CreateGroup", f"import/{namespace}/{record.id}"[:200], "")
        try:
            created = await self._groups.create(batches.caller, key, draft)
        except UNAVAILABLE:
            raise
        except MnemeshError as error:
            batches.report.skip(record, error.message)
            return
        ids.known[record.id] = created.id
        batches.report.of(RecordType.GROUP).created += 1


def _count_of_turns(batches: ImportBatches) -> int:
    """Returns the count of turns of the sleeptime group that the exported agent managed; 0 if it had none."""
    groups: list[Group] = [record.body for record in batches.groups]
    former_id = batches.started.former_id
    return next((group.turns_counter for group in groups if background_manager(group) == former_id), 0)
