"""The servicer of `mnemesh.blocks.v1.BlockService`, with the conversion of its requests."""

from dataclasses import replace
from typing import Any, Final

import grpc
from mnemesh.blocks.v1 import blocks_pb2, blocks_service_pb2_grpc
from mnemesh.blocks.v1 import blocks_service_pb2 as pb
from mnemesh_kit.access import refuse_limited
from mnemesh_kit.call_context import Principal, current_principal
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.idempotency import request_key
from mnemesh_kit.paging import bounded, bounded_hits, next_page_token, offset_from_token, page_query
from mnemesh_kit.time import optional_timestamp_from_proto
from mnemesh_types.blocks import AUTHOR, Author, Block, BlockFilter, BlockRevision, OwnerAuthor
from mnemesh_types.twin import Conversion, enum_from_proto, enum_of, optional_field

from mnemesh_blocks.model.blocks import (
    DEFAULT_LIMIT,
    BlockOrder,
    Redo,
    RevertTarget,
    ToRevision,
    Undo,
    default_description,
)
from mnemesh_blocks.model.edits import Append, Edit, InsertLine, Patch, ReplaceAll, ReplaceUnique, Rethink
from mnemesh_blocks.usecases.blocks import BlockImportService, BlockService, RevisionService
from mnemesh_blocks.usecases.core_memory import ConversationBlockService, CoreMemoryService, LinkService

Context = grpc.aio.ServicerContext[Any, Any]

_PROVENANCE_IDS: Final = ("project_id", "template_id", "base_template_id", "deployment_id", "entity_id")
_UPDATABLE: Final = frozenset(
    {
        *("label", "value", "limit", "read_only", "tags", "hidden", "is_template", "preserve_on_migration"),
        *("identity_ids", "description", "name", "metadata", "template_name"),
        *(f"provenance.{name}" for name in _PROVENANCE_IDS),
    }
)
enum_of(pb.BlockOrderBy, BlockOrder, "CREATE_TIME")
_BLOCK: Final = Conversion(blocks_pb2.Block, Block)
_EDITS: Final[dict[str, Any]] = {
    "append": Append,
    "replace_all": ReplaceAll,
    "replace_unique": ReplaceUnique,
    "insert_line": InsertLine,
    "rethink": Rethink,
    "patch": Patch,
}


def author_from_proto(message: blocks_pb2.Author, caller: Principal) -> Author:
    """Returns the author of a change. An owner is always the caller.

    Raises:
        InvalidArgument: The message names no author.
    """
    author = AUTHOR.from_proto(message)
    if author is None:
        raise InvalidArgument("author must be set to agent or owner.", field="author")
    return OwnerAuthor(caller.subject_id) if isinstance(author, OwnerAuthor) else author


def draft_from_proto(message: blocks_pb2.Block, field: str, created_for_agent_id: str | None) -> Block:
    """Returns the block that a caller wants to create. Its id, times and author are not used."""
    block = Block.from_proto(message, field)
    refuse_limited(block.identity_ids, f"{field}.identity_ids")
    return replace(
        block,
        limit=block.limit or DEFAULT_LIMIT,
        description=default_description(block.label) if block.description is None else block.description,
        revision=1,
        content_revision=1,
        created_for_agent_id=created_for_agent_id,
    )


def exported_block_from_proto(message: blocks_pb2.Block, field: str) -> Block:
    block = Block.from_proto(message, field)
    return replace(block, content_revision=block.content_revision or block.revision)


def block_update_from_proto(request: pb.UpdateBlockRequest) -> dict[str, Any]:
    """Returns the new values that the mask of an update names, by the field names of `Block`.

    Raises:
        InvalidArgument: The mask is empty, or names a field that cannot be updated.
    """
    changes = _BLOCK.changes(request.block, request.update_mask, _UPDATABLE, "block")
    refuse_limited(changes.get("identity_ids"), "block.identity_ids")
    return changes | ({"limit": changes["limit"] or DEFAULT_LIMIT} if "limit" in changes else {})


def revert_target_from_proto(request: pb.RevertBlockRequest) -> RevertTarget:
    """Returns the target of a revert.

    Raises:
        InvalidArgument: The request has no target.
    """
    match request.WhichOneof("target"):
        case "revision":
            return ToRevision(request.revision)
        case "undo":
            return Undo()
        case "redo":
            return Redo()
        case _:
            raise InvalidArgument("target must be set to revision, undo or redo.", field="target")


def edit_from_proto(request: pb.EditBlockRequest) -> Edit:
    """Returns the edit of a request.

    Raises:
        InvalidArgument: The request has no edit.
    """
    kind = request.WhichOneof("edit")
    if kind is None:
        raise InvalidArgument("edit is required.", field="edit")
    edit: Edit = _EDITS[kind].from_proto(getattr(request, kind))
    return edit


class BlocksServicer(blocks_service_pb2_grpc.BlockServiceServicer):
    """Serves `mnemesh.blocks.v1.BlockService`."""

    def __init__(
        self,
        *,
        blocks: BlockService,
        core_memory: CoreMemoryService,
        conversation_blocks: ConversationBlockService,
        revisions: RevisionService,
        links: LinkService,
        imports: BlockImportService,
    ) -> None:
        self._blocks = blocks
        self._core_memory = core_memory
        self._conversation_blocks = conversation_blocks
        self._revisions = revisions
        self._links = links
        self._imports = imports

    async def CreateBlock(self, request: pb.CreateBlockRequest, context: Context) -> pb.CreateBlockResponse:
        block = await self._blocks.create_block(
            current_principal(),
            draft_from_proto(request.block, "block", optional_field(request, "created_for_agent_id")),
            request.agent_ids,
            request_key(request, "CreateBlock"),
        )
        return pb.CreateBlockResponse(block=block.to_proto())

    async def CreateCoreMemory(
        self, request: pb.CreateCoreMemoryRequest, context: Context
    ) -> pb.CreateCoreMemoryResponse:
        memory = await self._blocks.create_core_memory(
            current_principal(),
            request.agent_id,
            [draft_from_proto(each, f"blocks[{at}]", request.agent_id) for at, each in enumerate(request.blocks)],
            request.block_ids,
            request_key(request, "CreateCoreMemory"),
        )
        return pb.CreateCoreMemoryResponse(core_memory=memory.to_proto())

    async def GetBlock(self, request: pb.GetBlockRequest, context: Context) -> pb.GetBlockResponse:
        """Returns a block as it is now, or as it was at a time."""
        as_of = optional_timestamp_from_proto(request, "as_of_time")
        block = await self._blocks.get_block(current_principal(), request.block_id, as_of)
        return pb.GetBlockResponse(block=block.to_proto())

    async def ListBlocks(self, request: pb.ListBlocksRequest, context: Context) -> pb.ListBlocksResponse:
        query = page_query(request)
        found = await self._blocks.list_blocks(
            current_principal(),
            BlockFilter.from_proto(request.filter, "filter"),
            enum_from_proto(BlockOrder, request.order_by, "order_by"),
            query,
        )
        page = bounded(query, found.map(Block.to_proto))
        return pb.ListBlocksResponse(blocks=page.items, next_page_token=next_page_token(query, page))

    async def CountBlocks(self, request: pb.CountBlocksRequest, context: Context) -> pb.CountBlocksResponse:
        count = await self._blocks.count_blocks(current_principal(), BlockFilter.from_proto(request.filter, "filter"))
        return pb.CountBlocksResponse(count=count)

    async def UpdateBlock(self, request: pb.UpdateBlockRequest, context: Context) -> pb.UpdateBlockResponse:
        block = await self._blocks.update_block(
            current_principal(),
            request.block.id,
            block_update_from_proto(request),
            optional_field(request, "base_revision"),
            request_key(request, "UpdateBlock"),
        )
        return pb.UpdateBlockResponse(block=block.to_proto())

    async def DeleteBlock(self, request: pb.DeleteBlockRequest, context: Context) -> pb.DeleteBlockResponse:
        key = request_key(request, "DeleteBlock")
        await self._blocks.delete_block(current_principal(), request.block_id, key)
        return pb.DeleteBlockResponse()

    async def ListBlockAgents(self, request: pb.ListBlockAgentsRequest, context: Context) -> pb.ListBlockAgentsResponse:
        query = page_query(request)
        page = bounded(query, await self._blocks.list_block_agents(current_principal(), request.block_id, query))
        return pb.ListBlockAgentsResponse(agent_ids=page.items, next_page_token=next_page_token(query, page))

    async def AttachBlock(self, request: pb.AttachBlockRequest, context: Context) -> pb.AttachBlockResponse:
        key = request_key(request, "AttachBlock")
        revision = await self._core_memory.attach_block(current_principal(), request.agent_id, request.block_id, key)
        return pb.AttachBlockResponse(core_memory_revision=revision)

    async def DetachBlock(self, request: pb.DetachBlockRequest, context: Context) -> pb.DetachBlockResponse:
        if request.WhichOneof("block") is None:
            raise InvalidArgument("block must be set to block_id or label.", field="block")
        block_id, revision = await self._core_memory.detach_block(
            current_principal(),
            request.agent_id,
            request_key(request, "DetachBlock"),
            block_id=optional_field(request, "block_id"),
            label=optional_field(request, "label"),
        )
        return pb.DetachBlockResponse(block_id=block_id, core_memory_revision=revision)

    async def GetCoreMemory(self, request: pb.GetCoreMemoryRequest, context: Context) -> pb.GetCoreMemoryResponse:
        """Returns an agent's core memory, unless the caller has the current revision."""
        memory = await self._core_memory.get_core_memory(
            current_principal(),
            request.agent_id,
            optional_field(request, "if_revision"),
            optional_field(request, "conversation_id"),
        )
        if memory is None:
            return pb.GetCoreMemoryResponse(not_modified=True)
        return pb.GetCoreMemoryResponse(core_memory=memory.to_proto())

    async def BatchGetCoreMemory(
        self, request: pb.BatchGetCoreMemoryRequest, context: Context
    ) -> pb.BatchGetCoreMemoryResponse:
        left = request.agent_ids[offset_from_token(request) :]
        memories = await self._core_memory.batch_get_core_memory(current_principal(), left)
        shown, token = bounded_hits(request, [memory.to_proto() for memory in memories])
        return pb.BatchGetCoreMemoryResponse(core_memories=shown, next_page_token=token)

    async def EditBlock(self, request: pb.EditBlockRequest, context: Context) -> pb.EditBlockResponse:
        caller = current_principal()
        edited = await self._core_memory.edit_block(
            caller,
            request.agent_id,
            request.label,
            edit_from_proto(request),
            author_from_proto(request.author, caller),
            request_key(request, "EditBlock"),
            optional_field(request, "conversation_id"),
        )
        return pb.EditBlockResponse(block=edited.block.to_proto(), core_memory_revision=edited.core_memory_revision)

    async def EraseAgent(self, request: pb.EraseAgentRequest, context: Context) -> pb.EraseAgentResponse:
        detached, deleted = await self._core_memory.erase_agent(
            current_principal(),
            request.agent_id,
            request_key(request, "EraseAgent"),
            with_unshared_blocks=request.delete_unshared_blocks,
            together_with=request.together_with_agent_ids,
        )
        return pb.EraseAgentResponse(detached_blocks=detached, deleted_blocks=deleted)

    async def IsolateBlocks(self, request: pb.IsolateBlocksRequest, context: Context) -> pb.IsolateBlocksResponse:
        blocks = await self._conversation_blocks.isolate_blocks(
            current_principal(),
            request.agent_id,
            request.conversation_id,
            request.labels,
            optional_field(request, "source_conversation_id"),
            request_key(request, "IsolateBlocks"),
            create_missing=request.create_missing,
        )
        return pb.IsolateBlocksResponse(blocks=[block.to_proto() for block in blocks])

    async def ReleaseBlocks(self, request: pb.ReleaseBlocksRequest, context: Context) -> pb.ReleaseBlocksResponse:
        deleted = await self._conversation_blocks.release_blocks(
            current_principal(),
            request.agent_id,
            request.conversation_id,
            request_key(request, "ReleaseBlocks"),
        )
        return pb.ReleaseBlocksResponse(deleted_blocks=deleted)

    async def LinkAgents(self, request: pb.LinkAgentsRequest, context: Context) -> pb.LinkAgentsResponse:
        await self._links.link_agents(
            current_principal(),
            request.link_id,
            request.agent_ids,
            request.source_agent_id,
            request_key(request, "LinkAgents"),
        )
        return pb.LinkAgentsResponse()

    async def ImportBlocks(self, request: pb.ImportBlocksRequest, context: Context) -> pb.ImportBlocksResponse:
        existing = await self._imports.import_blocks(
            current_principal(),
            request.agent_id,
            optional_field(request, "conversation_id"),
            [exported_block_from_proto(block, f"blocks[{at}]") for at, block in enumerate(request.blocks)],
            [BlockRevision.from_proto(each, f"revisions[{at}]") for at, each in enumerate(request.revisions)],
            request_key(request, "ImportBlocks"),
        )
        return pb.ImportBlocksResponse(existing_block_ids=existing)

    async def UnlinkAgents(self, request: pb.UnlinkAgentsRequest, context: Context) -> pb.UnlinkAgentsResponse:
        key = request_key(request, "UnlinkAgents")
        await self._links.unlink_agents(current_principal(), request.link_id, key)
        return pb.UnlinkAgentsResponse()

    async def ListBlockRevisions(
        self, request: pb.ListBlockRevisionsRequest, context: Context
    ) -> pb.ListBlockRevisionsResponse:
        query = page_query(request, default_ascending=False)
        found = await self._revisions.list_block_revisions(
            current_principal(), request.block_id, query, with_previous=request.include_diff
        )
        page = bounded(query, found.map(BlockRevision.to_proto))
        return pb.ListBlockRevisionsResponse(revisions=page.items, next_page_token=next_page_token(query, page))

    async def RevertBlock(self, request: pb.RevertBlockRequest, context: Context) -> pb.RevertBlockResponse:
        caller = current_principal()
        block = await self._revisions.revert_block(
            caller,
            request.block_id,
            revert_target_from_proto(request),
            author_from_proto(request.author, caller),
            optional_field(request, "base_revision"),
            request_key(request, "RevertBlock"),
        )
        return pb.RevertBlockResponse(block=block.to_proto())
