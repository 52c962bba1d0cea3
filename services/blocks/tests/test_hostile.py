"""Whatever a caller sends is refused in the words of the contract or done; never an INTERNAL, nothing half-written."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
import pytest_asyncio
from engram.blocks.v1 import blocks_pb2 as pb
from engram.blocks.v1 import blocks_service_pb2
from engram.blocks.v1 import blocks_service_pb2 as rpc
from engram.types.v1 import paging_pb2
from engram_kit.ids import new_id
from engram_testkit.contract import hostile_request, new_request, spoiled
from google.protobuf.descriptor import MethodDescriptor

METHODS: list[MethodDescriptor] = list(blocks_service_pb2.DESCRIPTOR.services_by_name["BlockService"].methods)
BY_NAME = {method.name: method for method in METHODS}
ANSWERS = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    # Of a hostile label or revision that is well-formed.
    grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.ABORTED,
}
SEEDS = 12
RAW: Any = {"request_serializer": bytes, "response_deserializer": bytes}


class Target:
    """A service with blocks that have something to lose."""

    def __init__(self, blocks: Any, channel: grpc.aio.Channel) -> None:
        self.blocks, self.channel = blocks, channel
        self.agent, self.peer = new_id("agent"), new_id("agent")
        self.ids: list[str] = []

    @property
    def known(self) -> dict[str, list[str]]:
        return {"agent": [self.agent, self.peer], "block": self.ids}

    async def create(self) -> None:
        for label, holders in (("human", [self.agent, self.peer]), ("persona", [self.agent]), ("loose", [])):
            draft = pb.Block(label=label, value="tea\nmilk\ntea", tags=["t"])
            made = await self.blocks.CreateBlock(rpc.CreateBlockRequest(block=draft, agent_ids=holders))
            self.ids.append(made.block.id)

    async def send(self, method: MethodDescriptor, raw: bytes) -> grpc.StatusCode:
        path = f"/{method.containing_service.full_name}/{method.name}"
        code = await self.channel.unary_unary(path, **RAW)(raw, timeout=30).code()
        assert isinstance(code, grpc.StatusCode)
        return code

    async def stored(self) -> list[bytes]:
        """All that can be seen: every block, its history, and who holds it."""
        blocks = (await self.blocks.ListBlocks(rpc.ListBlocksRequest(page_size=1000))).blocks
        changes = [
            change
            for block in blocks
            for change in (
                await self.blocks.ListBlockRevisions(rpc.ListBlockRevisionsRequest(block_id=block.id, page_size=1000))
            ).revisions
        ]
        memories = await self.blocks.BatchGetCoreMemory(
            rpc.BatchGetCoreMemoryRequest(agent_ids=[self.agent, self.peer])
        )
        return [row.SerializeToString() for row in (*blocks, *changes, memories)]


def good_requests(target: Target) -> list[tuple[str, Any]]:
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


@pytest_asyncio.fixture
async def target(blocks: Any) -> Any:
    async with grpc.aio.insecure_channel(blocks.address) as channel:
        made = Target(blocks, channel)
        await made.create()
        yield made


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
async def test_hostile_requests_are_refused_or_done(target: Target, method: MethodDescriptor) -> None:
    before = await target.stored()
    for seed in range(SEEDS):
        request = hostile_request(method, seed, target.known)
        code = await target.send(method, request.SerializeToString())
        assert code in ANSWERS, (seed, request)
        if code is grpc.StatusCode.OK:
            before = await target.stored()
    assert await target.stored() == before


async def test_one_spoiled_field_is_enough_to_be_refused_and_never_enough_to_break(target: Target) -> None:
    for name, request in good_requests(target):
        before = await target.stored()
        for where, broken in spoiled(request):
            code = await target.send(BY_NAME[name], broken.SerializeToString())
            assert code in ANSWERS, where
            if code is grpc.StatusCode.OK:
                before = await target.stored()
        assert await target.stored() == before, name


async def test_bytes_that_are_no_request_are_the_callers_mistake(target: Target) -> None:
    before = await target.stored()
    for method in METHODS:
        fields = new_request(method).DESCRIPTOR.fields
        text = next((field for field in fields if field.type == field.TYPE_STRING), None)
        no_utf8 = [bytes([text.number << 3 | 2, 2, 0xC3, 0x28])] if text is not None else []
        for raw in (*no_utf8, b"\xff\xff\xff\xff", b"\x0a\xff\x01"):
            assert await target.send(method, raw) is grpc.StatusCode.INVALID_ARGUMENT, method.name
    assert await target.stored() == before


async def test_ten_megabytes_of_text_are_refused(target: Target) -> None:
    huge = "x" * 10_000_000
    by_owner = pb.Author(owner=pb.OwnerAuthor())
    edit = rpc.EditBlockRequest(
        agent_id=target.agent, label="human", author=by_owner, rethink=rpc.RethinkEdit(value=huge)
    )
    before = await target.stored()
    for name, request in (
        ("CreateBlock", rpc.CreateBlockRequest(block=pb.Block(label="x", value=huge))),
        ("CreateBlock", rpc.CreateBlockRequest(block=pb.Block(label=huge))),
        ("CreateBlock", rpc.CreateBlockRequest(block=pb.Block(label="x", tags=[huge]))),
        ("EditBlock", edit),
        ("GetBlock", rpc.GetBlockRequest(block_id=huge)),
        ("ListBlocks", rpc.ListBlocksRequest(page_token=huge)),
        ("ListBlocks", rpc.ListBlocksRequest(filter=rpc.BlockFilter(value_search=huge))),
        ("DeleteBlock", rpc.DeleteBlockRequest(block_id=huge)),
    ):
        code = await target.send(BY_NAME[name], request.SerializeToString())
        assert code in {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION}, name
    assert await target.stored() == before
