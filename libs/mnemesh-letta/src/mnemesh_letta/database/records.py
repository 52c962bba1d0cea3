"""The records of one agent of a Letta database, in the order in which ImportAgent reads them."""

import json
import math
import struct
from collections.abc import AsyncIterator, Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Final

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from mnemesh.agents.v1 import agents_pb2, runs_pb2
from mnemesh.agents.v1.agent_records_pb2 import AgentRecord, BlockRecord, PassageRecord, RecordsEnd, RecordsHeader
from mnemesh.agents.v1.agents_pb2 import Agent, AttachedTool
from mnemesh.agents.v1.conversations_pb2 import Conversation
from mnemesh.agents.v1.runs_pb2 import Run, RunConfig, RunError, Step
from mnemesh.archival.v1.archives_pb2 import PASSAGE_SOURCE_AGENT, Archive, EmbedderIdentity, Passage
from mnemesh.blocks.v1 import blocks_pb2
from mnemesh.blocks.v1.blocks_pb2 import AgentAuthor, Author, BlockRevision, OwnerAuthor
from mnemesh.types.v1 import message_pb2
from mnemesh.types.v1.message_pb2 import Usage
from mnemesh_kit.ids import derive_id, is_id
from mnemesh_kit.unicode import well_formed

from mnemesh_letta.convert import resources
from mnemesh_letta.convert.messages import MessageReader
from mnemesh_letta.convert.resources import block_label
from mnemesh_letta.convert.settings import agent as agent_settings
from mnemesh_letta.convert.settings import conversation_settings, embedder_handle
from mnemesh_letta.convert.values import RUN_STATUSES, STEP_STATUSES, Row, from_row, json_text, optional_text, timestamp
from mnemesh_letta.database.database import LettaDatabase
from mnemesh_letta.database.report import Report

_PADDED: Final = 4096
"""Letta fills vectors up with zeros to this number of dimensions."""


def same_model(handle: str, embedders: Set[str]) -> str | None:
    """Returns the embedder of the mesh with the model of a handle of Letta; None if there is none.

    Another provider may serve the same model: the last part of the handle names it, without the tag ":latest".
    """
    if handle in embedders:
        return handle
    return min((known for known in embedders if _model(known) == _model(handle)), default=None)


def _model(handle: str) -> str:
    return handle.rsplit("/", maxsplit=1)[-1].removesuffix(":latest")


def vector_of(stored: object, dimensions: int | None) -> list[float] | None:
    """Returns a stored vector without the zeros that fill it up; None if there is none with these dimensions.

    A vector of zeros, and one with numbers that are not finite, is none.

    Args:
        stored: the text of a pgvector value, or the 32-bit floats that SQLite holds.
        dimensions: those of the embedding model.
    """
    values = _values(stored)
    if not dimensions or len(values) < dimensions:
        return None
    if len(values) > dimensions and (len(values) != _PADDED or any(values[dimensions:])):
        return None
    return values[:dimensions] if any(values) and all(map(math.isfinite, values)) else None


def _values(stored: object) -> list[float]:
    if isinstance(stored, bytes):
        return list(struct.unpack(f"<{len(stored) // 4}f", stored)) if len(stored) % 4 == 0 else []
    if isinstance(stored, str) and stored.startswith("["):
        return [float(value) for value in json.loads(stored)]
    return []


async def archive_records(
    database: LettaDatabase, ids: list[str], embedders: Set[str], report: Report
) -> AsyncIterator[AgentRecord]:
    """Yields the archives with these ids, then their passages, the oldest first.

    Args:
        database: with the organization selected.
        ids: of the archives.
        embedders: the handles that the mesh has. The vectors of other models are left out.
        report: counts the passages without a usable vector.
    """
    rows = await database.all("archives", order=("created_at", "id"), id=ids)
    for row in rows:
        yield AgentRecord(archive=archive(row, embedders))
    for row in rows:
        config = row.get("embedding_config") or {}
        async for item in database.rows("archival_passages", order=("created_at", "id"), archive_id=row["id"]):
            yield AgentRecord(passage=_passage(item, config, embedders, report))


def archive(row: Row, embedders: Set[str]) -> Archive:
    """Returns an archive. An embedder whose model the mesh does not have is left out: the mesh chooses its own."""
    handle = embedder_handle(row.get("embedding_config") or {}) or ""
    return from_row(
        Archive, row, ("id", "name", "description", "metadata_"), embedder=same_model(handle, embedders) or ""
    )


def passage(row: Row) -> Passage:
    """Returns a passage without its vector."""
    tags = list(dict.fromkeys(row.get("tags") or ()))
    return from_row(Passage, row, ("id", "archive_id", "text", "metadata_"), tags=tags, source=PASSAGE_SOURCE_AGENT)


def _passage(row: Row, archive_config: Row, embedders: Set[str], report: Report) -> PassageRecord:
    config = row.get("embedding_config") or archive_config
    handle = embedder_handle(config) or ""
    embedder = same_model(handle, embedders)
    vector = vector_of(row.get("embedding"), config.get("embedding_dim"))
    record = PassageRecord(passage=passage(row))
    if embedder is None:
        report.without_vector.add(f"the mesh has no embedder with the model {handle}")
    elif vector is None:
        report.without_vector.add("Letta has no usable vector of them")
    else:
        record.passage.embedding.extend(vector)
        record.passage.embedded_by.CopyFrom(EmbedderIdentity(handle=embedder, dimension=len(vector)))
    return record


ENDED: Final = ("completed", "failed", "cancelled")


def stop_reason(name: str | None) -> agents_pb2.StopReason.ValueType | None:
    """Returns a stop reason; None if there is none or it is not known."""
    return dict(agents_pb2.StopReason.items()).get(f"STOP_REASON_{(name or '').upper()}")


def run_record(row: Row, conversation_id: str, usage: Usage, step_count: int) -> Run:
    """Returns an ended run.

    Args:
        row: a row of `runs`.
        conversation_id: ours, of the run.
        usage: the sum of its steps.
        step_count: the number of its steps.
    """
    result = from_row(
        Run,
        row,
        ("id", "agent_id", "background", "callback_error", "callback_status_code", "callback_sent_at"),
        conversation_id=conversation_id,
        status=RUN_STATUSES[row["status"]],
        stop_reason=stop_reason(row.get("stop_reason")),
        config=RunConfig(metadata=json_text(row.get("metadata_") or None)),
        usage=usage,
        step_count=step_count,
        time_to_first_token=_duration(row.get("ttft_ns")),
        total_duration=_duration(row.get("total_duration_ns")),
        origin=runs_pb2.RUN_ORIGIN_CLIENT,
        completion_time=timestamp(row.get("completed_at") or row.get("updated_at")),
    )
    if row.get("callback_url"):
        result.config.callback_url = row["callback_url"]
    if row["status"] == "failed":
        result.error.CopyFrom(RunError(reason="", message=_run_error(row)))
    return result


def _run_error(row: Row) -> str:
    """Returns the error that Letta stored for a failed run, which is a text or an object with a text."""
    error = (row.get("metadata_") or {}).get("error")
    if isinstance(error, dict):
        error = error.get("message") or error.get("detail") or json_text(error)
    return (
        well_formed(str(error))
        if error
        else f"The run failed in Letta: {row.get('stop_reason') or 'without a reason'}."
    )


_OF_STEPS: Final = (
    *("id", "run_id", "agent_id", "provider_name", "model_endpoint"),
    *("context_window_limit", "tags", "feedback", "trace_id"),
)


def step_record(row: Row, conversation_id: str, number: int) -> Step:
    """Returns a step; `number` is its 1-based position in the run."""
    handle = row.get("model_handle") or f"{row.get('provider_name') or 'unknown'}/{row.get('model') or 'unknown'}"
    result = from_row(
        Step,
        row,
        _OF_STEPS,
        conversation_id=conversation_id,
        number=number,
        status=STEP_STATUSES.get(step_status(row), runs_pb2.STEP_STATUS_SUCCESS),
        stop_reason=stop_reason(row.get("stop_reason")),
        model=handle,
        usage=usage_of(row),
        attempts=1,
        completion_time=timestamp(row.get("updated_at")),
    )
    if row.get("error_type"):
        details = row.get("error_data") or {}
        message = details.get("message") or json_text(details or None) or row["error_type"]
        result.error.CopyFrom(RunError(reason=str(row["error_type"]), message=well_formed(str(message))))
    return result


def step_status(row: Row) -> str:
    """Returns the status of a step. Steps of early releases have none; they succeeded."""
    return str(row.get("status") or "success").rsplit(".", maxsplit=1)[-1].lower()


def usage_of(row: Row) -> Usage:
    """Returns the tokens of a step."""
    prompt_details = row.get("prompt_tokens_details") or {}
    completion_details = row.get("completion_tokens_details") or {}
    return Usage(
        prompt_tokens=row.get("prompt_tokens"),
        completion_tokens=row.get("completion_tokens"),
        total_tokens=row.get("total_tokens"),
        cached_input_tokens=_first(row.get("cached_input_tokens"), prompt_details.get("cached_tokens")),
        cache_write_tokens=_first(row.get("cache_write_tokens"), prompt_details.get("cache_creation_tokens")),
        reasoning_tokens=_first(row.get("reasoning_tokens"), completion_details.get("reasoning_tokens")),
    )


def add_usage(total: Usage, step: Usage) -> None:
    """Adds the tokens of a step to those of its run."""
    for descriptor, value in step.ListFields():
        setattr(total, descriptor.name, getattr(total, descriptor.name) + value)


def block_revision(row: Row, number: int) -> BlockRevision:
    """Returns a checkpoint of a block as its revision `number`."""
    value = well_formed(row.get("value") or "")
    return BlockRevision(
        block_id=row["block_id"],
        revision=number,
        operation=blocks_pb2.BLOCK_OPERATION_CREATE if number == 1 else blocks_pb2.BLOCK_OPERATION_UPDATE,
        label=block_label(row["label"]),
        value=value,
        description=optional_text(row, "description"),
        limit=max(int(row.get("limit") or 0), len(value)),
        author=_author(row),
        create_time=timestamp(row.get("created_at")),
    )


def _author(row: Row) -> Author:
    actor = row.get("actor_id") or ""
    if str(row.get("actor_type")).lower().endswith("agent") and is_id(actor, "agent"):
        return Author(agent=AgentAuthor(agent_id=actor))
    return Author(owner=OwnerAuthor(subject_id=actor))


def _duration(nanoseconds: int | None) -> Duration | None:
    if nanoseconds is None:
        return None
    result = Duration()
    result.FromNanoseconds(nanoseconds)
    return result


def _first(*values: int | None) -> int | None:
    return next((value for value in values if value is not None), None)


SOURCE = "letta/0.16"


@dataclass(frozen=True, slots=True)
class Target:
    """What the mesh offers to the agents."""

    builtin_tools: frozenset[str]
    models: frozenset[str]
    embedders: frozenset[str]
    model: str | None = None
    """Replaces models that the mesh does not have."""


class AgentRecords:
    """Reads everything of one agent.

    Args:
        database: with the organization selected.
        row: of the agent.
        target: the mesh.
        report: receives what is left out.
    """

    def __init__(self, database: LettaDatabase, row: Row, target: Target, report: Report) -> None:
        self._database = database
        self._row = row
        self._target = target
        self._report = report
        self.agent_id: str = row["id"]
        self._default = derive_id("conv", self.agent_id)
        self._steps: dict[str, str] = {}

    async def read(self) -> AsyncIterator[AgentRecord]:
        """Yields the records, the header first and the end last."""
        now = Timestamp()
        now.GetCurrentTime()
        yield AgentRecord(header=RecordsHeader(format_version=1, source=SOURCE, export_time=now))
        count = 1
        async for record in self._resources():
            count += 1
            yield record
        yield AgentRecord(end=RecordsEnd(record_count=count))

    async def _resources(self) -> AsyncIterator[AgentRecord]:
        identity_ids = await self._list_linked("identities_agents", "identity_id")
        tools = await self._rows_of("tools", await self._list_linked("tools_agents", "tool_id"))
        yield AgentRecord(agent=await self._agent(identity_ids, tools))
        for row in await self._rows_of("identities", identity_ids):
            yield AgentRecord(identity=resources.identity(row))
        for row in tools:
            if (row.get("tool_type") or "custom") == "custom" and resources.is_runnable(row):
                yield AgentRecord(tool=resources.custom_tool(row))
        for row in await self._rows_of("sources", await self._list_linked("sources_agents", "source_id")):
            yield AgentRecord(folder=resources.folder(row))
        for read in (self._blocks, self._conversations, self._runs, self._messages, self._archives, self._groups):
            async for record in read():
                yield record

    async def _agent(self, identity_ids: list[str], tools: list[Row]) -> Agent:
        tags = [row["tag"] async for row in self._database.rows("agents_tags", order=("tag",), agent_id=self.agent_id)]
        secrets = await self._database.all("agent_environment_variables", order=("key",), agent_id=self.agent_id)
        agent = agent_settings(self._row, tags=tags, secrets=[row["key"] for row in secrets], identity_ids=identity_ids)
        agent.default_conversation_id = self._default
        self._fit(agent)
        for row in tools:
            self._attach(agent, row)
        return agent

    def _fit(self, agent: Agent) -> None:
        """Replaces what the mesh does not have."""
        if agent.time_zone != (self._row.get("timezone") or "UTC"):
            self._report.change(
                "agents", agent.id, f"the time zone {self._row['timezone']} is not known here; it is UTC"
            )
        if agent.model not in self._target.models and self._target.model:
            self._report.change("agents", agent.id, f"model {agent.model} is replaced by {self._target.model}")
            agent.model = self._target.model
        if agent.HasField("embedder"):
            embedder = same_model(agent.embedder, self._target.embedders)
            agent.ClearField("embedder")
            if embedder is not None:
                agent.embedder = embedder
        settings = agent.compaction_settings
        if settings.HasField("model") and settings.model not in self._target.models:
            self._report.change("agents", agent.id, f"summaries are written by the default, not by {settings.model}")
            settings.ClearField("model")

    def _attach(self, agent: Agent, row: Row) -> None:
        name, kind = row["name"], row.get("tool_type") or "custom"
        if resources.is_builtin_tool(row):
            if name in self._target.builtin_tools:
                agent.tools.append(AttachedTool(name=name, builtin=True))
            else:
                self._report.change("agents", agent.id, f"the built-in tool {name} does not exist here")
        elif kind == "custom" and not resources.is_runnable(row):
            self._report.change("agents", agent.id, f"the tool {name} is not attached: it has no source code")
        elif kind == "custom":
            agent.tools.append(AttachedTool(tool_id=row["id"], name=name))
        else:
            self._report.change("agents", agent.id, f"the tool {name} of the type {kind} is not attached")

    async def _blocks(self) -> AsyncIterator[AgentRecord]:
        held = await self._list_linked("blocks_agents", "block_id")
        owners: dict[str, str] = {}
        for conversation in await self._database.all("conversations", agent_id=self.agent_id):
            links = self._database.rows("blocks_conversations", order=("block_id",), conversation_id=conversation["id"])
            owners |= {link["block_id"]: conversation["id"] async for link in links}
        rows = await self._rows_of("block", [*held, *owners])
        for row in rows:
            tags = [tag["tag"] async for tag in self._database.rows("blocks_tags", order=("tag",), block_id=row["id"])]
            links = self._database.rows("identities_blocks", order=("identity_id",), block_id=row["id"])
            identity_ids = [link["identity_id"] async for link in links]
            block = resources.block(row, tags=tags, identity_ids=identity_ids)
            block.revision = await self._revision(row)
            if block.label != row["label"]:
                self._report.change("blocks", block.id, f"the label {row['label']!r} is {block.label} here")
            yield AgentRecord(block=BlockRecord(block=block, conversation_id=owners.get(row["id"])))
        for row in rows:
            for number, entry in enumerate(await self._history(row["id"]), 1):
                yield AgentRecord(block_revision=block_revision(entry, number))

    async def _revision(self, row: Row) -> int:
        """The revision of a block: that of its newest checkpoint if nothing has changed since, or the next one."""
        history = await self._history(row["id"])
        same = bool(history) and history[-1]["value"] == row["value"] and history[-1]["label"] == row["label"]
        return len(history) + (0 if same else 1)

    async def _history(self, block_id: str) -> list[Row]:
        return await self._database.all("block_history", order=("sequence_number", "id"), block_id=block_id)

    async def _conversations(self) -> AsyncIterator[AgentRecord]:
        yield AgentRecord(
            conversation=Conversation(
                id=self._default,
                agent_id=self.agent_id,
                is_default=True,
                message_ids=self._row.get("message_ids") or (),
                create_time=timestamp(self._row.get("created_at")),
                update_time=timestamp(self._row.get("updated_at")),
            )
        )
        rows = self._database.rows("conversations", order=("created_at", "id"), agent_id=self.agent_id)
        async for row in rows:
            shown = self._database.rows("conversation_messages", order=("position", "id"), conversation_id=row["id"])
            window = [item["message_id"] async for item in shown if item["in_context"]]
            links = self._database.rows("blocks_conversations", order=("block_id",), conversation_id=row["id"])
            isolated = [(link["block_id"], link["block_label"]) async for link in links]
            conversation = Conversation(
                id=row["id"],
                agent_id=self.agent_id,
                summary=optional_text(row, "summary"),
                model=self._known_model(row),
                forked_from_id=await self._source_of(row["id"], window),
                isolated_block_ids=[block_id for block_id, _ in isolated],
                isolated_block_labels=[resources.block_label(label) for _, label in isolated],
                message_ids=window,
                last_message_time=timestamp(row.get("last_message_at")),
                create_time=timestamp(row.get("created_at")),
                update_time=timestamp(row.get("updated_at")),
            )
            if row.get("model_settings"):
                conversation.model_settings.CopyFrom(conversation_settings(row["model_settings"]))
            yield AgentRecord(conversation=conversation)

    async def _source_of(self, conversation_id: str, window: Sequence[str]) -> str | None:
        """The conversation from which one was forked. Letta does not store it, but a fork shares messages with it."""
        for message in await self._rows_of("messages", window):
            written_in: str = message.get("conversation_id") or self._default
            if written_in != conversation_id:
                return written_in
        return None

    def _known_model(self, row: Row) -> str | None:
        handle = row.get("model")
        if handle and handle not in self._target.models:
            self._report.change("conversations", row["id"], f"model {handle} is not known here; the agent's is used")
            return None
        return handle

    async def _runs(self) -> AsyncIterator[AgentRecord]:
        """All runs come before all steps. A run has the sum of its steps, so these are read twice."""
        usages: dict[str, tuple[Usage, int]] = {}
        last_status: dict[str, str] = {}
        order = ("created_at", "id")
        async for row in self._database.rows("steps", order=order, agent_id=self.agent_id):
            self._steps[row["id"]] = row.get("model_handle") or ""
            if row.get("run_id"):
                total, count = usages.get(row["run_id"], (Usage(), 0))
                add_usage(total, usage_of(row))
                usages[row["run_id"]] = (total, count + 1)
                last_status[row["run_id"]] = step_status(row)
        conversations: dict[str, str] = {}
        async for row in self._database.rows("runs", order=order, agent_id=self.agent_id):
            status = row["status"]
            if status not in ENDED:
                status = "completed" if last_status.get(row["id"]) == "success" else "cancelled"
                self._report.change("runs", row["id"], f"Letta never closed the run; it is {status} here")
            conversations[row["id"]] = row.get("conversation_id") or self._default
            total, count = usages.get(row["id"], (Usage(), 0))
            yield AgentRecord(run=run_record({**row, "status": status}, conversations[row["id"]], total, count))
        numbers: dict[str, int] = {}
        async for row in self._database.rows("steps", order=order, agent_id=self.agent_id):
            run_id = row.get("run_id")
            if run_id not in conversations:
                self._report.skip("steps", row["id"], "the step belongs to no run that is migrated")
                continue
            numbers[run_id] = numbers.get(run_id, 0) + 1
            yield AgentRecord(step=step_record(row, conversations[run_id], numbers[run_id]))

    async def _messages(self) -> AsyncIterator[AgentRecord]:
        config = self._row.get("llm_config") or {}
        handle = str(config.get("handle") or f"{config.get('model_endpoint_type') or 'unknown'}/")
        kind = self._row.get("agent_type") or "memgpt_v2_agent"
        reader = MessageReader(self.agent_id, handle.split("/", 1)[0], agent_type=kind)
        waiting: dict[str, str] = {}
        async for row in self._database.rows("messages", order=("sequence_id", "id"), agent_id=self.agent_id):
            model = self._steps.get(row.get("step_id") or "") if row.get("model") else None
            conversation = row.get("conversation_id") or self._default
            try:
                message = reader.read(row, model=model or None, conversation_id=conversation)
            except (ValueError, KeyError, TypeError) as error:
                self._report.skip("messages", row["id"], f"the message cannot be read: {error}")
                continue
            waiting.pop(conversation, None)
            if message.role == message_pb2.ROLE_APPROVAL and message.tool_calls:
                waiting[conversation] = message.id
            yield AgentRecord(message=message)
        for message_id in waiting.values():
            self._report.change("messages", message_id, "nothing waits for this approval here: send a message instead")

    async def _archives(self) -> AsyncIterator[AgentRecord]:
        ids = await self._list_linked("archives_agents", "archive_id")
        async for record in archive_records(self._database, ids, self._target.embedders, self._report):
            yield record

    async def _groups(self) -> AsyncIterator[AgentRecord]:
        ids = await self._list_linked("groups_agents", "group_id")
        managed = await self._database.all("groups", manager_agent_id=self.agent_id)
        for row in await self._rows_of("groups", sorted({*ids, *(group["id"] for group in managed)})):
            links = self._database.rows("groups_blocks", order=("block_id",), group_id=row["id"])
            block_ids = [link["block_id"] async for link in links]
            yield AgentRecord(group=resources.group(row, row.get("agent_ids") or (), block_ids))

    async def _list_linked(self, table: str, column: str) -> list[str]:
        """The ids in a table that links agents with other resources."""
        return [row[column] async for row in self._database.rows(table, order=(column,), agent_id=self.agent_id)]

    async def _rows_of(self, table: str, ids: Iterable[str]) -> list[Row]:
        """The rows with these ids, the oldest first."""
        return await self._database.all(table, order=("created_at", "id"), id=list(ids))
