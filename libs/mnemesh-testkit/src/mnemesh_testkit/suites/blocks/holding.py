"""Core memory: attached blocks, their labels, and what remains after an agent is erased."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from mnemesh.blocks.v1 import blocks_pb2
from mnemesh.blocks.v1 import blocks_service_pb2 as rpc
from mnemesh_kit.call_context import Principal, as_principal
from mnemesh_kit.errors import AlreadyExists, FailedPrecondition, InvalidArgument, NotFound
from mnemesh_kit.ids import new_id

from mnemesh_testkit.suites.blocks.calls import (
    AGENT,
    PEER,
    BlocksCases,
    core,
    create,
    edit,
    history,
    revert,
    update,
)

if TYPE_CHECKING:
    from mnemesh.blocks.v1.blocks_service_pb2_grpc import BlockServiceAsyncStub


class Holding(BlocksCases):
    """Labels, sharing, revisions of core memory, deletion, organizations and erasure."""

    async def test_labels_are_unique_for_each_agent(self, blocks: BlockServiceAsyncStub) -> None:
        held = await create(blocks, "human", AGENT)
        other = await create(blocks, "human", PEER)
        third = await create(blocks, "free", AGENT)
        for call in (
            blocks.AttachBlock(rpc.AttachBlockRequest(agent_id=AGENT, block_id=other.id)),
            create(blocks, "human", AGENT),
            update(blocks, third.id, label="human"),
        ):
            with pytest.raises(AlreadyExists) as refused:
                await call
            assert refused.value.reason == "BLOCK_LABEL_TAKEN"
            assert refused.value.metadata == {"label": "human", "agent_id": AGENT}
        again = await blocks.AttachBlock(rpc.AttachBlockRequest(agent_id=AGENT, block_id=held.id))
        assert again.core_memory_revision == (await core(blocks)).revision == 2
        assert (await update(blocks, third.id, label="renamed")).label == "renamed"
        assert [block.label for block in (await core(blocks)).blocks] == ["human", "renamed"]

    async def test_shared_block_is_visible_to_each_holder_until_it_is_detached(
        self, blocks: BlockServiceAsyncStub
    ) -> None:
        shared = await create(blocks, "human", AGENT, PEER, value="a")
        seen = (await core(blocks, PEER)).revision
        unchanged = await blocks.GetCoreMemory(rpc.GetCoreMemoryRequest(agent_id=PEER, if_revision=seen))
        assert unchanged.not_modified
        assert not unchanged.HasField("core_memory")
        await edit(blocks, append=rpc.AppendEdit(text="b"))
        changed = await blocks.GetCoreMemory(rpc.GetCoreMemoryRequest(agent_id=PEER, if_revision=seen))
        assert changed.core_memory.blocks[0].value == "a\nb"
        gone = await blocks.DetachBlock(rpc.DetachBlockRequest(agent_id=PEER, label="human"))
        assert gone.block_id == shared.id
        assert not (await core(blocks, PEER)).blocks
        with pytest.raises(NotFound):
            await blocks.DetachBlock(rpc.DetachBlockRequest(agent_id=PEER, block_id=shared.id))
        batch = rpc.BatchGetCoreMemoryRequest(agent_ids=[PEER, AGENT, PEER, new_id("agent")])
        memories = (await blocks.BatchGetCoreMemory(batch)).core_memories
        assert [(memory.agent_id, len(memory.blocks)) for memory in memories[:3]] == [(PEER, 0), (AGENT, 1), (PEER, 0)]
        assert memories[3].revision == 0

    async def test_deleted_block_is_removed_from_every_holder(self, blocks: BlockServiceAsyncStub) -> None:
        block = await create(blocks, "human", AGENT)
        for _ in range(2):
            await blocks.DeleteBlock(rpc.DeleteBlockRequest(block_id=block.id))
        assert not (await core(blocks)).blocks
        for call in (
            blocks.GetBlock(rpc.GetBlockRequest(block_id=block.id)),
            history(blocks, block.id),
            edit(blocks, append=rpc.AppendEdit(text="x")),
            update(blocks, block.id, value="x"),
        ):
            with pytest.raises(NotFound):
                await call

    async def test_blocks_of_another_organization_are_not_found(self, blocks: BlockServiceAsyncStub) -> None:
        block = await create(blocks, "human", AGENT, value="secret")
        with as_principal(Principal(new_id("org"), new_id("user"))):
            for call in (
                blocks.GetBlock(rpc.GetBlockRequest(block_id=block.id)),
                update(blocks, block.id, value="x"),
                edit(blocks, append=rpc.AppendEdit(text="x")),
                blocks.AttachBlock(rpc.AttachBlockRequest(agent_id=AGENT, block_id=block.id)),
                blocks.DetachBlock(rpc.DetachBlockRequest(agent_id=AGENT, block_id=block.id)),
                blocks.ListBlockAgents(rpc.ListBlockAgentsRequest(block_id=block.id)),
                history(blocks, block.id),
                revert(blocks, block.id, revision=1),
            ):
                with pytest.raises(NotFound):
                    await call
            assert not (await core(blocks)).blocks
            assert not (await blocks.ListBlocks(rpc.ListBlocksRequest())).blocks
            await blocks.DeleteBlock(rpc.DeleteBlockRequest(block_id=block.id))
        assert (await core(blocks)).blocks[0].value == "secret"

    async def test_erased_agent_refuses_late_writes(self, blocks: BlockServiceAsyncStub) -> None:
        shared, _ = await create(blocks, "human", AGENT, PEER), await create(blocks, "own", AGENT)
        erase = rpc.EraseAgentRequest(request_id="erase-1", agent_id=AGENT, delete_unshared_blocks=True)
        for _ in range(2):
            done = await blocks.EraseAgent(erase)
            assert (done.detached_blocks, done.deleted_blocks) == (2, 1)
        for call in (
            edit(blocks, append=rpc.AppendEdit(text="late")),
            create(blocks, "late", AGENT),
            blocks.AttachBlock(rpc.AttachBlockRequest(agent_id=AGENT, block_id=shared.id)),
        ):
            with pytest.raises(FailedPrecondition) as refused:
                await call
            assert refused.value.reason == "ERASED"
        assert [block.label for block in (await core(blocks, PEER)).blocks] == ["human"]
        assert (await blocks.CountBlocks(rpc.CountBlocksRequest())).count == 1

    @pytest.mark.parametrize("delete_unshared", [False, True])
    async def test_erasure_of_an_agent_deletes_attached_blocks_only_if_requested(
        self, blocks: BlockServiceAsyncStub, delete_unshared: bool
    ) -> None:
        await create(blocks, "given", AGENT)
        for label, holders in (("own", [AGENT]), ("lent", [AGENT, PEER])):
            made = rpc.CreateBlockRequest(
                block=blocks_pb2.Block(label=label), agent_ids=holders, created_for_agent_id=AGENT
            )
            assert (await blocks.CreateBlock(made)).block.created_for_agent_id == AGENT
        done = await blocks.EraseAgent(rpc.EraseAgentRequest(agent_id=AGENT, delete_unshared_blocks=delete_unshared))
        assert (done.detached_blocks, done.deleted_blocks) == (3, 2 if delete_unshared else 1)
        left = [block.label for block in (await blocks.ListBlocks(rpc.ListBlocksRequest())).blocks]
        assert sorted(left) == (["lent"] if delete_unshared else ["given", "lent"])
        assert [block.label for block in (await core(blocks, PEER)).blocks] == ["lent"]

    async def test_creator_agent_must_be_a_holder_of_the_new_block(self, blocks: BlockServiceAsyncStub) -> None:
        made = rpc.CreateBlockRequest(block=blocks_pb2.Block(label="own"), agent_ids=[AGENT], created_for_agent_id=PEER)
        with pytest.raises(InvalidArgument) as refused:
            await blocks.CreateBlock(made)
        assert refused.value.field == "created_for_agent_id"

    async def test_core_memory_has_the_order_of_attachment(self, blocks: BlockServiceAsyncStub) -> None:
        made = [await create(blocks, label, AGENT) for label in ("z", "a", "m")]
        await blocks.DetachBlock(rpc.DetachBlockRequest(agent_id=AGENT, block_id=made[0].id))
        await blocks.AttachBlock(rpc.AttachBlockRequest(agent_id=AGENT, block_id=made[0].id))
        assert [block.label for block in (await core(blocks)).blocks] == ["a", "m", "z"]

    async def test_edit_increases_the_revision_of_its_holders_only(self, blocks: BlockServiceAsyncStub) -> None:
        bystander = new_id("agent")
        shared = await create(blocks, "shared", AGENT, PEER)
        await create(blocks, "own", bystander)
        agents = (AGENT, PEER, bystander)

        async def revisions() -> list[int]:
            answer = await blocks.BatchGetCoreMemory(rpc.BatchGetCoreMemoryRequest(agent_ids=agents))
            return [memory.revision for memory in answer.core_memories]

        before = await revisions()
        await update(blocks, shared.id, value="new")
        changed = await revisions()
        await blocks.DeleteBlock(rpc.DeleteBlockRequest(block_id=shared.id))
        deleted = await revisions()
        assert [b - a for a, b in zip(before, changed, strict=True)] == [1, 1, 0]
        assert [b - a for a, b in zip(changed, deleted, strict=True)] == [1, 1, 0]

    async def test_renamed_block_has_its_new_label_for_every_holder(self, blocks: BlockServiceAsyncStub) -> None:
        block = await create(blocks, "old", AGENT, PEER)
        await update(blocks, block.id, label="new")
        assert (await edit(blocks, "new", append=rpc.AppendEdit(text="x"))).id == block.id
        with pytest.raises(NotFound) as refused:
            await edit(blocks, "old", append=rpc.AppendEdit(text="x"))
        assert refused.value.reason == "BLOCK_LABEL_NOT_FOUND"
        await create(blocks, "taken", PEER)
        with pytest.raises(AlreadyExists) as conflict:
            await update(blocks, block.id, label="taken")
        assert conflict.value.metadata == {"label": "taken", "agent_id": PEER}
        assert [block.label for block in (await core(blocks, PEER)).blocks] == ["new", "taken"]

    async def test_unknown_agent_can_be_erased(self, blocks: BlockServiceAsyncStub) -> None:
        done = await blocks.EraseAgent(rpc.EraseAgentRequest(agent_id=PEER))
        assert (done.detached_blocks, done.deleted_blocks) == (0, 0)
        with pytest.raises(FailedPrecondition) as refused:
            await create(blocks, "late", PEER)
        assert refused.value.reason == "ERASED"
        assert (await blocks.CountBlocks(rpc.CountBlocksRequest())).count == 0
