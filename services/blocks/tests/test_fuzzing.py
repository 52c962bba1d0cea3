"""Fuzzing of every RPC: a request succeeds or is refused with a documented status. It never causes INTERNAL."""

from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
from google.protobuf.descriptor import MethodDescriptor
from mnemesh.blocks.v1 import blocks_pb2 as pb
from mnemesh.blocks.v1 import blocks_service_pb2
from mnemesh.blocks.v1 import blocks_service_pb2 as rpc
from mnemesh.types.v1 import paging_pb2
from mnemesh_kit.ids import new_id
from mnemesh_testkit.fuzzing.fuzzers import FuzzedService
from mnemesh_testkit.plugin import Sample

METHODS: list[MethodDescriptor] = list(blocks_service_pb2.DESCRIPTOR.services_by_name["BlockService"].methods)
BY_NAME = {method.name: method for method in METHODS}
SEEDS = 12


class Target(FuzzedService):
    """A service with stored blocks."""

    def __init__(self, blocks: Any, channel: grpc.aio.Channel) -> None:
        super().__init__(channel)
        self.blocks = blocks
        self.agent, self.peer = new_id("agent"), new_id("agent")
        self.ids: list[str] = []

    @property
    def known(self) -> dict[str, list[str]]:
        return {"agent": [self.agent, self.peer], "block": self.ids}

    async def create(self) -> None:
        for label, holders in (("human", [self.agent, self.peer]), ("persona", [self.agent]), ("loose", [])):
            draft = pb.Block(label=label, value="tea\nmilk\ntea", tags=["t"])
            created = await self.blocks.CreateBlock(rpc.CreateBlockRequest(block=draft, agent_ids=holders))
            self.ids.append(created.block.id)

    async def read_stored(self) -> list[bytes]:
        """Returns every block, its revisions and the core memories, serialized."""
        blocks = (await self.blocks.ListBlocks(rpc.ListBlocksRequest(page_size=1000))).blocks
        revisions = [
            revision
            for block in blocks
            for revision in (
                await self.blocks.ListBlockRevisions(rpc.ListBlockRevisionsRequest(block_id=block.id, page_size=1000))
            ).revisions
        ]
        memories = await self.blocks.BatchGetCoreMemory(
            rpc.BatchGetCoreMemoryRequest(agent_ids=[self.agent, self.peer])
        )
        return [row.SerializeToString() for row in (*blocks, *revisions, memories)]


def valid_requests(target: Target) -> list[tuple[str, Any]]:
    block, agent = target.ids[0], target.agent
    by_agent = pb.Author(agent=pb.AgentAuthor(agent_id=agent, tool_call_id="c", run_id=new_id("run")))
    by_owner = pb.Author(owner=pb.OwnerAuthor())
    update = rpc.UpdateBlockRequest(block=pb.Block(id=block, value="new", description="d", metadata="{}", limit=99))
    update.update_mask.paths.extend(["value", "description", "metadata", "limit"])

    def edit(**kind: Any) -> Any:
        return rpc.EditBlockRequest(agent_id=agent, label="human", author=by_agent, **kind)

    return [
        (
            "CreateBlock",
            rpc.CreateBlockRequest(
                block=pb.Block(label="made", value="v", limit=10, description="d", tags=["t"], metadata="{}", name="n"),
                agent_ids=[agent],
            ),
        ),
        ("UpdateBlock", update),
        (
            "ListBlocks",
            rpc.ListBlocksRequest(
                page_size=5, order=paging_pb2.SORT_ORDER_ASCENDING, after_id=block,
                filter=rpc.BlockFilter(label="human", agent_id=agent, value_search="tea", tags_any=["t"]),
            ),
        ),
        ("EditBlock", edit(append=rpc.AppendEdit(text="x"))),
        ("EditBlock", edit(replace_all=rpc.ReplaceAllEdit(old_text="tea", new_text="rye"))),
        ("EditBlock", edit(replace_unique=rpc.ReplaceUniqueEdit(old_text="milk", new_text="cream"))),
        ("EditBlock", edit(insert_line=rpc.InsertLineEdit(line=1, text="x", base_revision=1))),
        ("EditBlock", edit(rethink=rpc.RethinkEdit(value="x", base_revision=1))),
        ("EditBlock", edit(patch=rpc.PatchEdit(patch="@@\n tea\n-milk\n+cream\n tea"))),
        ("RevertBlock", rpc.RevertBlockRequest(block_id=block, author=by_owner, revision=1, base_revision=3)),
        ("AttachBlock", rpc.AttachBlockRequest(agent_id=agent, block_id=target.ids[2])),
        ("DetachBlock", rpc.DetachBlockRequest(agent_id=agent, label="persona")),
        ("GetCoreMemory", rpc.GetCoreMemoryRequest(agent_id=agent, if_revision=9)),
    ]  # fmt: skip


@pytest.fixture
def database_url(tmp_path: Path) -> str:
    """SQLite only: tests/contract fuzzes the mesh on PostgreSQL."""
    return f"sqlite:///{tmp_path / 'blocks.db'}"


@pytest_asyncio.fixture
async def target(blocks: Any) -> Any:
    async with grpc.aio.insecure_channel(blocks.address) as channel:
        service = Target(blocks, channel)
        await service.create()
        yield service


async def test_fuzzed_requests_succeed_or_are_refused(target: Target, *, is_full: bool, is_sweep: bool) -> None:
    for method in METHODS:
        await target.require_hostile_answered(method, SEEDS if is_sweep else SEEDS // 3 if is_full else 1)


async def test_requests_with_one_invalid_field_succeed_or_are_refused(target: Target, sample: Sample) -> None:
    for name, request in sample(valid_requests(target), 3):
        await target.require_spoiled_answered(BY_NAME[name], request)


@pytest.mark.full
async def test_bytes_that_are_not_a_request_are_refused(target: Target) -> None:
    for method in METHODS:
        await target.require_bytes_refused(method)


@pytest.mark.parametrize("size", [2_000_000, 10_000_000])
async def test_megabytes_of_text_are_refused(target: Target, size: int) -> None:
    huge = "x" * size
    by_owner = pb.Author(owner=pb.OwnerAuthor())
    edit = rpc.EditBlockRequest(
        agent_id=target.agent, label="human", author=by_owner, rethink=rpc.RethinkEdit(value=huge)
    )
    requests = (
        ("CreateBlock", rpc.CreateBlockRequest(block=pb.Block(label="x", value=huge))),
        ("CreateBlock", rpc.CreateBlockRequest(block=pb.Block(label=huge))),
        ("CreateBlock", rpc.CreateBlockRequest(block=pb.Block(label="x", tags=[huge]))),
        ("EditBlock", edit),
        ("GetBlock", rpc.GetBlockRequest(block_id=huge)),
        ("ListBlocks", rpc.ListBlocksRequest(page_token=huge)),
        ("ListBlocks", rpc.ListBlocksRequest(filter=rpc.BlockFilter(value_search=huge))),
        ("DeleteBlock", rpc.DeleteBlockRequest(block_id=huge)),
    )
    await target.require_refused(
        ((BY_NAME[name], request.SerializeToString()) for name, request in requests),
        (
            grpc.StatusCode.INVALID_ARGUMENT,
            grpc.StatusCode.FAILED_PRECONDITION,
            grpc.StatusCode.RESOURCE_EXHAUSTED,
        ),
    )
