"""Core memory: the blocks of agents, and links between them."""

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from mnemesh.blocks.v1 import blocks_pb2
from mnemesh.blocks.v1 import blocks_pb2 as pb
from mnemesh.blocks.v1 import blocks_service_pb2 as rpc
from mnemesh_kit.call_context import Principal, as_principal
from mnemesh_kit.errors import AlreadyExists, FailedPrecondition, InvalidArgument, NotFound
from mnemesh_kit.ids import new_id

from mnemesh_testkit.suites.blocks.calls import AGENT, PEER, BlocksCases, core, create, edit, history, revert, update

if TYPE_CHECKING:
    from mnemesh.blocks.v1.blocks_service_pb2_grpc import BlockServiceAsyncStub


class Holding(BlocksCases):
    """Labels, sharing, revisions of core memory, deletion, organizations and erasure."""

    async def test_labels_are_unique_for_each_agent(self, blocks: "BlockServiceAsyncStub") -> None:
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

    async def test_first_blocks_of_an_agent_are_created_and_attached_together(
        self, blocks: "BlockServiceAsyncStub"
    ) -> None:
        existing = await create(blocks, "shared", PEER)
        own = [pb.Block(label="human", value="Ada"), pb.Block(label="persona", value="Calm", limit=100)]
        request = rpc.CreateCoreMemoryRequest(request_id="r1", agent_id=AGENT, blocks=own, block_ids=[existing.id])
        made = (await blocks.CreateCoreMemory(request)).core_memory
        assert made == (await blocks.CreateCoreMemory(request)).core_memory == await core(blocks)
        assert [(block.label, block.value) for block in made.blocks[:2]] == [("human", "Ada"), ("persona", "Calm")]
        assert [block.created_for_agent_id for block in made.blocks] == [AGENT, AGENT, ""]
        assert (made.blocks[2].id, made.revision) == (existing.id, 3)
        for refused, field in (
            (rpc.CreateCoreMemoryRequest(agent_id=AGENT, blocks=[pb.Block(label="new"), own[0]]), "blocks[1]"),
            (rpc.CreateCoreMemoryRequest(agent_id=PEER, blocks=[pb.Block(label="new"), pb.Block()]), "blocks[1].label"),
            (rpc.CreateCoreMemoryRequest(agent_id=PEER, blocks=own, block_ids=[new_id("block")]), "block_ids"),
            (rpc.CreateCoreMemoryRequest(agent_id=PEER, blocks=[own[0], own[0]]), "blocks[1]"),
        ):
            with pytest.raises((AlreadyExists, InvalidArgument, NotFound)) as error:
                await blocks.CreateCoreMemory(refused)
            assert error.value.field == field
        assert await core(blocks) == made
        assert [block.label for block in (await core(blocks, PEER)).blocks] == ["shared"]
        assert (await blocks.CountBlocks(rpc.CountBlocksRequest())).count == 3
        erased = await blocks.EraseAgent(rpc.EraseAgentRequest(agent_id=AGENT))
        assert (erased.detached_blocks, erased.deleted_blocks) == (3, 2)
        with pytest.raises(FailedPrecondition) as gone:
            await blocks.CreateCoreMemory(rpc.CreateCoreMemoryRequest(agent_id=AGENT, blocks=own))
        assert gone.value.reason == "ERASED"

    async def test_shared_block_is_visible_to_each_holder_until_it_is_detached(
        self, blocks: "BlockServiceAsyncStub"
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
        # A reader that knows the revision before learns that the block is gone.
        known = changed.core_memory.revision
        left = await blocks.GetCoreMemory(rpc.GetCoreMemoryRequest(agent_id=PEER, if_revision=known))
        assert not left.not_modified
        assert not left.core_memory.blocks
        assert gone.core_memory_revision == left.core_memory.revision
        with pytest.raises(NotFound):
            await blocks.DetachBlock(rpc.DetachBlockRequest(agent_id=PEER, block_id=shared.id))
        batch = rpc.BatchGetCoreMemoryRequest(agent_ids=[PEER, AGENT, PEER, new_id("agent")])
        memories = (await blocks.BatchGetCoreMemory(batch)).core_memories
        assert [(memory.agent_id, len(memory.blocks)) for memory in memories[:3]] == [(PEER, 0), (AGENT, 1), (PEER, 0)]
        assert memories[3].revision == 0

    async def test_deleted_block_is_removed_from_every_holder(self, blocks: "BlockServiceAsyncStub") -> None:
        block = await create(blocks, "human", AGENT)
        known = (await core(blocks)).revision
        for _ in range(2):
            await blocks.DeleteBlock(rpc.DeleteBlockRequest(block_id=block.id))
        left = await blocks.GetCoreMemory(rpc.GetCoreMemoryRequest(agent_id=AGENT, if_revision=known))
        assert not left.not_modified
        assert not left.core_memory.blocks
        for call in (
            blocks.GetBlock(rpc.GetBlockRequest(block_id=block.id)),
            history(blocks, block.id),
            edit(blocks, append=rpc.AppendEdit(text="x")),
            update(blocks, block.id, value="x"),
        ):
            with pytest.raises(NotFound):
                await call

    async def test_blocks_of_another_organization_are_not_found(self, blocks: "BlockServiceAsyncStub") -> None:
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

    async def test_erased_agent_refuses_late_writes(self, blocks: "BlockServiceAsyncStub") -> None:
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
        self, blocks: "BlockServiceAsyncStub", delete_unshared: bool
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

    async def test_creator_agent_must_be_a_holder_of_the_new_block(self, blocks: "BlockServiceAsyncStub") -> None:
        made = rpc.CreateBlockRequest(block=blocks_pb2.Block(label="own"), agent_ids=[AGENT], created_for_agent_id=PEER)
        with pytest.raises(InvalidArgument) as refused:
            await blocks.CreateBlock(made)
        assert refused.value.field == "created_for_agent_id"

    async def test_core_memory_has_the_order_of_attachment(self, blocks: "BlockServiceAsyncStub") -> None:
        made = [await create(blocks, label, AGENT) for label in ("z", "a", "m")]
        await blocks.DetachBlock(rpc.DetachBlockRequest(agent_id=AGENT, block_id=made[0].id))
        await blocks.AttachBlock(rpc.AttachBlockRequest(agent_id=AGENT, block_id=made[0].id))
        assert [block.label for block in (await core(blocks)).blocks] == ["a", "m", "z"]

    async def test_edit_increases_the_revision_of_its_holders_only(self, blocks: "BlockServiceAsyncStub") -> None:
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

    async def test_renamed_block_has_its_new_label_for_every_holder(self, blocks: "BlockServiceAsyncStub") -> None:
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

    async def test_unknown_agent_can_be_erased(self, blocks: "BlockServiceAsyncStub") -> None:
        done = await blocks.EraseAgent(rpc.EraseAgentRequest(agent_id=PEER))
        assert (done.detached_blocks, done.deleted_blocks) == (0, 0)
        with pytest.raises(FailedPrecondition) as refused:
            await create(blocks, "late", PEER)
        assert refused.value.reason == "ERASED"
        assert (await blocks.CountBlocks(rpc.CountBlocksRequest())).count == 0


THIRD = new_id("agent")


async def link(blocks: "BlockServiceAsyncStub", *agent_ids: str, link_id: str = "group-1", **fields: Any) -> None:
    """Links agents; the first one is the source."""
    request = rpc.LinkAgentsRequest(
        link_id=link_id, agent_ids=agent_ids or (AGENT, PEER), **{"source_agent_id": (*agent_ids, AGENT)[0], **fields}
    )
    await blocks.LinkAgents(request)


async def attach(blocks: "BlockServiceAsyncStub", agent_id: str, block_id: str, request_id: str = "") -> int:
    """Attaches a block, and returns the revision of the agent's core memory."""
    request = rpc.AttachBlockRequest(agent_id=agent_id, block_id=block_id, request_id=request_id)
    return (await blocks.AttachBlock(request)).core_memory_revision


async def detach(blocks: "BlockServiceAsyncStub", agent_id: str, label: str) -> None:
    """Detaches the block under a label."""
    await blocks.DetachBlock(rpc.DetachBlockRequest(agent_id=agent_id, label=label))


async def labels(blocks: "BlockServiceAsyncStub", agent_id: str) -> list[str]:
    """The labels of an agent's blocks, sorted."""
    return sorted(block.label for block in (await core(blocks, agent_id)).blocks)


class Linking(BlocksCases):
    """Links between agents, their end, and the blocks of each agent."""

    async def test_linked_agents_hold_the_same_blocks_and_keep_their_own(self, blocks: "BlockServiceAsyncStub") -> None:
        human, free = await create(blocks, "human", AGENT), await create(blocks, "free")
        await create(blocks, "own", PEER)
        await link(blocks)
        assert await labels(blocks, AGENT) == ["human"]
        assert await labels(blocks, PEER) == ["human", "own"]
        before = [(await core(blocks, agent_id)).revision for agent_id in (AGENT, PEER)]
        assert await attach(blocks, PEER, free.id) == before[1] + 1
        assert (await core(blocks, AGENT)).revision == before[0] + 1
        await create(blocks, "made", AGENT)
        assert await labels(blocks, AGENT) == ["free", "human", "made"]
        assert await labels(blocks, PEER) == ["free", "human", "made", "own"]
        await detach(blocks, AGENT, "human")
        await detach(blocks, PEER, "own")
        assert await labels(blocks, AGENT) == await labels(blocks, PEER) == ["free", "made"]
        await edit(blocks, "made", append=rpc.AppendEdit(text="x"))
        await update(blocks, free.id, label="renamed")
        assert [block.value for block in (await core(blocks, PEER)).blocks if block.label == "made"] == ["x"]
        assert await labels(blocks, AGENT) == await labels(blocks, PEER) == ["made", "renamed"]
        await blocks.DeleteBlock(rpc.DeleteBlockRequest(block_id=free.id))
        assert await labels(blocks, AGENT) == await labels(blocks, PEER) == ["made"]
        assert (await blocks.GetBlock(rpc.GetBlockRequest(block_id=human.id))).block.id == human.id

    async def test_attachment_that_one_agent_refuses_changes_none(self, blocks: "BlockServiceAsyncStub") -> None:
        other = await create(blocks, "own")
        await create(blocks, "own", PEER)
        await link(blocks)
        before = [await core(blocks, agent_id) for agent_id in (AGENT, PEER)]
        for call in (attach(blocks, AGENT, other.id), create(blocks, "own", AGENT)):
            with pytest.raises(AlreadyExists) as refused:
                await call
            assert refused.value.reason == "BLOCK_LABEL_TAKEN"
            assert refused.value.metadata == {"label": "own", "agent_id": PEER}
        assert [await core(blocks, agent_id) for agent_id in (AGENT, PEER)] == before

    async def test_refused_link_changes_nothing(self, blocks: "BlockServiceAsyncStub") -> None:
        await create(blocks, "a", AGENT)
        for holder in (AGENT, PEER):
            await create(blocks, "human", holder)
        with pytest.raises(AlreadyExists) as taken:
            await link(blocks)
        assert taken.value.reason == "BLOCK_LABEL_TAKEN"
        assert await labels(blocks, PEER) == ["human"]
        await create(blocks, "later", AGENT)
        assert await labels(blocks, PEER) == ["human"], "the refused link exists"
        await blocks.EraseAgent(rpc.EraseAgentRequest(agent_id=PEER))
        with pytest.raises(FailedPrecondition) as erased:
            await link(blocks)
        assert erased.value.reason == "ERASED"

    async def test_agent_is_in_one_link(self, blocks: "BlockServiceAsyncStub") -> None:
        await create(blocks, "human", AGENT)
        await link(blocks)
        with pytest.raises(FailedPrecondition) as refused:
            await link(blocks, THIRD, PEER, link_id="group-2")
        assert refused.value.metadata == {"agent_id": PEER, "resource_id": "group-1"}
        await blocks.UnlinkAgents(rpc.UnlinkAgentsRequest(link_id="group-1"))
        await link(blocks, PEER, THIRD, link_id="group-2")
        assert await labels(blocks, THIRD) == ["human"]

    async def test_repeat_replaces_the_agents_of_the_link(self, blocks: "BlockServiceAsyncStub") -> None:
        await create(blocks, "human", AGENT)
        await link(blocks, AGENT, PEER, request_id="r-1")
        await link(blocks, AGENT, THIRD, request_id="r-2")
        await create(blocks, "later", THIRD)
        assert await labels(blocks, PEER) == ["human"]
        assert await labels(blocks, AGENT) == await labels(blocks, THIRD) == ["human", "later"]
        await link(blocks, AGENT, PEER, request_id="r-1")
        assert await labels(blocks, PEER) == ["human"], "the first request took effect again"

    async def test_end_of_a_link_keeps_the_blocks(self, blocks: "BlockServiceAsyncStub") -> None:
        await create(blocks, "human", AGENT)
        await link(blocks)
        for _ in range(2):
            await blocks.UnlinkAgents(rpc.UnlinkAgentsRequest(link_id="group-1"))
        await create(blocks, "later", AGENT)
        await detach(blocks, AGENT, "human")
        assert await labels(blocks, AGENT) == ["later"]
        assert await labels(blocks, PEER) == ["human"]

    async def test_erased_agent_leaves_its_link_and_the_blocks_of_the_others(
        self, blocks: "BlockServiceAsyncStub"
    ) -> None:
        made = rpc.CreateBlockRequest(block=pb.Block(label="human"), agent_ids=[AGENT], created_for_agent_id=AGENT)
        await blocks.CreateBlock(made)
        await link(blocks)
        done = await blocks.EraseAgent(rpc.EraseAgentRequest(agent_id=AGENT))
        assert (done.detached_blocks, done.deleted_blocks) == (1, 0)
        await create(blocks, "later", PEER)
        assert await labels(blocks, PEER) == ["human", "later"]
        await link(blocks, PEER, THIRD, link_id="group-2")
        assert await labels(blocks, THIRD) == ["human", "later"]

    @pytest.mark.parametrize("order", [(AGENT, PEER), (PEER, AGENT)], ids=["source first", "source last"])
    async def test_agents_that_are_erased_together_take_the_blocks_of_both_with_them(
        self, blocks: "BlockServiceAsyncStub", order: tuple[str, str]
    ) -> None:
        await link(blocks)
        for label, holder in (("a", AGENT), ("b", PEER), ("c", AGENT)):
            made = rpc.CreateBlockRequest(block=pb.Block(label=label), agent_ids=[holder], created_for_agent_id=holder)
            block = (await blocks.CreateBlock(made)).block
            if label == "c":
                await attach(blocks, THIRD, block.id)
        deleted = 0
        for agent_id in order:
            erase = rpc.EraseAgentRequest(agent_id=agent_id, together_with_agent_ids=order)
            deleted += (await blocks.EraseAgent(erase)).deleted_blocks
        assert deleted == 2
        assert [block.label for block in (await blocks.ListBlocks(rpc.ListBlocksRequest())).blocks] == ["c"]

    async def test_isolated_blocks_are_not_shared(self, blocks: "BlockServiceAsyncStub") -> None:
        await create(blocks, "task", AGENT, value="None yet.")
        await link(blocks)
        thread = new_id("conv")
        await blocks.IsolateBlocks(rpc.IsolateBlocksRequest(agent_id=AGENT, conversation_id=thread, labels=["task"]))
        rethink = rpc.RethinkEdit(value="Write.")
        author = pb.Author(agent=pb.AgentAuthor(agent_id=AGENT))
        await blocks.EditBlock(
            rpc.EditBlockRequest(agent_id=AGENT, label="task", author=author, conversation_id=thread, rethink=rethink)
        )
        assert [block.value for block in (await core(blocks, PEER)).blocks] == ["None yet."]

    async def test_concurrent_attachments_by_both_agents_are_all_shared(self, blocks: "BlockServiceAsyncStub") -> None:
        await link(blocks)
        free = [await create(blocks, f"free-{number}") for number in range(4)]
        calls = [attach(blocks, agent_id, block.id) for block in free for agent_id in (AGENT, PEER)]
        made = [create(blocks, f"made-{number}", agent_id) for number in range(3) for agent_id in (AGENT, PEER)]
        results = await asyncio.gather(*calls, *made, return_exceptions=True)
        taken = [result for result in results if isinstance(result, BaseException)]
        assert len(taken) == 3, "two blocks have the same label"
        assert {getattr(error, "reason", None) for error in taken} == {"BLOCK_LABEL_TAKEN"}
        expected = sorted([*(f"free-{n}" for n in range(4)), *(f"made-{n}" for n in range(3))])
        assert await labels(blocks, AGENT) == await labels(blocks, PEER) == expected
        held = [{block.id for block in (await core(blocks, agent_id)).blocks} for agent_id in (AGENT, PEER)]
        assert held[0] == held[1]

    async def test_link_belongs_to_its_organization(self, blocks: "BlockServiceAsyncStub") -> None:
        await create(blocks, "human", AGENT)
        await link(blocks)
        with as_principal(Principal(new_id("org"), new_id("user"))):
            await blocks.UnlinkAgents(rpc.UnlinkAgentsRequest(link_id="group-1"))
            await link(blocks, THIRD, PEER)
            await create(blocks, "foreign", THIRD)
            assert await labels(blocks, PEER) == ["foreign"]
        await create(blocks, "later", AGENT)
        assert await labels(blocks, PEER) == ["human", "later"]

    @pytest.mark.parametrize(
        ("field", "fields"),
        [
            ("link_id", {"link_id": ""}),
            ("link_id", {"link_id": "x" * 201}),
            ("link_id", {"link_id": "a\0"}),
            ("agent_ids", {"agent_ids": [AGENT]}),
            ("agent_ids", {"agent_ids": [AGENT, AGENT]}),
            ("agent_ids", {"agent_ids": [AGENT, "x"]}),
            ("agent_ids", {"agent_ids": [AGENT, *(new_id("agent") for _ in range(100))]}),
            ("source_agent_id", {"source_agent_id": THIRD}),
        ],
    )
    async def test_invalid_link_is_refused_with_the_field(
        self, blocks: "BlockServiceAsyncStub", field: str, fields: dict[str, Any]
    ) -> None:
        valid = {"link_id": "group-1", "agent_ids": [AGENT, PEER], "source_agent_id": AGENT}
        with pytest.raises(InvalidArgument) as refused:
            await blocks.LinkAgents(rpc.LinkAgentsRequest(**{**valid, **fields}))
        assert refused.value.field == field
        if field == "link_id":
            with pytest.raises(InvalidArgument):
                await blocks.UnlinkAgents(rpc.UnlinkAgentsRequest(**fields))

    async def test_agent_that_does_not_hold_a_block_cannot_detach_it_from_the_others(
        self, blocks: "BlockServiceAsyncStub"
    ) -> None:
        own = await create(blocks, "own", PEER)
        await link(blocks)
        with pytest.raises(NotFound):
            await blocks.DetachBlock(rpc.DetachBlockRequest(agent_id=AGENT, block_id=own.id))
        assert await labels(blocks, PEER) == ["own"]
