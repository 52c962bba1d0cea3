"""The blocks service over gRPC."""

from collections.abc import AsyncIterator, Mapping, Sequence
from itertools import groupby
from typing import Final

import grpc
from google.protobuf.field_mask_pb2 import FieldMask
from mnemesh.agents.v1 import agent_records_pb2 as records_pb
from mnemesh.blocks.v1 import blocks_pb2 as pb
from mnemesh.blocks.v1 import blocks_service_pb2 as rpc
from mnemesh.blocks.v1.blocks_service_pb2_grpc import BlockServiceStub
from mnemesh.types.v1 import paging_pb2
from mnemesh_kit.errors import Aborted, NotFound
from mnemesh_types.blocks import AUTHOR, Block
from mnemesh_types.twin import fields_of

from mnemesh_orchestrator.clients import deadlines
from mnemesh_orchestrator.clients.records import copy_of, items_of, map_field, map_other, named_record, record_of, stamp
from mnemesh_orchestrator.model.core_memory import AgentAuthor, BlockEdit, CoreMemory, EditedBlock
from mnemesh_orchestrator.model.creation import Erased
from mnemesh_orchestrator.model.transfers import ExportScope, IdMap, ImportTarget, Outcome, Record, RecordType

_PAGE: Final = 100
_MAX_LIST: Final = 1_000


class BlocksClient:
    """Core memory."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = BlockServiceStub(channel)

    async def get(
        self, agent_id: str, if_revision: int | None = None, conversation_id: str | None = None
    ) -> CoreMemory | None:
        """Returns the agent's blocks, with the isolated blocks of the conversation.

        None if `if_revision` is current.
        """
        request = rpc.GetCoreMemoryRequest(agent_id=agent_id, if_revision=if_revision, conversation_id=conversation_id)
        response = await self._stub.GetCoreMemory(request, timeout=deadlines.READ)
        return None if response.not_modified else CoreMemory.from_proto(response.core_memory)

    async def isolate(
        self,
        request_id: str,
        agent_id: str,
        conversation_id: str,
        labels: Sequence[str],
        source_conversation_id: str | None = None,
        *,
        create_missing: bool = False,
    ) -> tuple[str, ...]:
        """Creates copies of the blocks under `labels` for a conversation, and returns their ids.

        The copies start with the values of the agent's blocks, or of another conversation's. With `create_missing`, a
        label that the agent does not have gets an empty block; otherwise it raises BLOCK_LABEL_NOT_FOUND.
        """
        request = rpc.IsolateBlocksRequest(
            request_id=request_id,
            agent_id=agent_id,
            conversation_id=conversation_id,
            labels=labels,
            source_conversation_id=source_conversation_id,
            create_missing=create_missing,
        )
        response = await self._stub.IsolateBlocks(request, timeout=deadlines.WRITE)
        return tuple(block.id for block in response.blocks)

    async def release(self, request_id: str, agent_id: str, conversation_id: str) -> None:
        """Deletes the isolated blocks of a conversation."""
        request = rpc.ReleaseBlocksRequest(request_id=request_id, agent_id=agent_id, conversation_id=conversation_id)
        await self._stub.ReleaseBlocks(request, timeout=deadlines.WRITE)

    async def edit(self, request_id: str, author: AgentAuthor, label: str, edit: BlockEdit) -> EditedBlock:
        """Applies one atomic edit and returns the changed block."""
        request = rpc.EditBlockRequest(
            request_id=request_id,
            agent_id=author.agent_id,
            label=label,
            author=AUTHOR.to_proto(author),
            conversation_id=author.conversation_id,
            **fields_of(rpc.EditBlockRequest, edit),
        )
        response = await self._stub.EditBlock(request, timeout=deadlines.WRITE)
        return EditedBlock(Block.from_proto(response.block), response.core_memory_revision)

    async def create(self, request_id: str, agent_id: str, block: Block) -> Block:
        """Creates a block for the agent, with which it is deleted, and attaches it."""
        request = rpc.CreateBlockRequest(
            request_id=request_id,
            block=block.to_proto(),
            agent_ids=[agent_id],
            created_for_agent_id=agent_id,
        )
        response = await self._stub.CreateBlock(request, timeout=deadlines.WRITE)
        return Block.from_proto(response.block)

    async def create_core_memory(
        self, request_id: str, agent_id: str, blocks: Sequence[Block], block_ids: Sequence[str]
    ) -> CoreMemory:
        """Creates blocks for the agent, with which they are deleted, and attaches them and then existing ones."""
        request = rpc.CreateCoreMemoryRequest(
            request_id=request_id,
            agent_id=agent_id,
            blocks=[block.to_proto() for block in blocks],
            block_ids=block_ids,
        )
        response = await self._stub.CreateCoreMemory(request, timeout=deadlines.WRITE)
        return CoreMemory.from_proto(response.core_memory)

    async def attach(self, request_id: str, agent_id: str, block_id: str) -> None:
        """Attaches an existing block to the agent."""
        request = rpc.AttachBlockRequest(request_id=request_id, agent_id=agent_id, block_id=block_id)
        await self._stub.AttachBlock(request, timeout=deadlines.WRITE)

    async def detach(self, request_id: str, agent_id: str, label: str) -> None:
        """Detaches the block under a label from the agent. The block stays."""
        request = rpc.DetachBlockRequest(request_id=request_id, agent_id=agent_id, label=label)
        await self._stub.DetachBlock(request, timeout=deadlines.WRITE)

    async def detach_block(self, request_id: str, agent_id: str, block_id: str) -> bool:
        """Detaches a block from the agent. The block stays. Returns False if the agent does not hold it."""
        request = rpc.DetachBlockRequest(request_id=request_id, agent_id=agent_id, block_id=block_id)
        try:
            await self._stub.DetachBlock(request, timeout=deadlines.WRITE)
        except NotFound:
            return False
        return True

    async def relabel(self, request_id: str, block_id: str, label: str) -> Block:
        """Changes the label of a block for all its holders."""
        return await self._update(request_id, pb.Block(id=block_id, label=label), "label")

    async def delete(self, request_id: str, block_id: str) -> bool:
        """Deletes a block and detaches it from all agents. Returns False if it does not exist."""
        try:
            await self._stub.GetBlock(rpc.GetBlockRequest(block_id=block_id), timeout=deadlines.READ)
        except NotFound:
            return False
        await self._stub.DeleteBlock(
            rpc.DeleteBlockRequest(request_id=request_id, block_id=block_id), timeout=deadlines.WRITE
        )
        return True

    async def identify(self, request_id: str, block_id: str, identity_id: str, *, attach: bool) -> bool:
        """Attaches an identity to a block, or detaches it. Returns whether that changed anything. Raises NotFound."""
        while True:
            block = (await self._stub.GetBlock(rpc.GetBlockRequest(block_id=block_id), timeout=deadlines.READ)).block
            if (identity_id in block.identity_ids) is attach:
                return False
            others = [other for other in block.identity_ids if other != identity_id]
            changed = pb.Block(id=block_id, identity_ids=[*others, identity_id] if attach else others)
            request = rpc.UpdateBlockRequest(
                # The request depends on the revision that was read, so each attempt is another request.
                request_id=f"{request_id}/{block.revision}",
                block=changed,
                update_mask=FieldMask(paths=["identity_ids"]),
                base_revision=block.revision,
            )
            try:
                await self._stub.UpdateBlock(request, timeout=deadlines.WRITE)
            except Aborted:
                continue  # another author changed the block since it was read
            return True

    async def identities_of(self, block_id: str) -> tuple[str, ...]:
        """Returns the identities that are attached to a block. Raises NotFound."""
        response = await self._stub.GetBlock(rpc.GetBlockRequest(block_id=block_id), timeout=deadlines.READ)
        return tuple(response.block.identity_ids)

    async def list_by_identity(self, identity_id: str) -> tuple[str, ...]:
        """Returns the ids of the blocks that an identity is attached to, ordered by id."""
        request = rpc.ListBlocksRequest(page_size=1_000, filter=rpc.BlockFilter(identity_id=identity_id))
        blocks = items_of(self._stub.ListBlocks, request, "blocks", deadlines.READ)
        return tuple(sorted([block.id async for block in blocks]))

    async def describe(self, request_id: str, block_id: str, description: str) -> Block:
        """Changes the description of a block."""
        return await self._update(request_id, pb.Block(id=block_id, description=description), "description")

    async def link(self, request_id: str, link_id: str, agent_ids: Sequence[str], source_agent_id: str) -> None:
        """Keeps the attached blocks of agents equal, and attaches those of the source to the others.

        Replaces the agents that the link has. Raises BLOCK_LABEL_TAKEN.
        """
        request = rpc.LinkAgentsRequest(
            request_id=request_id, link_id=link_id, agent_ids=agent_ids, source_agent_id=source_agent_id
        )
        await self._stub.LinkAgents(request, timeout=deadlines.WRITE)

    async def unlink(self, request_id: str, link_id: str) -> None:
        """Ends a link. The blocks stay attached."""
        request = rpc.UnlinkAgentsRequest(request_id=request_id, link_id=link_id)
        await self._stub.UnlinkAgents(request, timeout=deadlines.WRITE)

    async def erase_agent(
        self, request_id: str, agent_id: str, *, unshared: bool = False, together_with: Sequence[str] = ()
    ) -> Erased:
        """Erases the agent, and the blocks that were created for it or, if `unshared`, that only it holds.

        Blocks that were created for an agent of `together_with`, which is erased too, are erased like its own.
        """
        request = rpc.EraseAgentRequest(
            request_id=request_id,
            agent_id=agent_id,
            delete_unshared_blocks=unshared,
            together_with_agent_ids=together_with,
        )
        done = await self._stub.EraseAgent(request, timeout=deadlines.WRITE)
        kept = done.detached_blocks - done.deleted_blocks
        return Erased(detached_blocks=kept, deleted_blocks=done.deleted_blocks)

    async def _update(self, request_id: str, block: pb.Block, path: str) -> Block:
        request = rpc.UpdateBlockRequest(request_id=request_id, block=block, update_mask=FieldMask(paths=[path]))
        response = await self._stub.UpdateBlock(request, timeout=deadlines.WRITE)
        return Block.from_proto(response.block)


class BlockRecords:
    """RecordPart of the blocks service."""

    types = (RecordType.BLOCK, RecordType.BLOCK_REVISION)

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = BlockServiceStub(channel)

    async def export(self, kind: RecordType, scope: ExportScope) -> AsyncIterator[Record]:
        for holder in (None, *scope.conversation_ids):
            held = await self._list_held(scope.agent_id, holder)
            for block in held:
                if kind is RecordType.BLOCK:
                    body = records_pb.BlockRecord(block=block, conversation_id=holder)
                    yield record_of(kind, block.id, body)
                    continue
                async for revision in self._revisions(block.id):
                    yield record_of(kind, f"{block.id}/{revision.revision}", revision)

    async def _list_held(self, agent_id: str, conversation_id: str | None) -> list[pb.Block]:
        """Returns the blocks of the agent, or those of a conversation alone, with all fields."""
        request = rpc.GetCoreMemoryRequest(agent_id=agent_id, conversation_id=conversation_id)
        core = (await self._stub.GetCoreMemory(request, timeout=deadlines.IMPORT)).core_memory
        blocks = list(core.blocks)
        if conversation_id is not None:
            shared = {block.id for block in await self._list_held(agent_id, None)}
            blocks = [block for block in blocks if block.id not in shared]
        return blocks

    def _revisions(self, block_id: str) -> AsyncIterator[pb.BlockRevision]:
        request = rpc.ListBlockRevisionsRequest(
            block_id=block_id, page_size=_PAGE, order=paging_pb2.SORT_ORDER_ASCENDING
        )
        return items_of(self._stub.ListBlockRevisions, request, "revisions")

    async def find(self, target: ImportTarget, records: Sequence[Record]) -> Mapping[str, str]:
        ids = {target.ids.of("block", record.id): record.id for record in records}
        found: dict[str, str] = {}
        wanted = sorted(ids)
        for start in range(0, len(wanted), _MAX_LIST):
            some = wanted[start : start + _MAX_LIST]
            for hidden in (False, True):
                filter_ = rpc.BlockFilter(block_ids=some, hidden=hidden)
                request = rpc.ListBlocksRequest(page_size=_MAX_LIST, filter=filter_)
                async for block in items_of(self._stub.ListBlocks, request, "blocks"):
                    found[ids[block.id]] = block.id
        return found

    async def restore(
        self, request_id: str, target: ImportTarget, records: Sequence[Record], existing: Mapping[str, str]
    ) -> Outcome:
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
    stamp(copy, target)
    return copy


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
