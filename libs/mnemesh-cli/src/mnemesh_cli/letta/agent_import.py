"""Sends the records of agents to the mesh, and counts what became of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Final

from mnemesh.agents.v1 import agent_records_pb2, agents_service_pb2
from mnemesh.agents.v1.agent_records_pb2 import AgentRecord
from mnemesh_cli.letta.report import Report
from mnemesh_client.mnemesh import Mnemesh
from mnemesh_kit.errors import MnemeshError
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
