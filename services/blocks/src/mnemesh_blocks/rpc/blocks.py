"""The RPCs of core memory: decode, call, encode."""

from __future__ import annotations

from typing import Any, Final

import grpc
from mnemesh.blocks.v1 import blocks_service_pb2 as rpc
from mnemesh.blocks.v1 import blocks_service_pb2_grpc
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.idempotency import request_key
from mnemesh_kit.ids import require_id
from mnemesh_kit.paging import next_page_token, page_query

from mnemesh_blocks.model.validation import without_nul
from mnemesh_blocks.rpc.convert import blocks as messages
from mnemesh_blocks.rpc.convert import requests
from mnemesh_blocks.usecases.blocks import BlockService

MAX_BATCH: Final = 1000

Context = grpc.aio.ServicerContext[Any, Any]


class BlocksServicer(blocks_service_pb2_grpc.BlockServiceServicer):
    """`mnemesh.blocks.v1.BlockService`."""

    def __init__(self, service: BlockService) -> None:
        self._service = service

    async def CreateBlock(self, request: rpc.CreateBlockRequest, context: Context) -> rpc.CreateBlockResponse:
        """Creates a block, and attaches it where agents are named."""
        agents = [require_id(agent_id, "agent", "agent_ids") for agent_id in request.agent_ids]
        key = request_key(request, "CreateBlock")
        block = await self._service.create_block(messages.draft_from(request.block), agents, key)
        return rpc.CreateBlockResponse(block=messages.block_to(block))

    async def GetBlock(self, request: rpc.GetBlockRequest, context: Context) -> rpc.GetBlockResponse:
        """One block, now or then."""
        as_of = requests.moment_from(request, "as_of_time")
        block = await self._service.get_block(require_id(request.block_id, "block", "block_id"), as_of)
        return rpc.GetBlockResponse(block=messages.block_to(block))

    async def ListBlocks(self, request: rpc.ListBlocksRequest, context: Context) -> rpc.ListBlocksResponse:
        """A page of blocks."""
        query, order = page_query(request), requests.order_from(request.order_by)
        page = await self._service.list_blocks(requests.filter_from(request.filter), order, query)
        blocks = [messages.block_to(block) for block in page.items]
        return rpc.ListBlocksResponse(blocks=blocks, next_page_token=next_page_token(query, page))

    async def CountBlocks(self, request: rpc.CountBlocksRequest, context: Context) -> rpc.CountBlocksResponse:
        """How many blocks a list would give."""
        return rpc.CountBlocksResponse(count=await self._service.count_blocks(requests.filter_from(request.filter)))

    async def UpdateBlock(self, request: rpc.UpdateBlockRequest, context: Context) -> rpc.UpdateBlockResponse:
        """Changes the fields in the mask."""
        block = await self._service.update_block(
            require_id(request.block.id, "block", "block.id"),
            requests.changes_from(request),
            request.base_revision if request.HasField("base_revision") else None,
            request_key(request, "UpdateBlock"),
        )
        return rpc.UpdateBlockResponse(block=messages.block_to(block))

    async def DeleteBlock(self, request: rpc.DeleteBlockRequest, context: Context) -> rpc.DeleteBlockResponse:
        """Deletes a block."""
        block_id = require_id(request.block_id, "block", "block_id")
        await self._service.delete_block(block_id, request_key(request, "DeleteBlock"))
        return rpc.DeleteBlockResponse()

    async def AttachBlock(self, request: rpc.AttachBlockRequest, context: Context) -> rpc.AttachBlockResponse:
        """Gives a block to an agent."""
        revision = await self._service.attach_block(
            require_id(request.agent_id, "agent", "agent_id"),
            require_id(request.block_id, "block", "block_id"),
            request_key(request, "AttachBlock"),
        )
        return rpc.AttachBlockResponse(core_memory_revision=revision)

    async def DetachBlock(self, request: rpc.DetachBlockRequest, context: Context) -> rpc.DetachBlockResponse:
        """Takes a block from an agent."""
        agent_id, key = require_id(request.agent_id, "agent", "agent_id"), request_key(request, "DetachBlock")
        match request.WhichOneof("block"):
            case "block_id":
                named = {"block_id": require_id(request.block_id, "block", "block_id")}
            case "label":
                named = {"label": without_nul(request.label, "label")}
            case _:
                raise InvalidArgument("Either block_id or label is required.", field="block")
        block_id, revision = await self._service.detach_block(agent_id, key, **named)
        return rpc.DetachBlockResponse(block_id=block_id, core_memory_revision=revision)

    async def ListBlockAgents(
        self, request: rpc.ListBlockAgentsRequest, context: Context
    ) -> rpc.ListBlockAgentsResponse:
        """A page of the agents that hold a block."""
        query = page_query(request)
        page = await self._service.list_block_agents(require_id(request.block_id, "block", "block_id"), query)
        return rpc.ListBlockAgentsResponse(agent_ids=page.items, next_page_token=next_page_token(query, page))

    async def GetCoreMemory(self, request: rpc.GetCoreMemoryRequest, context: Context) -> rpc.GetCoreMemoryResponse:
        """An agent's core memory, unless the caller has it."""
        agent_id = require_id(request.agent_id, "agent", "agent_id")
        known = request.if_revision if request.HasField("if_revision") else None
        memory = await self._service.get_core_memory(agent_id, known, _conversation(request))
        if memory is None:
            return rpc.GetCoreMemoryResponse(not_modified=True)
        return rpc.GetCoreMemoryResponse(core_memory=messages.core_memory_to(memory))

    async def BatchGetCoreMemory(
        self, request: rpc.BatchGetCoreMemoryRequest, context: Context
    ) -> rpc.BatchGetCoreMemoryResponse:
        """The core memories of several agents."""
        if len(request.agent_ids) > MAX_BATCH:
            raise InvalidArgument(f"At most {MAX_BATCH} agents at once.", field="agent_ids")
        agents = [require_id(agent_id, "agent", "agent_ids") for agent_id in request.agent_ids]
        memories = await self._service.batch_get_core_memory(agents)
        return rpc.BatchGetCoreMemoryResponse(core_memories=[messages.core_memory_to(memory) for memory in memories])

    async def EditBlock(self, request: rpc.EditBlockRequest, context: Context) -> rpc.EditBlockResponse:
        """Makes one edit."""
        edited = await self._service.edit_block(
            require_id(request.agent_id, "agent", "agent_id"),
            without_nul(request.label, "label"),
            requests.edit_from(request),
            messages.author_from(request.author),
            request_key(request, "EditBlock"),
            _conversation(request),
        )
        return rpc.EditBlockResponse(block=messages.block_to(edited.block), core_memory_revision=edited.core_revision)

    async def IsolateBlocks(self, request: rpc.IsolateBlocksRequest, context: Context) -> rpc.IsolateBlocksResponse:
        """Gives a conversation blocks of its own."""
        blocks = await self._service.isolate_blocks(
            require_id(request.agent_id, "agent", "agent_id"),
            require_id(request.conversation_id, "conv", "conversation_id"),
            requests.labels_from(request.labels),
            _conversation(request, "source_conversation_id"),
            request_key(request, "IsolateBlocks"),
        )
        return rpc.IsolateBlocksResponse(blocks=[messages.block_to(block) for block in blocks])

    async def ReleaseBlocks(self, request: rpc.ReleaseBlocksRequest, context: Context) -> rpc.ReleaseBlocksResponse:
        """Deletes what a conversation has for itself."""
        deleted = await self._service.release_blocks(
            require_id(request.agent_id, "agent", "agent_id"),
            require_id(request.conversation_id, "conv", "conversation_id"),
            request_key(request, "ReleaseBlocks"),
        )
        return rpc.ReleaseBlocksResponse(deleted_blocks=deleted)

    async def ListBlockRevisions(
        self, request: rpc.ListBlockRevisionsRequest, context: Context
    ) -> rpc.ListBlockRevisionsResponse:
        """A page of the changes of a block."""
        query = page_query(request, default_ascending=False)
        block_id = require_id(request.block_id, "block", "block_id")
        page = await self._service.list_block_revisions(block_id, query, with_previous=request.include_diff)
        revisions = [messages.revision_to(revision, with_diff=request.include_diff) for revision in page.items]
        return rpc.ListBlockRevisionsResponse(revisions=revisions, next_page_token=next_page_token(query, page))

    async def RevertBlock(self, request: rpc.RevertBlockRequest, context: Context) -> rpc.RevertBlockResponse:
        """Writes an older value as a new revision."""
        block = await self._service.revert_block(
            require_id(request.block_id, "block", "block_id"),
            requests.target_from(request),
            messages.author_from(request.author),
            request.base_revision if request.HasField("base_revision") else None,
            request_key(request, "RevertBlock"),
        )
        return rpc.RevertBlockResponse(block=messages.block_to(block))

    async def EraseAgent(self, request: rpc.EraseAgentRequest, context: Context) -> rpc.EraseAgentResponse:
        """Forgets an agent."""
        detached, deleted = await self._service.erase_agent(
            require_id(request.agent_id, "agent", "agent_id"),
            request_key(request, "EraseAgent"),
            with_unshared_blocks=request.delete_unshared_blocks,
        )
        return rpc.EraseAgentResponse(detached_blocks=detached, deleted_blocks=deleted)


def _conversation(request: Any, field: str = "conversation_id") -> str | None:
    """The conversation that a request is about, if it is about one."""
    return require_id(getattr(request, field), "conv", field) if request.HasField(field) else None
