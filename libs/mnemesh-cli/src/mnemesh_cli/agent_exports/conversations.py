"""The import of conversations: those of the file are created, and records are assigned to them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mnemesh.agents.v1 import agents_pb2, conversations_pb2
from mnemesh.blocks.v1 import blocks_pb2
from mnemesh.recall.v1 import traces_pb2, traces_service_pb2
from mnemesh.types.v1 import message_pb2
from mnemesh_cli.agent_exports.files import CONVERSATIONS, from_line, read
from mnemesh_cli.json_lines import Line
from mnemesh_client.agent import Agent
from mnemesh_kit.ids import derive_id

if TYPE_CHECKING:
    from mnemesh_client.mnemesh import Mnemesh

_OUTPUT_ONLY: Final = (
    "id", "is_default", "archived", "isolated_block_ids", "forked_from_id", "message_ids", "last_message_time",
    "create_time", "update_time",
)  # fmt: skip


class ConversationImport:
    """Maps the conversations of an export to those of an agent."""

    def __init__(self, mnemesh: Mnemesh, agent: Agent, directory: Path, exported: agents_pb2.Agent | None) -> None:
        self._mnemesh = mnemesh
        self._agent = agent
        self._exported = exported
        self._lines = read(directory, CONVERSATIONS)
        self._ids: dict[str, str] = {}

    async def create_missing(self, records: Sequence[traces_service_pb2.TraceRecord], *, is_new: bool) -> int:
        """Creates the conversations that the agent does not have, and returns their number.

        A conversation is known by its id, or by the traces that an earlier import assigned to it. One without traces is
        created for a new agent only.

        Args:
            records: the records of the export.
            is_new: whether this import created the agent.
        """
        created = 0
        known = {} if is_new or not self._lines else await self._known(records)
        used = {record.raw_trace.conversation_id for record in records}
        for line in self._lines:
            given = from_line(line.get("conversation", {}), conversations_pb2.Conversation(), CONVERSATIONS)
            own_id = self._agent.proto.default_conversation_id if given.is_default else known.get(given.id)
            if own_id is None and (is_new or given.id in used):
                own_id = await self._create(given, line)
                created += 1
            if own_id is None:
                continue
            self._ids[given.id] = own_id
        return created

    def mapped(self, records: Iterable[traces_service_pb2.TraceRecord]) -> list[traces_service_pb2.TraceRecord]:
        """Returns the records with the agent and its conversations in place of the exported ones.

        The summaries at the head of the exported windows come first, as snapshots.
        """
        return [*self._summaries(), *map(self._mapped, records)]

    def _summaries(self) -> Iterator[traces_service_pb2.TraceRecord]:
        for line in self._lines:
            conversation_id = self._ids.get(line.get("conversation", {}).get("id", ""))
            if conversation_id is not None and "summary_message" in line:
                summary = from_line(line["summary_message"], message_pb2.Message(), CONVERSATIONS)
                snapshot = traces_pb2.TraceSnapshot(conversation_id=conversation_id, messages=[summary])
                yield traces_service_pb2.TraceRecord(snapshot=snapshot)

    def _mapped(self, record: traces_service_pb2.TraceRecord) -> traces_service_pb2.TraceRecord:
        kind = record.WhichOneof("record")
        holder: Any = record.raw_trace if kind == "raw_trace" else getattr(record, kind or "episode").source
        if holder.conversation_id in self._ids:
            holder.conversation_id = self._ids[holder.conversation_id]
        is_exporter = self._exported is not None and holder.agent_id == self._exported.id
        if kind != "raw_trace" and is_exporter:
            holder.agent_id = self._agent.id
        return record

    async def _known(self, records: Sequence[traces_service_pb2.TraceRecord]) -> dict[str, str]:
        """Returns the agent's conversation for each exported one that it has."""
        known = {item.id: item.id async for item in self._mnemesh.conversations.list(agent_id=self._agent.id)}
        if all(line.get("conversation", {}).get("id") in known for line in self._lines):
            return known
        exported = {record.raw_trace.id: record.raw_trace.conversation_id for record in records}
        async for record in self._mnemesh.traces.export(self._agent.id, kinds=("raw_trace",)):
            trace = record.raw_trace
            if trace.id in exported and trace.conversation_id in known:
                known.setdefault(exported[trace.id], trace.conversation_id)
        return known

    async def _create(self, given: conversations_pb2.Conversation, line: Line) -> str:
        new = conversations_pb2.Conversation()
        new.CopyFrom(given)
        for name in _OUTPUT_ONLY:
            new.ClearField(name)
        new.agent_id = self._agent.id
        request_id = derive_id("request", self._agent.id, given.id)
        created = await self._mnemesh.conversations.create(new, request_id=request_id)
        values = [from_line(block, blocks_pb2.Block(), CONVERSATIONS) for block in line.get("blocks", ())]
        by_label = {block.label: block.value for block in values}
        for block_id in created.isolated_block_ids:
            block = await self._mnemesh.blocks.get(block_id)
            if block.label in by_label and block.value != by_label[block.label]:
                await self._mnemesh.blocks.update(block_id, value=by_label[block.label])
        return created.id
