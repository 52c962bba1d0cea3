"""Blocks: create, retrieve, list, count, update, delete, and the agents that hold them."""

from __future__ import annotations

from typing import Final, Literal

import msgspec
from mnemesh.blocks.v1 import blocks_service_pb2 as rpc

from mnemesh_gateway.letta.agent_states import HoldersQuery, page_of_holders
from mnemesh_gateway.letta.convert.memory import block_from_proto, block_to_proto, update_to_proto
from mnemesh_gateway.letta.convert.values import set_present
from mnemesh_gateway.letta.operations import Call, NoQuery, Operations
from mnemesh_gateway.letta.pages import READ_SECONDS, PageQuery, listed
from mnemesh_gateway.letta.routes.identities import identity_of
from mnemesh_gateway.letta.schemas.agents import AgentState
from mnemesh_gateway.letta.schemas.memory import Block, CreateBlock, UpdateBlock

operations = Operations()
_WRITE_SECONDS: Final = 30.0


class CountBlocks(msgspec.Struct, kw_only=True):
    """Which blocks are counted. Without any condition, hidden ones are counted as well."""

    label: str | None = None
    name: str | None = None
    templates_only: bool = False
    project_id: str | None = None
    tags: list[str] | None = None
    match_all_tags: bool = False


class ListBlocks(CountBlocks, kw_only=True):
    """The query of a list of blocks."""

    before: str | None = None
    after: str | None = None
    limit: int | None = None
    order: Literal["asc", "desc"] | None = None
    identity_id: str | None = None
    identifier_keys: list[str] | None = None
    label_search: str | None = None
    description_search: str | None = None
    value_search: str | None = None
    connected_to_agents_count_gt: int | None = None
    connected_to_agents_count_lt: int | None = None
    connected_to_agents_count_eq: list[int] | None = None
    show_hidden_blocks: bool = False


@operations.post("/blocks/", body=CreateBlock, result=Block)
async def create_block(call: Call[NoQuery, CreateBlock]) -> Block:
    """Creates a block."""
    request = rpc.CreateBlockRequest(
        request_id=call.request_id, block=block_to_proto(call.body, call.profile.block_limit)
    )
    return block_from_proto((await call.mesh.blocks.CreateBlock(request, timeout=_WRITE_SECONDS)).block)


@operations.get("/blocks/", query=ListBlocks, result=list[Block])
async def list_blocks(call: Call[ListBlocks, None]) -> list[Block]:
    """Lists blocks, oldest first."""
    query = call.query
    page = PageQuery(before=query.before, after=query.after, limit=query.limit, order=query.order)
    request = rpc.ListBlocksRequest(filter=_filter(query))
    if query.identifier_keys:
        identity_id = await identity_of(call.mesh, query.identifier_keys)
        if identity_id is None or query.identity_id not in {None, identity_id}:
            return []
        request.filter.identity_id = identity_id
    rows = await listed(call.mesh.blocks.ListBlocks, request, "blocks", page, default="asc")
    return [block_from_proto(block) for block in rows]


@operations.get("/blocks/count", query=CountBlocks, result=int)
async def count_blocks(call: Call[CountBlocks, None]) -> int:
    """Counts blocks."""
    request = rpc.CountBlocksRequest(filter=_counted(call.query))
    return int((await call.mesh.blocks.CountBlocks(request, timeout=READ_SECONDS)).count)


@operations.get("/blocks/{block_id}", result=Block)
async def retrieve_block(call: Call[NoQuery, None]) -> Block:
    """Returns a block."""
    request = rpc.GetBlockRequest(block_id=call.path["block_id"])
    return block_from_proto((await call.mesh.blocks.GetBlock(request, timeout=READ_SECONDS)).block)


@operations.patch("/blocks/{block_id}", body=UpdateBlock, result=Block)
async def modify_block(call: Call[NoQuery, UpdateBlock]) -> Block:
    """Updates a block."""
    request = update_to_proto(call.body, call.path["block_id"], call.request_id)
    if not request.update_mask.paths:
        get = rpc.GetBlockRequest(block_id=call.path["block_id"])
        return block_from_proto((await call.mesh.blocks.GetBlock(get, timeout=READ_SECONDS)).block)
    return block_from_proto((await call.mesh.blocks.UpdateBlock(request, timeout=_WRITE_SECONDS)).block)


@operations.delete("/blocks/{block_id}")
async def delete_block(call: Call[NoQuery, None]) -> None:
    """Deletes a block, and detaches it everywhere."""
    get = rpc.GetBlockRequest(block_id=call.path["block_id"])
    await call.mesh.blocks.GetBlock(get, timeout=READ_SECONDS)
    request = rpc.DeleteBlockRequest(request_id=call.request_id, block_id=call.path["block_id"])
    await call.mesh.blocks.DeleteBlock(request, timeout=_WRITE_SECONDS)


@operations.get("/blocks/{block_id}/agents", query=HoldersQuery, result=list[AgentState])
async def list_agents_for_block(call: Call[HoldersQuery, None]) -> list[AgentState]:
    """Lists the agents that hold a block."""
    get = rpc.GetBlockRequest(block_id=call.path["block_id"])
    await call.mesh.blocks.GetBlock(get, timeout=READ_SECONDS)
    request = rpc.ListBlockAgentsRequest(block_id=call.path["block_id"])
    return await page_of_holders(call.mesh, call.mesh.blocks.ListBlockAgents, request, call.query)


def _counted(query: CountBlocks) -> rpc.BlockFilter:
    found = rpc.BlockFilter()
    (found.tags_all if query.match_all_tags else found.tags_any).extend(query.tags or ())
    set_present(
        found,
        label=query.label,
        name=query.name,
        is_template=True if query.templates_only else None,
        project_id=query.project_id,
    )
    return found


def _filter(query: ListBlocks) -> rpc.BlockFilter:
    found = _counted(query)
    counts = query.connected_to_agents_count_eq or []
    set_present(
        found,
        identity_id=query.identity_id,
        label_search=query.label_search,
        description_search=query.description_search,
        value_search=query.value_search,
        agents_more_than=query.connected_to_agents_count_gt,
        agents_fewer_than=query.connected_to_agents_count_lt,
        agents_exactly=counts[0] if counts else None,
        hidden=None if query.show_hidden_blocks else False,
    )
    return found
