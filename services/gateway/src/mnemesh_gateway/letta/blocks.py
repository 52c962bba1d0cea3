"""Blocks: create, retrieve, list, count, update, delete, and their identities."""

from typing import Any, Literal

import msgspec
from mnemesh.agents.v1 import identities_service_pb2
from mnemesh.blocks.v1 import blocks_pb2 as pb
from mnemesh.blocks.v1 import blocks_service_pb2 as rpc
from mnemesh_letta.convert.values import fill, json_value, set_present, shown

from mnemesh_gateway.letta.identities import identity_of, read_identity
from mnemesh_gateway.letta.mesh import Origin, PageQuery, list_page
from mnemesh_gateway.letta.operations import Call, NoQuery, Operations, read

operations = Operations()


class Block(Origin, kw_only=True):
    """A block, as agents and lists show it."""

    id: str | None = None
    value: str
    limit: int | None = None
    template_name: str | None = None
    is_template: bool = False
    preserve_on_migration: bool = False
    label: str | None = None
    read_only: bool = False
    description: str | None = None
    metadata: dict[str, Any] | None = None
    hidden: bool | None = None
    tags: list[str]


class UpdateBlock(msgspec.Struct, kw_only=True):
    """Changes of a block. A field that is null or absent stays as it is."""

    value: str | None = None
    label: str | None = None
    limit: int | None = None
    template_name: str | None = None
    is_template: bool | None = None
    preserve_on_migration: bool | None = None
    read_only: bool | None = None
    description: str | None = None
    metadata: dict[str, Any] | None = None
    hidden: bool | None = None
    tags: list[str] | None = None


class CreateBlock(UpdateBlock, kw_only=True):
    """A block to create."""

    label: str
    value: str
    project_id: str | None = None
    template_id: str | None = None
    base_template_id: str | None = None
    deployment_id: str | None = None
    entity_id: str | None = None


def block_from_proto(block: pb.Block) -> Block:
    return shown(Block, block, metadata=json_value(block.metadata) or {}, hidden=block.hidden or None)


def block_to_proto(block: CreateBlock, default_limit: int) -> pb.Block:
    """Returns the message of a block to create. A value that is longer than the default limit needs a limit."""
    message = pb.Block(limit=default_limit)
    fill(message, block)
    return message


def update_to_proto(body: UpdateBlock, block_id: str) -> rpc.UpdateBlockRequest:
    """Returns the request that makes the changes of a body. Its mask is empty if there are none."""
    request = rpc.UpdateBlockRequest(block=pb.Block(id=block_id))
    request.update_mask.paths.extend(fill(request.block, body))
    return request


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


@operations.post("/blocks/")
async def create_block(call: Call[NoQuery, CreateBlock]) -> Block:
    """Creates a block."""
    request = rpc.CreateBlockRequest(block=block_to_proto(call.body, call.profile.block_limit))
    return block_from_proto((await call.write(call.mesh.blocks.CreateBlock, request)).block)


@operations.get("/blocks/")
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
    rows = await list_page(call.mesh.blocks.ListBlocks, request, "blocks", page, default="asc")
    return [block_from_proto(block) for block in rows]


@operations.get("/blocks/count")
async def count_blocks(call: Call[CountBlocks, None]) -> int:
    """Counts blocks."""
    return int((await read(call.mesh.blocks.CountBlocks, rpc.CountBlocksRequest(filter=_counted(call.query)))).count)


@operations.get("/blocks/{block_id}")
async def retrieve_block(call: Call[NoQuery, None]) -> Block:
    """Returns a block."""
    return await read_block(call)


@operations.patch("/blocks/{block_id}")
async def modify_block(call: Call[NoQuery, UpdateBlock]) -> Block:
    """Updates a block."""
    request = update_to_proto(call.body, call.path["block_id"])
    if not request.update_mask.paths:
        return await read_block(call)
    return block_from_proto((await call.write(call.mesh.blocks.UpdateBlock, request)).block)


@operations.delete("/blocks/{block_id}")
async def delete_block(call: Call[NoQuery, None]) -> None:
    """Deletes a block, and detaches it everywhere."""
    await read_block(call)
    await call.write(call.mesh.blocks.DeleteBlock, rpc.DeleteBlockRequest(block_id=call.path["block_id"]))


@operations.get("/identities/{identity_id}/blocks")
async def list_blocks_for_identity(call: Call[PageQuery, None]) -> list[Block]:
    """Lists the blocks of an identity, newest first."""
    identity_id = call.path["identity_id"]
    await read_identity(call.mesh, identity_id)
    request = rpc.ListBlocksRequest(filter=rpc.BlockFilter(identity_id=identity_id))
    rows = await list_page(call.mesh.blocks.ListBlocks, request, "blocks", call.query, default="desc")
    return [block_from_proto(row) for row in rows]


@operations.patch("/blocks/{block_id}/identities/attach/{identity_id}")
async def attach_identity_to_block(call: Call[NoQuery, None]) -> Block:
    """Attaches an identity to a block, and returns the block."""
    await call.write(call.mesh.identities.AttachIdentity, identities_service_pb2.AttachIdentityRequest(**call.path))
    return await read_block(call)


@operations.patch("/blocks/{block_id}/identities/detach/{identity_id}")
async def detach_identity_from_block(call: Call[NoQuery, None]) -> Block:
    """Detaches an identity from a block, and returns the block."""
    await call.write(call.mesh.identities.DetachIdentity, identities_service_pb2.DetachIdentityRequest(**call.path))
    return await read_block(call)


async def read_block(call: Call[Any, Any]) -> Block:
    """Returns the path's block. Raises NotFound."""
    request = rpc.GetBlockRequest(block_id=call.path["block_id"])
    return block_from_proto((await read(call.mesh.blocks.GetBlock, request)).block)


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
