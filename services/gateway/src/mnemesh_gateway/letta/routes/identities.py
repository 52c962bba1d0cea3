"""Identities: create, upsert, retrieve, list, count, update, delete, and what belongs to them."""

from __future__ import annotations

from typing import Any, Final

from mnemesh.agents.v1 import agents_service_pb2, identities_pb2
from mnemesh.agents.v1 import identities_service_pb2 as rpc
from mnemesh.blocks.v1 import blocks_service_pb2

from mnemesh_gateway.letta.agent_states import HoldersQuery, agents_of
from mnemesh_gateway.letta.convert.groups import (
    identity_from_proto,
    identity_to_proto,
    identity_update_to_proto,
    properties_to_proto,
)
from mnemesh_gateway.letta.convert.memory import block_from_proto
from mnemesh_gateway.letta.convert.values import IDENTITY_TYPES, set_present
from mnemesh_gateway.letta.errors import invalid_field
from mnemesh_gateway.letta.mesh import Mesh
from mnemesh_gateway.letta.operations import Call, NoQuery, Operations
from mnemesh_gateway.letta.pages import READ_SECONDS, PageQuery, listed, order_to_proto
from mnemesh_gateway.letta.schemas.agents import AgentState
from mnemesh_gateway.letta.schemas.groups import (
    CreateIdentity,
    Identity,
    IdentityProperty,
    ListIdentities,
    UpdateIdentity,
)
from mnemesh_gateway.letta.schemas.memory import Block

operations = Operations()
_WRITE_SECONDS: Final = 60.0
_VIEW: Final = rpc.IdentityView(agent_ids=True, block_ids=True)


@operations.get("/identities/", query=ListIdentities, result=list[Identity])
async def list_identities(call: Call[ListIdentities, None]) -> list[Identity]:
    """Lists identities, newest first."""
    query = call.query
    page = PageQuery(before=query.before, after=query.after, limit=query.limit, order=query.order)
    request = rpc.ListIdentitiesRequest(filter=rpc.IdentityFilter(), view=_VIEW)
    request.filter.types.extend([IDENTITY_TYPES[query.identity_type]] if query.identity_type else ())
    set_present(
        request.filter, name_search=query.name, project_id=query.project_id, identifier_key=query.identifier_key
    )
    rows = await listed(call.mesh.identities.ListIdentities, request, "identities", page, default="desc")
    return [identity_from_proto(row) for row in rows]


@operations.get("/identities/count", result=int)
async def count_identities(call: Call[NoQuery, None]) -> int:
    """Counts identities."""
    request = rpc.CountIdentitiesRequest(filter=rpc.IdentityFilter())
    return int((await call.mesh.identities.CountIdentities(request, timeout=READ_SECONDS)).count)


@operations.post("/identities/", body=CreateIdentity, result=Identity)
async def create_identity(call: Call[NoQuery, CreateIdentity]) -> Identity:
    """Creates an identity."""
    request = rpc.CreateIdentityRequest(request_id=call.request_id, identity=identity_to_proto(call.body))
    made = (await call.mesh.identities.CreateIdentity(request, timeout=_WRITE_SECONDS)).identity
    return await _read(call.mesh, made.id)


@operations.put("/identities/", body=CreateIdentity, result=Identity)
async def upsert_identity(call: Call[NoQuery, CreateIdentity]) -> Identity:
    """Creates an identity, or updates the one with the same key, which keeps its id."""
    request = rpc.UpsertIdentityRequest(request_id=call.request_id, identity=identity_to_proto(call.body))
    made = (await call.mesh.identities.UpsertIdentity(request, timeout=_WRITE_SECONDS)).identity
    return await _read(call.mesh, made.id)


@operations.get("/identities/{identity_id}", result=Identity)
async def retrieve_identity(call: Call[NoQuery, None]) -> Identity:
    """Returns an identity."""
    return await _read(call.mesh, call.path["identity_id"])


@operations.patch("/identities/{identity_id}", body=UpdateIdentity, result=Identity)
async def update_identity(call: Call[NoQuery, UpdateIdentity]) -> Identity:
    """Updates an identity. Lists of ids and of properties replace the earlier ones."""
    identity_id = call.path["identity_id"]
    request = identity_update_to_proto(call.body, identity_id, call.request_id)
    if request.update_mask.paths:
        await call.mesh.identities.UpdateIdentity(request, timeout=_WRITE_SECONDS)
    return await _read(call.mesh, identity_id)


@operations.put("/identities/{identity_id}/properties", body=list[IdentityProperty])
async def upsert_properties_for_identity(call: Call[NoQuery, list[IdentityProperty]]) -> None:
    """Sets properties of an identity by their keys. Others stay."""
    request = rpc.UpsertIdentityPropertiesRequest(
        request_id=call.request_id,
        identity_id=call.path["identity_id"],
        properties=properties_to_proto(call.body, "body"),
    )
    await call.mesh.identities.UpsertIdentityProperties(request, timeout=_WRITE_SECONDS)


@operations.delete("/identities/{identity_id}")
async def delete_identity(call: Call[NoQuery, None]) -> None:
    """Deletes an identity, and detaches it everywhere. Agents and blocks stay."""
    identity_id = call.path["identity_id"]
    await _read(call.mesh, identity_id)
    request = rpc.DeleteIdentityRequest(request_id=call.request_id, identity_id=identity_id)
    await call.mesh.identities.DeleteIdentity(request, timeout=_WRITE_SECONDS)


@operations.get("/identities/{identity_id}/agents", query=HoldersQuery, result=list[AgentState])
async def list_agents_for_identity(call: Call[HoldersQuery, None]) -> list[AgentState]:
    """Lists the agents of an identity, newest first."""
    identity_id, query = call.path["identity_id"], call.query
    await _read(call.mesh, identity_id)
    limit = 50 if query.limit is None else query.limit
    request = agents_service_pb2.ListAgentsRequest(
        filter=agents_service_pb2.AgentFilter(identity_id=identity_id),
        order=order_to_proto(query.order or "desc"),
    )
    set_present(request, after_id=query.after, before_id=query.before)
    return await agents_of(call.mesh, request, limit, query.parts)


@operations.get("/identities/{identity_id}/blocks", query=PageQuery, result=list[Block])
async def list_blocks_for_identity(call: Call[PageQuery, None]) -> list[Block]:
    """Lists the blocks of an identity, newest first."""
    identity_id = call.path["identity_id"]
    await _read(call.mesh, identity_id)
    request = blocks_service_pb2.ListBlocksRequest(filter=blocks_service_pb2.BlockFilter(identity_id=identity_id))
    rows = await listed(call.mesh.blocks.ListBlocks, request, "blocks", call.query, default="desc")
    return [block_from_proto(row) for row in rows]


@operations.patch("/blocks/{block_id}/identities/attach/{identity_id}", result=Block)
async def attach_identity_to_block(call: Call[NoQuery, None]) -> Block:
    """Attaches an identity to a block, and returns the block."""
    request = rpc.AttachIdentityRequest(
        request_id=call.request_id, identity_id=call.path["identity_id"], block_id=call.path["block_id"]
    )
    await call.mesh.identities.AttachIdentity(request, timeout=_WRITE_SECONDS)
    return await _block(call)


@operations.patch("/blocks/{block_id}/identities/detach/{identity_id}", result=Block)
async def detach_identity_from_block(call: Call[NoQuery, None]) -> Block:
    """Detaches an identity from a block, and returns the block."""
    request = rpc.DetachIdentityRequest(
        request_id=call.request_id, identity_id=call.path["identity_id"], block_id=call.path["block_id"]
    )
    await call.mesh.identities.DetachIdentity(request, timeout=_WRITE_SECONDS)
    return await _block(call)


async def _block(call: Call[Any, Any]) -> Block:
    request = blocks_service_pb2.GetBlockRequest(block_id=call.path["block_id"])
    return block_from_proto((await call.mesh.blocks.GetBlock(request, timeout=READ_SECONDS)).block)


async def _read(mesh: Mesh, identity_id: str) -> Identity:
    request = rpc.GetIdentityRequest(identity_id=identity_id, view=_VIEW)
    found: identities_pb2.Identity = (await mesh.identities.GetIdentity(request, timeout=READ_SECONDS)).identity
    return identity_from_proto(found)


async def identity_of(mesh: Mesh, keys: list[str]) -> str | None:
    """Returns the id of the identity with a key; None if there is none. Raises ValidationFailed for several keys."""
    if len(keys) > 1:
        raise invalid_field("Only one identifier key can be given.", "query", "identifier_keys")
    request = rpc.ListIdentitiesRequest(page_size=1)
    request.filter.identifier_key = keys[0]
    found = (await mesh.identities.ListIdentities(request, timeout=READ_SECONDS)).identities
    return found[0].id if found else None
