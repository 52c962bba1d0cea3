"""Blocks of core memory and their revisions."""

from collections.abc import AsyncIterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

import grpc
from mnemesh.agents.v1 import agent_records_pb2 as records_pb
from mnemesh.blocks.v1 import blocks_pb2 as pb
from mnemesh.blocks.v1 import blocks_service_pb2 as rpc
from mnemesh.blocks.v1.blocks_service_pb2_grpc import BlockServiceStub
from mnemesh.types.v1 import paging_pb2

from mnemesh_orchestrator.clients import deadlines
from mnemesh_orchestrator.clients.records.messages import (
    copy_of,
    map_field,
    map_other,
    named_record,
    record_of,
)
from mnemesh_orchestrator.model.transfers import ExportScope, IdMap, ImportTarget, Outcome, Record, RecordType

_PAGE: Final = 100
_MAX_LIST: Final = 1_000


class BlockRecords:
    """RecordPart of the blocks service."""

    types = (RecordType.BLOCK, RecordType.BLOCK_REVISION)

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = BlockServiceStub(channel)

    async def export(self, kind: RecordType, scope: ExportScope) -> AsyncIterator[Record]:
        """See RecordPart."""
        for holder in (None, *scope.conversation_ids):
            held = await self._held(scope.agent_id, holder)
            for block in held:
                if kind is RecordType.BLOCK:
                    body = records_pb.BlockRecord(block=block, conversation_id=holder)
                    yield record_of(kind, block.id, body)
                    continue
                async for revision in self._revisions(block.id):
                    yield record_of(kind, f"{block.id}/{revision.revision}", revision)

    async def _held(self, agent_id: str, conversation_id: str | None) -> list[pb.Block]:
        """Returns the blocks of the agent, or those of a conversation alone, with all fields."""
        request = rpc.GetCoreMemoryRequest(agent_id=agent_id, conversation_id=conversation_id)
        core = (await self._stub.GetCoreMemory(request, timeout=deadlines.IMPORT)).core_memory
        blocks = list(core.blocks)
        if conversation_id is not None:
            shared = {block.id for block in await self._held(agent_id, None)}
            blocks = [block for block in blocks if block.id not in shared]
        return blocks

    async def _revisions(self, block_id: str) -> AsyncIterator[pb.BlockRevision]:
        request = rpc.ListBlockRevisionsRequest(
            block_id=block_id, page_size=_PAGE, order=paging_pb2.SORT_ORDER_ASCENDING
        )
        while True:
            page = await self._stub.ListBlockRevisions(request, timeout=deadlines.IMPORT)
            for revision in page.revisions:
                yield revision
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    async def find(self, target: ImportTarget, records: Sequence[Record]) -> Mapping[str, str]:
        """See RecordPart."""
        ids = {target.ids.of("block", record.id): record.id for record in records}
        found: dict[str, str] = {}
        wanted = sorted(ids)
        for start in range(0, len(wanted), _MAX_LIST):
            some = wanted[start : start + _MAX_LIST]
            for hidden in (False, True):
                filter_ = rpc.BlockFilter(block_ids=some, hidden=hidden)
                request = rpc.ListBlocksRequest(page_size=_MAX_LIST, filter=filter_)
                while True:
                    page = await self._stub.ListBlocks(request, timeout=deadlines.IMPORT)
                    found |= {ids[block.id]: block.id for block in page.blocks}
                    if not page.next_page_token:
                        break
                    request.page_token = page.next_page_token
        return found

    async def restore(
        self, request_id: str, target: ImportTarget, records: Sequence[Record], existing: Mapping[str, str]
    ) -> Outcome:
        """See RecordPart."""
        if records[0].type is RecordType.BLOCK_REVISION:
            revisions = [_revision(record.body, target) for record in records]
            request = rpc.ImportBlocksRequest(request_id=request_id, agent_id=target.agent_id, revisions=revisions)
            with named_record(records):
                await self._stub.ImportBlocks(request, timeout=deadlines.IMPORT)
            return Outcome()
        batches = groupby(records, key=lambda record: record.body.conversation_id)
        for number, (conversation_id, run) in enumerate(batches):
            batch = list(run)
            owner = target.ids.of("conv", conversation_id) if conversation_id else None
            request = rpc.ImportBlocksRequest(
                request_id=f"{request_id}/{number}",
                agent_id=target.agent_id,
                conversation_id=owner,
                blocks=[_block(record.body.block, target) for record in batch],
            )
            with named_record(batch):
                await self._stub.ImportBlocks(request, timeout=deadlines.IMPORT)
        return Outcome(existing=len(existing))


def _block(block: pb.Block, target: ImportTarget) -> pb.Block:
    copy = copy_of(block)
    copy.id = target.ids.of("block", block.id)
    copy.revision = max(block.revision, 1)
    map_other(copy, "created_for_agent_id", target.ids)
    identities = [target.ids.other(identity_id) for identity_id in block.identity_ids]
    del copy.identity_ids[:]
    copy.identity_ids.extend(identities)
    _map_provenance(copy.provenance, target)
    for name in ("create_time", "update_time"):
        if not copy.HasField(name):
            getattr(copy, name).GetCurrentTime()
    return copy


def _map_provenance(provenance: Any, target: ImportTarget) -> None:
    for name in ("created_by_id", "last_updated_by_id"):
        map_other(provenance, name, target.ids)
    if target.options.project_id is not None:
        provenance.project_id = target.options.project_id


def _revision(body: pb.BlockRevision | records_pb.BlockRecord, target: ImportTarget) -> pb.BlockRevision:
    """Returns a revision, or the last one of a block, which counts if there is no record of it."""
    copy = copy_of(body) if isinstance(body, pb.BlockRevision) else _last_revision(_block(body.block, target))
    if isinstance(body, pb.BlockRevision):
        map_field(copy, "block_id", "block", target.ids)
    if copy.author.WhichOneof("author") == "agent":
        _map_author(copy.author.agent, target.ids)
    return copy


def _last_revision(block: pb.Block) -> pb.BlockRevision:
    owner = pb.OwnerAuthor(subject_id=block.provenance.last_updated_by_id)
    return pb.BlockRevision(
        block_id=block.id,
        revision=block.revision,
        operation=pb.BLOCK_OPERATION_CREATE if block.revision == 1 else pb.BLOCK_OPERATION_UPDATE,
        label=block.label,
        value=block.value,
        description=block.description if block.HasField("description") else None,
        limit=block.limit,
        read_only=block.read_only,
        author=pb.Author(owner=owner),
        create_time=block.update_time,
    )


def _map_author(author: pb.AgentAuthor, ids: IdMap) -> None:
    map_other(author, "agent_id", ids)
    if author.agent_id in ids.known.values():
        map_field(author, "run_id", "run", ids)
