"""The import of an agent from records."""

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from datetime import timedelta
from typing import Final

from mnemesh_kit.clock import Clock
from mnemesh_kit.errors import AlreadyExists, InvalidArgument, MnemeshError
from mnemesh_kit.ids import derive_id, is_id
from mnemesh_kit.principal import Principal
from mnemesh_kit.secret_variables import require_valid_variables

from mnemesh_orchestrator.llm.embedders import EmbedderDirectory
from mnemesh_orchestrator.llm.model_catalog import ModelCatalog
from mnemesh_orchestrator.model.agent_types import require_continuation
from mnemesh_orchestrator.model.agents import Agent, AgentState, valid_agent_fields
from mnemesh_orchestrator.model.conversations import default_conversation_id
from mnemesh_orchestrator.model.transfers import (
    AgentImport,
    IdMap,
    ImportOptions,
    ImportReport,
    Record,
    RecordType,
    require_options,
    require_order,
)
from mnemesh_orchestrator.ports.records import ImportedWindows
from mnemesh_orchestrator.store.base.agent_imports import AgentImportStore
from mnemesh_orchestrator.usecases.import_batches import ImportBatches, ImportWriter
from mnemesh_orchestrator.usecases.import_ends import ImportEnds

ABANDONED_AFTER: Final = timedelta(days=1)
"""An import that is not continued for this time is deleted."""
_SUFFIX: Final = "_copy"


class AgentImportService:
    """Creates agents from records. Every step can be repeated, so that an interrupted import is continued."""

    def __init__(
        self,
        store: AgentImportStore,
        writer: ImportWriter,
        ends: ImportEnds,
        windows: ImportedWindows,
        models: ModelCatalog,
        embedders: EmbedderDirectory,
        clock: Clock,
    ) -> None:
        self._store = store
        self._writer = writer
        self._ends = ends
        self._windows = windows
        self._models = models
        self._embedders = embedders
        self._clock = clock

    async def import_agent(
        self, caller: Principal, options: ImportOptions, fingerprint: str, records: AsyncIterator[Record]
    ) -> tuple[Agent, ImportReport, bool]:
        """Stores the records as they arrive. Returns the agent, the report, and whether that is of an earlier call.

        Args:
            caller: The caller.
            options: The options.
            fingerprint: A hash of the options, by which a repeated call is compared.
            records: The records in order, with their positions.

        Raises:
            InvalidArgument: A record breaks a rule, or is not in order. Metadata: record, field.
            RequestIdReused: The request_id was used with other options, or for another agent.
            Aborted: A newer call continues this import.
            Unavailable: A service cannot be reached. The call is repeated later.
        """
        require_options(options)
        require_valid_variables(options.secrets, "options.secrets")
        given = await self._head(records)
        fingerprint = f"{fingerprint}/{given.id}"
        started = await self._store.resume(caller.organization_id, options.request_id, fingerprint)
        if started is not None and started.report is not None:
            return await self._ends.agent(started), started.report, True
        with _named(given):
            draft = await self._valid(caller, options, given.body)
            started = started or await self._begin(caller, options, given.id, draft, fingerprint)
        ids = IdMap(_namespace(caller, options), kept=started.kept_ids, known={})
        ids.set_agent(started.former_id, started.agent_id)
        batches = ImportBatches(self._writer, caller, options, started, _with_id(draft, started.agent_id), ids)
        await self._read(records, batches)
        await batches.end()
        with _named(given):
            return *await self._ends.finish(batches, given), False

    async def abandon_late(self) -> None:
        """Marks the agents of abandoned imports for deletion."""
        await self._store.abandon(self._clock.now() - ABANDONED_AFTER)

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
            if not await self._store.is_free(agent_id) or not await self._windows.is_free(agent_id):
                continue
            started = AgentImport(
                caller.organization_id, options.request_id, fingerprint, agent_id, former_id, kept_ids=kept
            )
            bare = replace(
                _with_id(draft, agent_id), tags=(), tools=(), identity_ids=(), secrets=(), state=AgentState.IMPORTING
            )
            with suppress(AlreadyExists):
                return await self._store.begin(started, bare)
        raise AlreadyExists(
            "The agent was imported before. Use another id_namespace or request_id to import it again.",
            field="options.request_id",
            resource_id=derived,
        )

    async def _valid(self, caller: Principal, options: ImportOptions, given: Agent) -> Agent:
        """Returns the agent of a record with the values of the options. Raises InvalidArgument, ModelUnknown."""
        name = options.name or given.name or "agent"
        model = options.model or given.model or await self._models.default_handle(caller.organization_id)
        await self._models.resolve(caller.organization_id, model)
        embedder = options.embedder or given.embedder
        if options.embedder is not None:
            await self._embedders.require(embedder)
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
