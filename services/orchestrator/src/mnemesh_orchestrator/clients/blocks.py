"""The blocks service over gRPC."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import grpc
from google.protobuf.field_mask_pb2 import FieldMask
from mnemesh.blocks.v1 import blocks_pb2 as pb
from mnemesh.blocks.v1 import blocks_service_pb2 as rpc
from mnemesh.blocks.v1.blocks_service_pb2_grpc import BlockServiceStub
from mnemesh_kit.errors import Aborted, NotFound
from mnemesh_kit.time import optional_timestamp_from_proto
from mnemesh_types.convert import provenance_from_proto

from mnemesh_orchestrator.clients import deadlines
from mnemesh_orchestrator.model.core_memory import (
    AgentAuthor,
    Append,
    Block,
    BlockEdit,
    CoreMemory,
    InsertLine,
    NewBlock,
    Patch,
    ReplaceAll,
    ReplaceUnique,
    Rethink,
)
from mnemesh_orchestrator.model.erasure import Erased


class BlocksClient:
    """CoreMemoryPort over gRPC."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = BlockServiceStub(channel)

    async def get(
        self, agent_id: str, if_revision: int | None = None, conversation_id: str | None = None
    ) -> CoreMemory | None:
        """See CoreMemoryPort."""
        request = rpc.GetCoreMemoryRequest(agent_id=agent_id, if_revision=if_revision, conversation_id=conversation_id)
        response = await self._stub.GetCoreMemory(request, timeout=deadlines.READ)
        return None if response.not_modified else core_memory_from_proto(response.core_memory)

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
        """See CoreMemoryPort."""
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
        """See CoreMemoryPort."""
        request = rpc.ReleaseBlocksRequest(request_id=request_id, agent_id=agent_id, conversation_id=conversation_id)
        await self._stub.ReleaseBlocks(request, timeout=deadlines.WRITE)

    async def edit(self, request_id: str, author: AgentAuthor, label: str, edit: BlockEdit) -> Block:
        """See CoreMemoryPort."""
        request = rpc.EditBlockRequest(
            request_id=request_id,
            agent_id=author.agent_id,
            label=label,
            author=_author_to_proto(author),
            conversation_id=author.conversation_id,
            **_EDITS[type(edit)](edit),
        )
        response = await self._stub.EditBlock(request, timeout=deadlines.WRITE)
        return block_from_proto(response.block)

    async def create(self, request_id: str, agent_id: str, block: NewBlock) -> Block:
        """See CoreMemoryPort."""
        request = rpc.CreateBlockRequest(
            request_id=request_id,
            block=pb.Block(
                label=block.label,
                description=block.description,
                value=block.value,
                limit=block.limit,
                read_only=block.read_only,
                metadata=block.metadata,
                tags=block.tags,
                identity_ids=block.identity_ids,
                name=block.name,
                hidden=block.hidden,
                is_template=block.is_template,
                template_name=block.template_name,
                preserve_on_migration=block.preserve_on_migration,
            ),
            agent_ids=[agent_id],
            created_for_agent_id=agent_id,
        )
        response = await self._stub.CreateBlock(request, timeout=deadlines.WRITE)
        return block_from_proto(response.block)

    async def attach(self, request_id: str, agent_id: str, block_id: str) -> None:
        """See CoreMemoryPort."""
        request = rpc.AttachBlockRequest(request_id=request_id, agent_id=agent_id, block_id=block_id)
        await self._stub.AttachBlock(request, timeout=deadlines.WRITE)

    async def detach(self, request_id: str, agent_id: str, label: str) -> None:
        """See CoreMemoryPort."""
        request = rpc.DetachBlockRequest(request_id=request_id, agent_id=agent_id, label=label)
        await self._stub.DetachBlock(request, timeout=deadlines.WRITE)

    async def detach_block(self, request_id: str, agent_id: str, block_id: str) -> bool:
        """See CoreMemoryPort."""
        request = rpc.DetachBlockRequest(request_id=request_id, agent_id=agent_id, block_id=block_id)
        try:
            await self._stub.DetachBlock(request, timeout=deadlines.WRITE)
        except NotFound:
            return False
        return True

    async def relabel(self, request_id: str, block_id: str, label: str) -> Block:
        """See CoreMemoryPort."""
        return await self._update(request_id, pb.Block(id=block_id, label=label), "label")

    async def delete(self, request_id: str, block_id: str) -> bool:
        """See CoreMemoryPort."""
        try:
            await self._stub.GetBlock(rpc.GetBlockRequest(block_id=block_id), timeout=deadlines.READ)
        except NotFound:
            return False
        await self._stub.DeleteBlock(
            rpc.DeleteBlockRequest(request_id=request_id, block_id=block_id), timeout=deadlines.WRITE
        )
        return True

    async def identify(self, request_id: str, block_id: str, identity_id: str, *, attach: bool) -> bool:
        """See CoreMemoryPort."""
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
        """See CoreMemoryPort."""
        response = await self._stub.GetBlock(rpc.GetBlockRequest(block_id=block_id), timeout=deadlines.READ)
        return tuple(response.block.identity_ids)

    async def identified(self, identity_id: str) -> tuple[str, ...]:
        """See CoreMemoryPort."""
        request = rpc.ListBlocksRequest(page_size=1_000, filter=rpc.BlockFilter(identity_id=identity_id))
        block_ids: list[str] = []
        while True:
            page = await self._stub.ListBlocks(request, timeout=deadlines.READ)
            block_ids += [block.id for block in page.blocks]
            if not page.next_page_token:
                return tuple(sorted(block_ids))
            request.page_token = page.next_page_token

    async def describe(self, request_id: str, block_id: str, description: str) -> Block:
        """See CoreMemoryPort."""
        return await self._update(request_id, pb.Block(id=block_id, description=description), "description")

    async def link(self, request_id: str, link_id: str, agent_ids: Sequence[str], source_agent_id: str) -> None:
        """See CoreMemoryPort."""
        request = rpc.LinkAgentsRequest(
            request_id=request_id, link_id=link_id, agent_ids=agent_ids, source_agent_id=source_agent_id
        )
        await self._stub.LinkAgents(request, timeout=deadlines.WRITE)

    async def unlink(self, request_id: str, link_id: str) -> None:
        """See CoreMemoryPort."""
        request = rpc.UnlinkAgentsRequest(request_id=request_id, link_id=link_id)
        await self._stub.UnlinkAgents(request, timeout=deadlines.WRITE)

    async def erase_agent(
        self, request_id: str, agent_id: str, *, unshared: bool = False, together_with: Sequence[str] = ()
    ) -> Erased:
        """See CoreMemoryPort."""
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
        return block_from_proto(response.block)


_OPTIONAL: Final[tuple[Any, ...]] = ("description", "name", "metadata", "template_name", "created_for_agent_id")


def block_from_proto(block: pb.Block) -> Block:
    """Returns the block of a message."""
    return Block(
        id=block.id,
        label=block.label,
        value=block.value,
        limit=block.limit,
        read_only=block.read_only,
        revision=block.revision,
        tags=tuple(block.tags),
        hidden=block.hidden,
        is_template=block.is_template,
        preserve_on_migration=block.preserve_on_migration,
        identity_ids=tuple(block.identity_ids),
        content_revision=block.content_revision,
        created_at=optional_timestamp_from_proto(block, "create_time"),
        updated_at=optional_timestamp_from_proto(block, "update_time"),
        provenance=replace(
            provenance_from_proto(block.provenance),
            created_by_id=block.provenance.created_by_id,
            last_updated_by_id=block.provenance.last_updated_by_id,
        ),
        **{name: getattr(block, name) for name in _OPTIONAL if block.HasField(name)},
    )


def core_memory_from_proto(core_memory: pb.CoreMemory) -> CoreMemory:
    """Returns the core memory of a message."""
    return CoreMemory(
        agent_id=core_memory.agent_id,
        revision=core_memory.revision,
        blocks=tuple(block_from_proto(block) for block in core_memory.blocks),
        updated_at=optional_timestamp_from_proto(core_memory, "update_time", "update_time"),
    )


def _author_to_proto(author: AgentAuthor) -> pb.Author:
    agent = pb.AgentAuthor(agent_id=author.agent_id, tool_call_id=author.tool_call_id, run_id=author.run_id)
    return pb.Author(agent=agent)


_EDITS: Final[dict[type[BlockEdit], Callable[[Any], dict[str, Any]]]] = {
    Append: lambda edit: {"append": rpc.AppendEdit(text=edit.text)},
    ReplaceAll: lambda edit: {"replace_all": rpc.ReplaceAllEdit(old_text=edit.old_text, new_text=edit.new_text)},
    ReplaceUnique: lambda edit: {
        "replace_unique": rpc.ReplaceUniqueEdit(old_text=edit.old_text, new_text=edit.new_text)
    },
    InsertLine: lambda edit: {
        "insert_line": rpc.InsertLineEdit(line=edit.line, text=edit.text, base_revision=edit.base_revision)
    },
    Rethink: lambda edit: {"rethink": rpc.RethinkEdit(value=edit.value, base_revision=edit.base_revision)},
    Patch: lambda edit: {"patch": rpc.PatchEdit(patch=edit.patch)},
}
"""The field of the request that has the edit."""
