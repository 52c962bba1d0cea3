"""Blocks: create, retrieve, list, count, update, delete, and their identities."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final, Literal

import msgspec
from mnemesh.agents.v1 import identities_service_pb2
from mnemesh.blocks.v1 import blocks_pb2 as pb
from mnemesh.blocks.v1 import blocks_service_pb2 as rpc

from mnemesh_gateway.letta.identities import identity_of
from mnemesh_gateway.letta.identities import read_identity as _read
from mnemesh_gateway.letta.mesh import READ_SECONDS, PageQuery, listed
from mnemesh_gateway.letta.operations import Call, NoQuery, Operations
from mnemesh_gateway.letta.values import json_to_text, metadata, moment, present, provenance, set_present


class Block(msgspec.Struct, kw_only=True):
    """A block, as agents and lists show it."""

    id: str | None = None
    value: str
    limit: int | None = None
    project_id: str | None = None
    template_name: str | None = None
    is_template: bool = False
    template_id: str | None = None
    base_template_id: str | None = None
    deployment_id: str | None = None
    entity_id: str | None = None
    preserve_on_migration: bool = False
    label: str | None = None
    read_only: bool = False
    description: str | None = None
    metadata: dict[str, Any] | None = None
    hidden: bool | None = None
    tags: list[str] = []
    created_by_id: str | None = None
    last_updated_by_id: str | None = None
    created_at: datetime | None = None
    updated_at: datetime | None = None


class CreateBlock(msgspec.Struct, kw_only=True):
    """A block to create."""

    label: str
    value: str
    limit: int | None = None
    project_id: str | None = None
    template_name: str | None = None
    is_template: bool = False
    template_id: str | None = None
    base_template_id: str | None = None
    deployment_id: str | None = None
    entity_id: str | None = None
    preserve_on_migration: bool = False
    read_only: bool = False
    description: str | None = None
    metadata: dict[str, Any] | None = None
    hidden: bool | None = None
    tags: list[str] | None = None


class UpdateBlock(msgspec.Struct, kw_only=True):
    """Changes of a block. A field that is null or absent stays as it is."""

    value: str | None = None
    label: str | None = None
    limit: int | None = None
    project_id: str | None = None
    template_name: str | None = None
    is_template: bool | None = None
    template_id: str | None = None
    base_template_id: str | None = None
    deployment_id: str | None = None
    entity_id: str | None = None
    preserve_on_migration: bool | None = None
    read_only: bool | None = None
    description: str | None = None
    metadata: dict[str, Any] | None = None
    hidden: bool | None = None
    tags: list[str] | None = None


def block_from_proto(block: pb.Block) -> Block:
    """Returns a block."""
    return Block(
        id=block.id,
        label=block.label,
        value=block.value,
        limit=block.limit,
        description=present(block, "description"),
        read_only=block.read_only,
        metadata=metadata(block) or {},
        tags=list(block.tags),
        hidden=block.hidden or None,
        is_template=block.is_template,
        template_name=present(block, "template_name"),
        preserve_on_migration=block.preserve_on_migration,
        created_at=moment(block, "create_time"),
        updated_at=moment(block, "update_time"),
        **provenance(block),
    )


def block_to_proto(block: CreateBlock, default_limit: int) -> pb.Block:
    """Returns the message of a block to create. A value that is longer than the default limit needs a limit."""
    message = pb.Block(
        label=block.label,
        value=block.value,
        read_only=block.read_only,
        is_template=block.is_template,
        preserve_on_migration=block.preserve_on_migration,
        hidden=bool(block.hidden),
        tags=block.tags or (),
    )
    set_present(
        message,
        limit=default_limit if block.limit is None else block.limit,
        description=block.description,
        template_name=block.template_name,
        metadata=json_to_text(block.metadata),
    )
    set_present(
        message.provenance,
        project_id=block.project_id,
        template_id=block.template_id,
        base_template_id=block.base_template_id,
        deployment_id=block.deployment_id,
        entity_id=block.entity_id,
    )
    return message


def update_to_proto(body: UpdateBlock, block_id: str, request_id: str) -> rpc.UpdateBlockRequest:
    """Returns the request that makes the changes of a body. Its mask is empty if there are none."""
    message = pb.Block(id=block_id)
    plain = {
        "value": body.value,
        "label": body.label,
        "limit": body.limit,
        "description": body.description,
        "metadata": json_to_text(body.metadata),
        "read_only": body.read_only,
        "hidden": body.hidden,
        "is_template": body.is_template,
        "template_name": body.template_name,
        "preserve_on_migration": body.preserve_on_migration,
    }
    set_present(message, **plain)
    paths = [name for name, value in plain.items() if value is not None]
    if body.tags is not None:
        message.tags.extend(body.tags)
        paths.append("tags")
    request = rpc.UpdateBlockRequest(request_id=request_id, block=message)
    request.update_mask.paths.extend(paths)
    return request


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


@operations.get("/identities/{identity_id}/blocks", query=PageQuery, result=list[Block])
async def list_blocks_for_identity(call: Call[PageQuery, None]) -> list[Block]:
    """Lists the blocks of an identity, newest first."""
    identity_id = call.path["identity_id"]
    await _read(call.mesh, identity_id)
    request = rpc.ListBlocksRequest(filter=rpc.BlockFilter(identity_id=identity_id))
    rows = await listed(call.mesh.blocks.ListBlocks, request, "blocks", call.query, default="desc")
    return [block_from_proto(row) for row in rows]


@operations.patch("/blocks/{block_id}/identities/attach/{identity_id}", result=Block)
async def attach_identity_to_block(call: Call[NoQuery, None]) -> Block:
    """Attaches an identity to a block, and returns the block."""
    request = identities_service_pb2.AttachIdentityRequest(
        request_id=call.request_id, identity_id=call.path["identity_id"], block_id=call.path["block_id"]
    )
    await call.mesh.identities.AttachIdentity(request, timeout=_WRITE_SECONDS)
    return await _block(call)


@operations.patch("/blocks/{block_id}/identities/detach/{identity_id}", result=Block)
async def detach_identity_from_block(call: Call[NoQuery, None]) -> Block:
    """Detaches an identity from a block, and returns the block."""
    request = identities_service_pb2.DetachIdentityRequest(
        request_id=call.request_id, identity_id=call.path["identity_id"], block_id=call.path["block_id"]
    )
    await call.mesh.identities.DetachIdentity(request, timeout=_WRITE_SECONDS)
    return await _block(call)


async def _block(call: Call[Any, Any]) -> Block:
    request = rpc.GetBlockRequest(block_id=call.path["block_id"])
    return block_from_proto((await call.mesh.blocks.GetBlock(request, timeout=READ_SECONDS)).block)
