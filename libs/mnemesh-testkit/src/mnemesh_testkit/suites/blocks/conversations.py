"""Isolated blocks of conversations."""

from typing import TYPE_CHECKING, Any

import pytest
from mnemesh.blocks.v1 import blocks_pb2 as pb
from mnemesh.blocks.v1 import blocks_service_pb2 as rpc
from mnemesh_kit.call_context import Principal, as_principal
from mnemesh_kit.errors import InvalidArgument, MnemeshError, NotFound
from mnemesh_kit.ids import new_id

from mnemesh_testkit.suites.blocks.calls import AGENT, PEER, BlocksCases

if TYPE_CHECKING:
    from mnemesh.blocks.v1.blocks_service_pb2_grpc import BlockServiceAsyncStub

THREAD, OTHER = new_id("conv"), new_id("conv")


async def create(blocks: "BlockServiceAsyncStub", label: str, value: str, agent_id: str = AGENT) -> pb.Block:
    request = rpc.CreateBlockRequest(block=pb.Block(label=label, value=value), agent_ids=[agent_id])
    return (await blocks.CreateBlock(request)).block


async def isolate(blocks: "BlockServiceAsyncStub", *labels: str, to: str = THREAD, **fields: Any) -> list[pb.Block]:
    """Copies of the blocks for a conversation."""
    request = rpc.IsolateBlocksRequest(agent_id=AGENT, conversation_id=to, labels=labels, **fields)
    return list((await blocks.IsolateBlocks(request)).blocks)


async def edit(blocks: "BlockServiceAsyncStub", label: str, text: str, in_: str | None = None) -> rpc.EditBlockResponse:
    """A rethink, in a conversation or outside of any."""
    author = pb.Author(agent=pb.AgentAuthor(agent_id=AGENT))
    rethink = rpc.RethinkEdit(value=text)
    return await blocks.EditBlock(
        rpc.EditBlockRequest(agent_id=AGENT, label=label, author=author, conversation_id=in_, rethink=rethink)
    )


async def core(blocks: "BlockServiceAsyncStub", in_: str | None = None, **fields: Any) -> rpc.GetCoreMemoryResponse:
    """Core memory, as a conversation shows it or as it is."""
    return await blocks.GetCoreMemory(rpc.GetCoreMemoryRequest(agent_id=AGENT, conversation_id=in_, **fields))


async def values(blocks: "BlockServiceAsyncStub", in_: str | None = None) -> dict[str, str]:
    """Returns the values by label."""
    return {block.label: block.value for block in (await core(blocks, in_)).core_memory.blocks}


class Conversations(BlocksCases):
    """Isolation, release, and the revisions that a conversation sees."""

    async def test_edit_in_one_conversation_is_not_visible_in_another(self, blocks: "BlockServiceAsyncStub") -> None:
        await create(blocks, "human", "Ada")
        await create(blocks, "task", "None yet.")
        [own] = await isolate(blocks, "task")
        assert (own.value, own.revision, own.hidden) == ("None yet.", 1, True)
        await edit(blocks, "task", "Write.", THREAD)
        await edit(blocks, "human", "Ada of London", THREAD)
        assert await values(blocks, THREAD) == {"human": "Ada of London", "task": "Write."}
        assert await values(blocks) == await values(blocks, OTHER) == {"human": "Ada of London", "task": "None yet."}
        await edit(blocks, "task", "Read.")
        assert (await values(blocks, THREAD))["task"] == "Write."
        assert list(await values(blocks, THREAD)) == ["human", "task"], "a block changed its place"

    async def test_revision_covers_isolated_and_shared_blocks(self, blocks: "BlockServiceAsyncStub") -> None:
        await create(blocks, "human", "Ada")
        await create(blocks, "task", "None yet.")
        await isolate(blocks, "task")
        for label, in_ in (("human", None), ("task", THREAD), ("human", THREAD)):
            before = (await core(blocks, THREAD)).core_memory.revision
            assert (await core(blocks, THREAD, if_revision=before)).not_modified
            done = await edit(blocks, label, f"{label} of {in_}", in_)
            after = (await core(blocks, THREAD, if_revision=before)).core_memory
            assert after.revision > before
            if in_ is not None:
                assert done.core_memory_revision == after.revision

    async def test_repeated_isolation_keeps_existing_copies_and_adds_missing_ones(
        self, blocks: "BlockServiceAsyncStub"
    ) -> None:
        await create(blocks, "human", "Ada")
        await create(blocks, "task", "None yet.")
        [first] = await isolate(blocks, "task", request_id="r-1")
        await edit(blocks, "task", "Write.", THREAD)
        again = await isolate(blocks, "task", request_id="r-1")
        assert [block.id for block in again] == [first.id]
        both = await isolate(blocks, "human", "task")
        assert {block.label: block.value for block in both} == {"task": "Write.", "human": "Ada"}

    async def test_copy_can_start_with_the_value_of_another_conversation(self, blocks: "BlockServiceAsyncStub") -> None:
        await create(blocks, "task", "None yet.")
        await isolate(blocks, "task")
        await edit(blocks, "task", "Write.", THREAD)
        [copy] = await isolate(blocks, "task", to=OTHER, source_conversation_id=THREAD)
        assert copy.value == "Write."
        await edit(blocks, "task", "Read.", OTHER)
        assert [(await values(blocks, thread))["task"] for thread in (THREAD, OTHER)] == ["Write.", "Read."]

    async def test_released_block_is_deleted_and_refuses_late_writes(self, blocks: "BlockServiceAsyncStub") -> None:
        await create(blocks, "task", "None yet.")
        [own] = await isolate(blocks, "task")
        await edit(blocks, "task", "Write.", THREAD)
        release = rpc.ReleaseBlocksRequest(agent_id=AGENT, conversation_id=THREAD)
        assert (await blocks.ReleaseBlocks(release)).deleted_blocks == 1
        assert (await blocks.ReleaseBlocks(release)).deleted_blocks == 0
        assert await values(blocks, THREAD) == {"task": "None yet."}
        with pytest.raises(NotFound):
            await blocks.GetBlock(rpc.GetBlockRequest(block_id=own.id))
        with pytest.raises(MnemeshError, match="erased"):
            await isolate(blocks, "task")

    async def test_erasure_of_an_agent_deletes_the_blocks_of_its_conversations(
        self, blocks: "BlockServiceAsyncStub"
    ) -> None:
        await create(blocks, "task", "None yet.")
        [own] = await isolate(blocks, "task")
        await blocks.EraseAgent(rpc.EraseAgentRequest(agent_id=AGENT))
        with pytest.raises(NotFound):
            await blocks.GetBlock(rpc.GetBlockRequest(block_id=own.id))
        with pytest.raises(MnemeshError, match="erased"):
            await isolate(blocks, "task", to=OTHER)

    async def test_conversation_is_not_listed_as_a_holder(self, blocks: "BlockServiceAsyncStub") -> None:
        shared = await create(blocks, "task", "None yet.")
        [own] = await isolate(blocks, "task")
        for block_id, holders in ((shared.id, [AGENT]), (own.id, [])):
            listed = await blocks.ListBlockAgents(rpc.ListBlockAgentsRequest(block_id=block_id))
            assert list(listed.agent_ids) == holders

    async def test_missing_or_foreign_blocks_cannot_be_isolated(self, blocks: "BlockServiceAsyncStub") -> None:
        await create(blocks, "task", "None yet.")
        await create(blocks, "task", "Mine.", PEER)
        await isolate(blocks, "task")
        with pytest.raises(NotFound) as missing:
            await isolate(blocks, "human", to=OTHER)
        assert missing.value.reason == "BLOCK_LABEL_NOT_FOUND"
        assert await values(blocks, OTHER) == {"task": "None yet."}
        with pytest.raises(NotFound):
            await blocks.IsolateBlocks(rpc.IsolateBlocksRequest(agent_id=PEER, conversation_id=THREAD, labels=["task"]))
        with as_principal(Principal(new_id("org"), new_id("user"))), pytest.raises(NotFound):
            await isolate(blocks, "task", to=OTHER)

    async def test_missing_block_can_be_created_for_one_conversation(self, blocks: "BlockServiceAsyncStub") -> None:
        await create(blocks, "task", "None yet.")
        task, notes = await isolate(blocks, "task", "notes", create_missing=True)
        assert (task.value, notes.value, notes.read_only, notes.hidden) == ("None yet.", "", False, True)
        assert [block.id for block in await isolate(blocks, "notes", create_missing=True)] == [task.id, notes.id]
        assert await values(blocks, THREAD) == {"task": "None yet.", "notes": ""}
        assert await values(blocks) == await values(blocks, OTHER) == {"task": "None yet."}

    @pytest.mark.parametrize(
        ("field", "request_"),
        [
            ("agent_id", {"agent_id": "x", "conversation_id": THREAD, "labels": ["task"]}),
            ("conversation_id", {"agent_id": AGENT, "conversation_id": "x", "labels": ["task"]}),
            ("labels", {"agent_id": AGENT, "conversation_id": THREAD}),
            ("labels", {"agent_id": AGENT, "conversation_id": THREAD, "labels": ["a\0"]}),
            ("labels", {"agent_id": AGENT, "conversation_id": THREAD, "labels": ["a"] * 1001}),
            (
                "source_conversation_id",
                {"agent_id": AGENT, "conversation_id": THREAD, "labels": ["a"], "source_conversation_id": "x"},
            ),
        ],
    )
    async def test_invalid_request_is_refused_with_the_field(
        self, blocks: "BlockServiceAsyncStub", field: str, request_: dict[str, Any]
    ) -> None:
        with pytest.raises(InvalidArgument) as refused:
            await blocks.IsolateBlocks(rpc.IsolateBlocksRequest(**request_))
        assert refused.value.field == field
