"""Short ways to call the blocks service."""

from typing import TYPE_CHECKING, Any

import pytest_asyncio
from mnemesh.blocks.v1 import blocks_pb2 as pb
from mnemesh.blocks.v1 import blocks_service_pb2 as rpc
from mnemesh.blocks.v1.blocks_service_pb2_grpc import BlockServiceStub
from mnemesh_kit.ids import new_id

from mnemesh_testkit.suites.service_suite import ServiceSuite

if TYPE_CHECKING:
    from mnemesh.blocks.v1.blocks_service_pb2_grpc import BlockServiceAsyncStub

AGENT, PEER = new_id("agent"), new_id("agent")
BY_AGENT = pb.Author(agent=pb.AgentAuthor(agent_id=AGENT, tool_call_id="call_1", run_id="run_1"))
BY_OWNER = pb.Author(owner=pb.OwnerAuthor())


class BlocksCases(ServiceSuite):
    @pytest_asyncio.fixture(loop_scope="class")
    async def blocks(self, channel: Any) -> Any:
        """The stub of the service."""
        return BlockServiceStub(channel)


async def create(blocks: "BlockServiceAsyncStub", label: str = "human", *holders: str, **fields: Any) -> pb.Block:
    """A new block, held by `holders`."""
    request = rpc.CreateBlockRequest(block=pb.Block(label=label, **fields), agent_ids=holders)
    return (await blocks.CreateBlock(request)).block


async def edit(
    blocks: "BlockServiceAsyncStub", label: str = "human", author: pb.Author = BY_AGENT, **kind: Any
) -> pb.Block:
    """The block after an edit of the kind that the keyword names."""
    request = rpc.EditBlockRequest(agent_id=AGENT, label=label, author=author, **kind)
    return (await blocks.EditBlock(request)).block


async def update(
    blocks: "BlockServiceAsyncStub", block_id: str, base_revision: int | None = None, **fields: Any
) -> pb.Block:
    """The block after an update of the fields that are named."""
    request = rpc.UpdateBlockRequest(block=pb.Block(id=block_id, **fields), base_revision=base_revision)
    request.update_mask.paths.extend(fields)
    return (await blocks.UpdateBlock(request)).block


async def revert(
    blocks: "BlockServiceAsyncStub", block_id: str, author: pb.Author = BY_OWNER, **target: Any
) -> pb.Block:
    """The block after a revert to `target`."""
    return (await blocks.RevertBlock(rpc.RevertBlockRequest(block_id=block_id, author=author, **target))).block


async def core(blocks: "BlockServiceAsyncStub", agent_id: str = AGENT) -> pb.CoreMemory:
    """An agent's core memory."""
    return (await blocks.GetCoreMemory(rpc.GetCoreMemoryRequest(agent_id=agent_id))).core_memory


async def history(blocks: "BlockServiceAsyncStub", block_id: str, **fields: Any) -> list[pb.BlockRevision]:
    """A page of a block's changes."""
    return list((await blocks.ListBlockRevisions(rpc.ListBlockRevisionsRequest(block_id=block_id, **fields))).revisions)
