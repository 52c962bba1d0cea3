"""The batches of an import: records of one type are collected, then stored together."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

from mnemesh_kit.call_context import Principal
from mnemesh_kit.errors import DeadlineExceeded, MnemeshError, Unavailable
from mnemesh_kit.paging import PageQuery

from mnemesh_orchestrator.clients.recall_records import WindowRecords
from mnemesh_orchestrator.clients.records import RecordParts
from mnemesh_orchestrator.model.agents import Agent
from mnemesh_orchestrator.model.conversations import Conversation
from mnemesh_orchestrator.model.identities import Identity, IdentityFilter, IdentityOrder
from mnemesh_orchestrator.model.runs import Run, Step
from mnemesh_orchestrator.model.transfers import (
    SHARED,
    AgentImport,
    IdMap,
    ImportOptions,
    ImportReport,
    ImportTarget,
    Outcome,
    Record,
    RecordType,
    Window,
)
from mnemesh_orchestrator.store.agent_imports import AgentImportStore
from mnemesh_orchestrator.store.identities import IdentityStore
from mnemesh_orchestrator.usecases.agent_parts import AgentParts
from mnemesh_orchestrator.usecases.context_windows import FirstMessageFactory

_MAX_RECORDS: Final = 200
_MAX_BYTES: Final = 1_000_000
_UNENDED: Final = "The run had not ended when it was exported."
_NO_RUN: Final = "The run of the step was not imported."
_NO_MESSAGES: Final = "{count} messages of the window are not among the records. The window has the others."


class ImportBatches:
    """The records of one import that are not stored yet, and what is known of those that are."""

    def __init__(
        self,
        writer: "ImportWriter",
        caller: Principal,
        options: ImportOptions,
        started: AgentImport,
        agent: Agent,
        ids: IdMap,
    ) -> None:
        self._writer = writer
        self.caller = caller
        self.options = options
        self.started = started
        self.agent = agent
        self.ids = ids
        self.report = ImportReport(started.agent_id, started.kept_ids)
        self.windows: list[Record] = []
        """The records of conversations whose windows are not created yet. Their bodies have the new ids."""
        self.block_records: list[Record] = []
        """The records of new blocks, of whose last revision there may be no record."""
        self.has_default_conversation = False
        self.groups: list[Record] = []
        self.schedules: list[Record] = []
        self._batch: list[Record] = []
        self._bytes = 0

    async def add(self, record: Record) -> None:
        """Adds a record, and stores those before it once they are a batch."""
        if not self.options.imports(record.type):
            return
        is_other = bool(self._batch) and self._batch[0].type is not record.type
        is_full = len(self._batch) == _MAX_RECORDS or self._bytes + record.size > _MAX_BYTES
        if self._batch and (is_other or is_full):
            await self._flush()
        self._batch.append(record)
        self._bytes += record.size

    async def end(self) -> None:
        """Stores what is left, and creates the windows."""
        await self._flush()
        await self._writer.complete(self, RecordType.END)

    async def _flush(self) -> None:
        batch, self._batch, self._bytes = self._batch, [], 0
        if not batch:
            return
        kind = batch[0].type
        with _named(batch):
            await self._writer.complete(self, kind)
            outcome = await self._writer.write(self, kind, batch)
        self.report.add(kind, batch, outcome)

    def request_id(self, *parts: object) -> str:
        """Returns the idempotency key of an effect of this import."""
        return "/".join(map(str, (self.agent.id, "import", *parts)))

    @property
    def target(self) -> ImportTarget:
        """The agent, for the adapters."""
        return ImportTarget(self.agent.id, self.ids, self.options, self.started.planned)


@dataclass(frozen=True, eq=False)
class ImportWriter:
    """Stores batches of records of one type, in the own stores and in the other services."""

    store: AgentImportStore
    identities: IdentityStore
    parts: RecordParts
    windows: WindowRecords
    agent_parts: AgentParts

    async def write(self, batches: ImportBatches, kind: RecordType, records: Sequence[Record]) -> Outcome:
        """Stores a batch. A repeat stores nothing twice, and returns the same outcome."""
        if kind in self.parts:
            return await self._write_part(batches, kind, records)
        match kind:
            case RecordType.IDENTITY:
                return await self._write_identities(batches, records)
            case RecordType.CONVERSATION:
                return await self._write_conversations(batches, records)
            case RecordType.RUN:
                return await self._write_runs(batches, records)
            case RecordType.STEP:
                return await self._write_steps(batches, records)
            case _:
                late = batches.groups if kind is RecordType.GROUP else batches.schedules
                late += records
                return Outcome(existing=len(records))  # counted at the end

    async def complete(self, batches: ImportBatches, kind: RecordType) -> None:
        """Ends what earlier types began, before records of `kind` are stored."""
        if batches.block_records and kind > RecordType.BLOCK_REVISION:
            part = self.parts[RecordType.BLOCK_REVISION]
            last = [replace(record, type=RecordType.BLOCK_REVISION) for record in batches.block_records]
            await part.restore(batches.request_id("revisions"), batches.target, last, {})
            batches.block_records = []
        if kind > RecordType.MESSAGE:
            windows, batches.windows = batches.windows, []
            for record in windows:
                await self._restore_window(batches, record)

    async def _write_part(self, batches: ImportBatches, kind: RecordType, records: Sequence[Record]) -> Outcome:
        part, existing = self.parts[kind], dict[str, str]()
        if kind in SHARED:
            found = await part.find(batches.target, records)
            existing = {id_: found[id_] for id_ in found if id_ not in batches.started.planned}
            await self._plan(batches, [record.id for record in records if record.id not in existing])
            batches.ids.known.update(existing)
        request_id = batches.request_id(records[0].index)
        outcome = await part.restore(request_id, batches.target, records, existing)
        if kind is RecordType.BLOCK:
            batches.block_records += [record for record in records if record.id not in existing]
        return outcome

    async def _plan(self, batches: ImportBatches, record_ids: Sequence[str]) -> None:
        """Notes what this import creates, so that a repeat does not take it for something that existed."""
        if not batches.started.planned.issuperset(record_ids):
            batches.started = await self.store.plan(batches.started, record_ids)

    async def _write_identities(self, batches: ImportBatches, records: Sequence[Record]) -> Outcome:
        existing: Mapping[str, str] = {}
        for record in records:
            given: Identity = record.body
            if (known := await self._identity(batches, given)) is not None and record.id not in batches.started.planned:
                existing = {**existing, record.id: known}
        await self._plan(batches, [record.id for record in records if record.id not in existing])
        for record in records:
            identity_id = existing.get(record.id)
            if identity_id is None:
                new = replace(
                    record.body,
                    id=batches.ids.of("identity", record.id),
                    organization_id=batches.caller.organization_id,
                )
                identity_id = (await self.identities.create(None, new, (), merges=True))[0].id
            batches.ids.known[record.id] = identity_id
        return Outcome(existing=len(existing))

    async def _identity(self, batches: ImportBatches, given: Identity) -> str | None:
        """Returns the id of the organization's identity with the same key and project, or None."""
        filter_ = IdentityFilter(identifier_key=given.identifier_key)
        page = PageQuery(_MAX_RECORDS, ascending=True)
        found = await self.identities.list(batches.caller.organization_id, filter_, IdentityOrder.CREATED_AT, page)
        project_id = given.provenance.project_id
        return next((item.id for item in found.items if item.provenance.project_id == project_id), None)

    async def _write_conversations(self, batches: ImportBatches, records: Sequence[Record]) -> Outcome:
        ids = batches.ids
        windows = [replace(record, body=_window(record.body, batches)) for record in records]
        for record in records:
            if record.body.conversation.is_default:
                ids.known[record.id] = batches.agent.default_conversation_id
                batches.has_default_conversation = True
        await self.store.put_conversations(batches.started, [record.body.conversation for record in windows])
        batches.windows += windows
        return Outcome()

    async def _write_runs(self, batches: ImportBatches, records: Sequence[Record]) -> Outcome:
        ended = [record for record in records if record.body.status.ended]
        await self.store.put_runs(batches.started, [_run(record.body, batches) for record in ended])
        return Outcome(skipped=tuple((record, _UNENDED) for record in records if record not in ended))

    async def _write_steps(self, batches: ImportBatches, records: Sequence[Record]) -> Outcome:
        steps = {record.id: _step(record.body, batches) for record in records}
        without_run = await self.store.put_steps(batches.started, list(steps.values()))
        return Outcome(skipped=tuple((item, _NO_RUN) for item in records if steps[item.id].id in without_run))

    async def restore_default_window(self, batches: ImportBatches) -> None:
        """Creates the window of the default conversation, if there was no record of it."""
        if batches.has_default_conversation:
            return
        agent = batches.agent
        default = Conversation(
            id=agent.default_conversation_id, organization_id=agent.organization_id, agent_id=agent.id, is_default=True,
            created_at=agent.created_at, updated_at=agent.updated_at,
        )  # fmt: skip
        await self._restore_window(batches, Record(RecordType.CONVERSATION, default.id, Window(default)))

    async def _restore_window(self, batches: ImportBatches, record: Record) -> None:
        conversation: Conversation = record.body.conversation
        message_ids = record.body.message_ids if batches.options.imports(RecordType.MESSAGE) else ()
        first = FirstMessageFactory(batches.agent, conversation.id, "0", conversation.created_at)
        system = first.system(await self.agent_parts.system_text(batches.agent))
        request_id = batches.request_id("window", conversation.id)
        missing = await self.windows.restore(request_id, batches.agent.id, conversation.id, message_ids, system)
        if missing:
            batches.report.note(record, record.id, _NO_MESSAGES.format(count=missing))


def _window(given: Window, batches: ImportBatches) -> Window:
    """Returns a conversation with its window under the ids of this import."""
    ids, conversation = batches.ids, given.conversation
    conversation_id = (
        batches.agent.default_conversation_id if conversation.is_default else ids.of("conv", conversation.id)
    )
    imported = replace(
        conversation,
        id=conversation_id,
        organization_id=batches.caller.organization_id,
        agent_id=batches.agent.id,
        forked_from_id=ids.optional("conv", conversation.forked_from_id),
        isolated_block_ids=tuple(ids.of("block", block_id) for block_id in conversation.isolated_block_ids),
        created_by_id=batches.caller.subject_id,
    )
    return Window(imported, tuple(dict.fromkeys(ids.of("message", id_) for id_ in given.message_ids)))


def _run(run: Run, batches: ImportBatches) -> Run:
    ids = batches.ids
    lineage = replace(run.lineage, parent_run_id=ids.optional("run", run.lineage.parent_run_id))
    return replace(
        run,
        id=ids.of("run", run.id),
        organization_id=batches.caller.organization_id,
        subject_id=batches.caller.subject_id,
        agent_id=batches.agent.id,
        conversation_id=ids.of("conv", run.conversation_id),
        group_id=None if run.group_id is None else ids.other(run.group_id),
        lineage=lineage,
        retried_run_ids=tuple(ids.of("run", run_id) for run_id in run.retried_run_ids),
        child_run_ids=tuple(ids.of("run", run_id) for run_id in run.child_run_ids),
        completed_at=run.completed_at or run.updated_at,
    )


def _step(step: Step, batches: ImportBatches) -> Step:
    ids = batches.ids
    return replace(
        step,
        id=ids.of("step", step.id),
        run_id=ids.of("run", step.run_id),
        agent_id=batches.agent.id,
        conversation_id=ids.of("conv", step.conversation_id),
    )


@contextmanager
def _named(batch: Sequence[Record]) -> Iterator[None]:
    """Adds the positions of a batch to an error that names no record."""
    try:
        yield
    except (Unavailable, DeadlineExceeded):
        raise
    except MnemeshError as error:
        first, last = batch[0].index, batch[-1].index
        error.metadata.setdefault("record", str(first) if first == last else f"{first}-{last}")
        error.metadata.setdefault("record_type", batch[0].type.name)
        raise
