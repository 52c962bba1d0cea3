"""The export and the import of everything of an agent as records."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from typing import Final, TypeVar

from mnemesh_kit.call_context import Principal
from mnemesh_kit.errors import AlreadyExists, FailedPrecondition, InvalidArgument, MnemeshError, NotFound
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.ids import derive_id, is_id
from mnemesh_kit.paging import Page, PageQuery
from mnemesh_kit.secret_variables import SecretVariables, require_valid_variables
from mnemesh_kit.time import Clock

from mnemesh_orchestrator.builtin.schemas import BUILTIN_SCHEMAS
from mnemesh_orchestrator.clients.recall import RecallClient
from mnemesh_orchestrator.clients.recall_records import WindowRecords
from mnemesh_orchestrator.clients.records import RecordParts
from mnemesh_orchestrator.clients.tools import ToolsClient
from mnemesh_orchestrator.llm.embedders import EmbedderDirectory
from mnemesh_orchestrator.llm.model_catalog import ModelCatalog, require_served
from mnemesh_orchestrator.model.agents import Agent, AgentState, AttachedTool, require_continuation, valid_agent_fields
from mnemesh_orchestrator.model.conversations import ConversationFilter, ConversationOrder, default_conversation_id
from mnemesh_orchestrator.model.groups import Group, background_manager
from mnemesh_orchestrator.model.runs import RunFilter, StepFilter
from mnemesh_orchestrator.model.schedules import Schedule, ScheduleFilter
from mnemesh_orchestrator.model.transfers import (
    DEFAULT_TYPES,
    FRAME,
    AgentImport,
    ExportScope,
    IdMap,
    ImportOptions,
    ImportReport,
    Record,
    RecordType,
    Window,
    require_options,
    require_order,
)
from mnemesh_orchestrator.store.agent_imports import AgentImportStore
from mnemesh_orchestrator.store.agents import AgentStore
from mnemesh_orchestrator.store.schedules import ScheduleStore
from mnemesh_orchestrator.store.stores import Stores
from mnemesh_orchestrator.usecases.agents import AgentService
from mnemesh_orchestrator.usecases.groups import GroupService
from mnemesh_orchestrator.usecases.import_batches import ImportBatches, ImportWriter
from mnemesh_orchestrator.usecases.sagas import UNAVAILABLE

T = TypeVar("T")

_PAGE: Final = 200

_NO_TOOL: Final = "The organization has no tool with this name. The agent is imported without it."
_NO_SECRET: Final = "The record has no value of the secret. Set it again."  # noqa: S105 - a sentence
_NO_IDENTITY: Final = "There is no such identity. The agent is imported without it."
_NEW_PARTNER: Final = "The agent has a new partner, in a group with the default settings."
_NO_MEMBER: Final = "{agent_id} does not exist. The group is created when the last of its agents is imported."

ABANDONED_AFTER: Final = timedelta(days=1)
"""An import that is not continued for this time is deleted."""
_SUFFIX: Final = "_copy"


@dataclass(frozen=True, eq=False)
class AgentExportService:
    """Reads the records of agents, from the own stores and from the other services."""

    stores: Stores
    parts: RecordParts
    recall: RecallClient
    clock: Clock

    async def export(
        self, caller: Principal, agent_id: str, types: frozenset[RecordType], *, with_vectors: bool
    ) -> AsyncIterator[Record]:
        """Yields the records of an agent in the order of their types, without the one that ends the stream.

        Args:
            types: The types to export; empty for all but raw traces.
            with_vectors: Whether passages have their vectors.
        """
        agent = await self.stores.agents.get(caller.organization_id, agent_id)
        wanted = (types or DEFAULT_TYPES) - FRAME
        conversations = [window async for window in self._conversations(agent)] if wanted else []
        scope = ExportScope(
            agent_id=agent_id,
            conversation_ids=tuple(
                window.conversation.id for window in conversations if window.conversation.isolated_block_labels
            ),
            memory_scope=agent.memory_scope,
            tool_ids=tuple(tool.tool_id for tool in agent.tools if tool.tool_id is not None),
            with_vectors=with_vectors,
        )
        yield Record(RecordType.HEADER, "", self.clock.now())
        yield Record(RecordType.AGENT, agent.id, agent)
        for kind in sorted(wanted):
            if kind is RecordType.CONVERSATION:
                for window in conversations:
                    yield Record(kind, window.conversation.id, window)
            elif kind in self.parts:
                async for record in self.parts[kind].export(kind, scope):
                    yield record
            else:
                async for record in self._export_own(kind, agent):
                    yield record

    async def _export_own(self, kind: RecordType, agent: Agent) -> AsyncIterator[Record]:
        """Yields the records of a type that the orchestrator stores."""
        organization_id, stores = agent.organization_id, self.stores
        match kind:
            case RecordType.IDENTITY:
                for identity_id in agent.identity_ids:
                    try:
                        identity = await stores.identities.get(organization_id, identity_id)
                    except NotFound:
                        continue  # deleted meanwhile
                    yield Record(kind, identity_id, identity)
            case RecordType.RUN:
                filter_ = RunFilter(agent_ids=(agent.id,))
                async for run in _every(lambda page: stores.runs.list(organization_id, filter_, page)):
                    if run.status.ended:
                        yield Record(kind, run.id, run)
            case RecordType.STEP:
                of_agent = StepFilter(agent_id=agent.id)
                async for step in _every(lambda page: stores.steps.list(organization_id, of_agent, page)):
                    yield Record(kind, step.id, step)
            case RecordType.GROUP:
                groups = await stores.groups.of_agents(organization_id, [agent.id])
                for group_id in groups.get(agent.id, ()):
                    yield Record(kind, group_id, await stores.groups.get(organization_id, group_id))
            case RecordType.SCHEDULE:
                own = ScheduleFilter(agent_id=agent.id)
                listed = _every(lambda page: stores.schedules.list(organization_id, own, page))
                for schedule in [each async for each in listed if not each.has_ended]:
                    yield Record(kind, schedule.id, schedule)

    async def _conversations(self, agent: Agent) -> AsyncIterator[Window]:
        """Yields the conversations of an agent with the messages of their windows, the oldest first."""
        filter_, order = ConversationFilter(agent_id=agent.id), ConversationOrder.CREATED_AT
        query = PageQuery(_PAGE, ascending=True)
        while True:
            page = await self.stores.conversations.list(agent.organization_id, filter_, order, query)
            windows = await self.recall.window_ids([item.id for item in page.items])
            for item in page.items:
                yield Window(item, windows.get(item.id, ()))
            if page.next_cursor is None:
                return
            query = PageQuery(_PAGE, ascending=True, cursor=page.next_cursor)


async def _every(read: Callable[[PageQuery], Awaitable[Page[T]]]) -> AsyncIterator[T]:
    """Yields the items of all pages, the oldest first."""
    query = PageQuery(_PAGE, ascending=True)
    while True:
        page = await read(query)
        for item in page.items:
            yield item
        if page.next_cursor is None:
            return
        query = PageQuery(_PAGE, ascending=True, cursor=page.next_cursor)


@dataclass(frozen=True, eq=False)
class ImportEnds:
    """Ends imports. Every step can be repeated."""

    store: AgentImportStore
    agents: AgentStore
    writer: ImportWriter
    tools: ToolsClient
    service: AgentService
    groups: GroupService
    schedules: ScheduleStore
    secrets: SecretVariables

    async def agent(self, started: AgentImport) -> Agent:
        """Returns the agent of an import that has ended. Raises NotFound if it was deleted since."""
        return await self.agents.get(started.organization_id, started.agent_id)

    async def finish(self, batches: ImportBatches, given: Record) -> tuple[Agent, ImportReport]:
        """Makes the agent visible, and stores the report."""
        report = batches.report
        agent = await self._complete(batches, given)
        wants_partner, agent = bool(agent.enable_sleeptime), replace(agent, enable_sleeptime=None)
        await self.writer.restore_default_window(batches)
        await self.store.activate(batches.started, replace(agent, state=AgentState.ACTIVE))
        report.of(RecordType.AGENT).created = 1
        if wants_partner:
            key = RequestKey(agent.organization_id, "UpdateAgent", batches.request_id("partner"), "")
            changes, count = {"enable_sleeptime": True}, _count_of_turns(batches)
            await self.service.update(batches.caller, key, agent.id, changes, sleeptime_turns_counter=count)
            report.note(given, agent.id, _NEW_PARTNER)
        if batches.groups:
            report.of(RecordType.GROUP).existing = 0
            for record in batches.groups:
                await self._create_group(batches, record, wants_partner=wants_partner)
        if batches.schedules:
            report.of(RecordType.SCHEDULE).existing = 0
            for record in batches.schedules:
                await self._create_schedule(batches, record)
        report.ids = batches.ids.changed
        await self.store.end(batches.started, report)
        return await self.agent(batches.started), report

    async def _complete(self, batches: ImportBatches, given: Record) -> Agent:
        """Returns the agent with its tools, identities and secrets under the ids of this import."""
        agent, report = batches.agent, batches.report
        for secret in agent.secrets:
            if secret.name not in batches.options.secrets:
                report.note(given, secret.name, _NO_SECRET)
        return replace(
            agent,
            tools=await self._find_attached_tools(batches, given),
            identity_ids=await self._identities(batches, given),
            secrets=self.secrets.sealed(agent.id, dict(sorted(batches.options.secrets.items()))),
            holds_folders=batches.report.counts.get(int(RecordType.FOLDER)) is not None,
        )

    async def _find_attached_tools(self, batches: ImportBatches, given: Record) -> tuple[AttachedTool, ...]:
        tools = batches.agent.tools
        names = [tool.name for tool in tools if tool.tool_id is not None or tool.name not in BUILTIN_SCHEMAS]
        stored = {tool.name: tool.id for tool in await self.tools.definitions((), names)} if names else {}
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
                await self.agents.get(organization_id, agent_id)
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
            created = await self.groups.create(batches.caller, key, draft)
        except UNAVAILABLE:
            raise
        except MnemeshError as error:
            batches.report.skip(record, error.message)
            return
        ids.known[record.id] = created.id
        batches.report.of(RecordType.GROUP).created += 1

    async def _create_schedule(self, batches: ImportBatches, record: Record) -> None:
        """Creates a schedule that is paused, so that none starts runs in two meshes."""
        given: Schedule = record.body
        ids = batches.ids
        imported = replace(
            given,
            id=ids.of("schedule", given.id),
            organization_id=batches.agent.organization_id,
            subject_id=batches.caller.subject_id,
            agent_id=batches.agent.id,
            conversation_id=ids.of("conv", given.conversation_id),
            last_run_id=ids.optional("run", given.last_run_id),
            paused=True,
            next_run_at=None,
        )
        try:
            await self.schedules.create(None, imported)
        except (FailedPrecondition, NotFound) as error:
            batches.report.skip(record, error.message)
            return
        batches.report.of(RecordType.SCHEDULE).created += 1


def _count_of_turns(batches: ImportBatches) -> int:
    """Returns the count of turns of the sleeptime group that the exported agent managed; 0 if it had none."""
    groups: list[Group] = [record.body for record in batches.groups]
    former_id = batches.started.former_id
    return next((group.turns_counter for group in groups if background_manager(group) == former_id), 0)


@dataclass(frozen=True, eq=False)
class AgentImportService:
    """Creates agents from records. Every step can be repeated, so that an interrupted import is continued."""

    store: AgentImportStore
    writer: ImportWriter
    ends: ImportEnds
    windows: WindowRecords
    models: ModelCatalog
    embedders: EmbedderDirectory
    clock: Clock

    async def import_agent(
        self, caller: Principal, options: ImportOptions, fingerprint: str, records: AsyncIterator[Record]
    ) -> tuple[Agent, ImportReport, bool]:
        """Stores the records as they arrive. Returns the agent, the report, and whether that is of an earlier call.

        Args:
            fingerprint: A hash of the options, by which a repeated call is compared.
            records: The records in order, with their positions.

        Raises:
            RequestIdReused: The request_id was used with other options, or for another agent.
            Aborted: A newer call continues this import.
            Unavailable: A service cannot be reached. The call is repeated later.
        """
        require_options(options)
        require_valid_variables(options.secrets, "options.secrets")
        given = await self._head(records)
        fingerprint = f"{fingerprint}/{given.id}"
        started = await self.store.resume(caller.organization_id, options.request_id, fingerprint)
        if started is not None and started.report is not None:
            return await self.ends.agent(started), started.report, True
        with _named(given):
            draft = await self._valid(caller, options, given.body)
            started = started or await self._begin(caller, options, given.id, draft, fingerprint)
        ids = IdMap(_namespace(caller, options), kept=started.kept_ids, known={})
        ids.set_agent(started.former_id, started.agent_id)
        batches = ImportBatches(self.writer, caller, options, started, _with_id(draft, started.agent_id), ids)
        await self._read(records, batches)
        await batches.end()
        with _named(given):
            return *await self.ends.finish(batches, given), False

    async def abandon_late(self) -> None:
        """Marks the agents of abandoned imports for deletion."""
        await self.store.abandon(self.clock.now() - ABANDONED_AFTER)

    async def _head(self, records: AsyncIterator[Record]) -> Record:
        """Reads the header and the record of the agent. Raises InvalidArgument."""
        for kind in (RecordType.HEADER, RecordType.AGENT):
            record = await anext(records, None)
            if record is None or record.type is not kind:
                name, index = kind.name.lower(), str(kind.value)
                raise InvalidArgument(f"Record {index} must be the {name}.", field=f"records.{name}", record=index)
        assert record is not None  # noqa: S101 - the loop raises otherwise
        return record

    async def _read(self, records: AsyncIterator[Record], batches: ImportBatches) -> None:
        before, count = RecordType.AGENT, 2
        async for record in records:
            require_order(before, record)
            before = record.type
            if record.type is RecordType.END:
                if record.body != count:
                    raise InvalidArgument(
                        f"The stream has {count} records, not {record.body}.",
                        field="end.record_count",
                        record=str(record.index),
                    )
                return
            count += 1
            await batches.add(record)
        raise InvalidArgument(
            "The stream ended without the record `end`. Repeat the call with the same request_id.", field="records"
        )

    async def _begin(
        self, caller: Principal, options: ImportOptions, former_id: str, draft: Agent, fingerprint: str
    ) -> AgentImport:
        """Stores the import and its invisible agent, under the id of the record if that is wanted and free."""
        derived = derive_id("agent", _namespace(caller, options), former_id)
        candidates = [(former_id, True)] if options.keep_ids and is_id(former_id, "agent") else []
        for agent_id, kept in (*candidates, (derived, False)):
            if not await self.store.is_free(agent_id) or not await self.windows.is_free(agent_id):
                continue
            started = AgentImport(
                caller.organization_id, options.request_id, fingerprint, agent_id, former_id, kept_ids=kept
            )
            bare = replace(
                _with_id(draft, agent_id), tags=(), tools=(), identity_ids=(), secrets=(), state=AgentState.IMPORTING
            )
            with suppress(AlreadyExists):
                return await self.store.begin(started, bare)
        raise AlreadyExists(
            "The agent was imported before. Use another id_namespace or request_id to import it again.",
            field="options.request_id",
            resource_id=derived,
        )

    async def _valid(self, caller: Principal, options: ImportOptions, given: Agent) -> Agent:
        """Returns the agent of a record with the values of the options. Raises InvalidArgument, ModelUnknown."""
        name = options.name or given.name or "agent"
        model = options.model or given.model or await self.models.default_handle(caller.organization_id)
        require_served(await self.models.of(caller.organization_id), model, "agent.model")
        embedder = options.embedder or given.embedder
        if options.embedder is not None:
            await self.embedders.require(embedder)
        project_id = options.project_id or given.provenance.project_id
        origin = given.provenance
        agent = replace(
            given,
            organization_id=caller.organization_id,
            name=f"{name}{_SUFFIX}" if options.append_copy_suffix else name,
            model=model,
            embedder=embedder,
            continuation_message=require_continuation(given.type, given.continuation_message),
            created_for_agent_id=None,
            provenance=replace(
                origin,
                created_by_id=origin.created_by_id or caller.subject_id,
                last_updated_by_id=origin.last_updated_by_id or caller.subject_id,
                project_id=project_id,
            ),
        )
        values = {item.name: getattr(agent, item.name) for item in fields(agent) if item.name != "identity_ids"}
        return replace(agent, **valid_agent_fields(values))


def _namespace(caller: Principal, options: ImportOptions) -> str:
    """Returns the namespace of derived ids, which organizations do not share."""
    return f"{caller.organization_id}/{options.id_namespace or options.request_id}"


def _with_id(agent: Agent, agent_id: str) -> Agent:
    return replace(agent, id=agent_id, default_conversation_id=default_conversation_id(agent_id))


@contextmanager
def _named(record: Record) -> Iterator[None]:
    """Adds the record to errors that name a field of it."""
    try:
        yield
    except MnemeshError as error:
        if error.metadata.get("field", "").startswith("agent."):
            error.metadata.setdefault("record", str(record.index))
        raise
