"""Core memory: blocks, their agents, and their edits."""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from mnemesh.blocks.v1 import blocks_pb2, blocks_service_pb2, blocks_service_pb2_grpc

from mnemesh_client.inputs import json_text, update_request
from mnemesh_client.paging import Order, paginate, sort_order, whole_answer
from mnemesh_client.transport import Channel

_OWNER = blocks_pb2.Author(owner=blocks_pb2.OwnerAuthor())


class BlocksClient:
    """Calls of BlockService, as `client.blocks`. Edits are made as the owner, who may also edit read-only blocks.

    Errors: NotFound; AlreadyExists BLOCK_LABEL_TAKEN; FailedPrecondition BLOCK_LIMIT_EXCEEDED,
    BLOCK_TEXT_NOT_FOUND, BLOCK_TEXT_AMBIGUOUS; Aborted BLOCK_REVISION_MISMATCH.
    """

    def __init__(self, channel: Channel) -> None:
        self.stub = blocks_service_pb2_grpc.BlockServiceStub(channel)

    async def create(
        self,
        label: str,
        value: str = "",
        *,
        description: str | None = None,
        limit: int = 0,
        read_only: bool = False,
        tags: Sequence[str] = (),
        metadata: Mapping[str, Any] | str | None = None,
        agent_ids: Sequence[str] = (),
    ) -> blocks_pb2.Block:
        """Creates a block and attaches it to `agent_ids`. A `limit` of 0 is the server's default."""
        block = blocks_pb2.Block(
            label=label,
            value=value,
            description=description,
            limit=limit,
            read_only=read_only,
            tags=tags,
            metadata=json_text(metadata),
        )
        request = blocks_service_pb2.CreateBlockRequest(block=block, agent_ids=agent_ids)
        return (await self.stub.CreateBlock(request)).block

    async def get(self, block_id: str) -> blocks_pb2.Block:
        """Returns a block."""
        return (await self.stub.GetBlock(blocks_service_pb2.GetBlockRequest(block_id=block_id))).block

    def list(
        self,
        *,
        agent_id: str | None = None,
        label: str | None = None,
        tags_any: Sequence[str] = (),
        agents_exactly: int | None = None,
        order: Order | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[blocks_pb2.Block]:
        """Yields the blocks that match all arguments. `agents_exactly` is the number of agents that hold a block."""
        criteria = blocks_service_pb2.BlockFilter(
            agent_id=agent_id, label=label, tags_any=tags_any, agents_exactly=agents_exactly
        )
        request = blocks_service_pb2.ListBlocksRequest(order=sort_order(order), filter=criteria)
        return paginate(self.stub.ListBlocks, request, "blocks", limit)

    async def update(self, block_id: str, *, base_revision: int | None = None, **fields: Any) -> blocks_pb2.Block:
        """Updates fields of a block (label, value, description, limit, read_only, tags, …). None clears a field."""
        kind = blocks_service_pb2.UpdateBlockRequest
        request = update_request(kind, "block", block_id, fields, base_revision=base_revision)
        return (await self.stub.UpdateBlock(request)).block

    async def delete(self, block_id: str) -> None:
        """Deletes a block and detaches it from all agents."""
        await self.stub.DeleteBlock(blocks_service_pb2.DeleteBlockRequest(block_id=block_id))

    async def attach(self, agent_id: str, block_id: str) -> None:
        """Attaches a block to an agent. Several agents may share one."""
        await self.stub.AttachBlock(blocks_service_pb2.AttachBlockRequest(agent_id=agent_id, block_id=block_id))

    async def detach(self, agent_id: str, *, label: str) -> None:
        """Detaches the block with a label from an agent. The block is kept."""
        await self.stub.DetachBlock(blocks_service_pb2.DetachBlockRequest(agent_id=agent_id, label=label))

    async def core_memory(self, agent_id: str) -> blocks_pb2.CoreMemory:
        """Returns all blocks of an agent, in one consistent read."""
        request = blocks_service_pb2.GetCoreMemoryRequest(agent_id=agent_id)
        return (await self.stub.GetCoreMemory(request)).core_memory

    async def core_memory_since(self, agent_id: str, revision: int) -> blocks_pb2.CoreMemory | None:
        """Returns all blocks of an agent, or None if they are still at `revision`."""
        request = blocks_service_pb2.GetCoreMemoryRequest(agent_id=agent_id, if_revision=revision)
        response = await self.stub.GetCoreMemory(request)
        return None if response.not_modified else response.core_memory

    async def append(self, agent_id: str, label: str, text: str) -> blocks_pb2.Block:
        """Appends text on a new line to an agent's block."""
        return await self._edit(agent_id, label, append=blocks_service_pb2.AppendEdit(text=text))

    async def replace(self, agent_id: str, label: str, old: str, new: str) -> blocks_pb2.Block:
        """Replaces the only occurrence of `old` in an agent's block."""
        edit = blocks_service_pb2.ReplaceUniqueEdit(old_text=old, new_text=new)
        return await self._edit(agent_id, label, replace_unique=edit)

    async def insert(
        self, agent_id: str, label: str, line: int, text: str, *, base_revision: int | None = None
    ) -> blocks_pb2.Block:
        """Inserts text after a line: 0 is the start of the block, -1 its end."""
        edit = blocks_service_pb2.InsertLineEdit(line=line, text=text, base_revision=base_revision)
        return await self._edit(agent_id, label, insert_line=edit)

    async def rethink(
        self, agent_id: str, label: str, value: str, *, base_revision: int | None = None
    ) -> blocks_pb2.Block:
        """Replaces the whole value of an agent's block."""
        edit = blocks_service_pb2.RethinkEdit(value=value, base_revision=base_revision)
        return await self._edit(agent_id, label, rethink=edit)

    def revisions(self, block_id: str, *, limit: int | None = None) -> AsyncIterator[blocks_pb2.BlockRevision]:
        """Yields the revisions of a block, newest first, each with its diff."""
        request = blocks_service_pb2.ListBlockRevisionsRequest(block_id=block_id, include_diff=True)
        return paginate(self.stub.ListBlockRevisions, request, "revisions", limit)

    async def count(self, *, agent_id: str | None = None, label: str | None = None) -> int:
        """Returns the number of blocks that match all arguments."""
        criteria = blocks_service_pb2.BlockFilter(agent_id=agent_id, label=label)
        return (await self.stub.CountBlocks(blocks_service_pb2.CountBlocksRequest(filter=criteria))).count

    def agents(self, block_id: str, *, limit: int | None = None) -> AsyncIterator[str]:
        """Yields the ids of the agents that hold a block."""
        request = blocks_service_pb2.ListBlockAgentsRequest(block_id=block_id)
        return paginate(self.stub.ListBlockAgents, request, "agent_ids", limit)

    async def core_memories(self, agent_ids: Sequence[str]) -> Sequence[blocks_pb2.CoreMemory]:
        """Returns the core memories of up to 1000 agents, in their order."""
        request = blocks_service_pb2.BatchGetCoreMemoryRequest(agent_ids=agent_ids)
        return list((await whole_answer(self.stub.BatchGetCoreMemory, request, "core_memories")).core_memories)

    async def revert(
        self, block_id: str, revision: int, *, base_revision: int | None = None, request_id: str = ""
    ) -> blocks_pb2.Block:
        """Writes the value of an earlier revision as a new one.

        Args:
            block_id: the block.
            revision: the number of the revision, as `revisions` yields it.
            base_revision: the current revision; the call is refused if the block has changed since.
            request_id: the idempotency key; empty creates a new one.

        Raises:
            NotFound: there is no such revision.
            Aborted: BLOCK_REVISION_MISMATCH.
        """
        return await self._revert(block_id, base_revision, request_id, revision=revision)

    async def undo(self, block_id: str, *, request_id: str = "") -> blocks_pb2.Block:
        """Writes the previous value as a new revision. Raises FailedPrecondition BLOCK_NO_HISTORY."""
        return await self._revert(block_id, None, request_id, undo=blocks_service_pb2.UndoTarget())

    async def redo(self, block_id: str, *, request_id: str = "") -> blocks_pb2.Block:
        """Writes the value that `undo` replaced as a new revision. Raises FailedPrecondition BLOCK_NO_HISTORY."""
        return await self._revert(block_id, None, request_id, redo=blocks_service_pb2.RedoTarget())

    async def _revert(
        self, block_id: str, base_revision: int | None, request_id: str, **target: Any
    ) -> blocks_pb2.Block:
        request = blocks_service_pb2.RevertBlockRequest(
            request_id=request_id, block_id=block_id, author=_OWNER, base_revision=base_revision, **target
        )
        return (await self.stub.RevertBlock(request)).block

    async def _edit(self, agent_id: str, label: str, **edit: Any) -> blocks_pb2.Block:
        request = blocks_service_pb2.EditBlockRequest(agent_id=agent_id, label=label, author=_OWNER, **edit)
        return (await self.stub.EditBlock(request)).block
