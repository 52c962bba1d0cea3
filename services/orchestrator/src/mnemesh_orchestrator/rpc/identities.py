"""mnemesh.agents.v1.IdentityService."""

from dataclasses import replace
from typing import Any

import grpc
from mnemesh.agents.v1 import identities_pb2 as pb
from mnemesh.agents.v1 import identities_service_pb2 as rpc
from mnemesh.agents.v1 import identities_service_pb2_grpc
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.idempotency import request_key
from mnemesh_kit.ids import require_id
from mnemesh_kit.paging import next_page_token, page_of, page_query
from mnemesh_kit.principal import current_principal

from mnemesh_orchestrator.model.identities import Identity, IdentityFilter, merged
from mnemesh_orchestrator.rpc.convert import identities as convert
from mnemesh_orchestrator.rpc.convert.agents import erased_to_proto
from mnemesh_orchestrator.usecases.identities import IdentityService

Context = grpc.aio.ServicerContext[Any, Any]


class IdentitiesServicer(identities_service_pb2_grpc.IdentityServiceServicer):
    """Identities."""

    def __init__(self, service: IdentityService) -> None:
        self._service = service

    async def CreateIdentity(self, request: rpc.CreateIdentityRequest, context: Context) -> rpc.CreateIdentityResponse:
        """Makes an identity."""
        identity, _ = await self._made(request, "CreateIdentity", merges=False)
        return rpc.CreateIdentityResponse(identity=identity)

    async def UpsertIdentity(self, request: rpc.UpsertIdentityRequest, context: Context) -> rpc.UpsertIdentityResponse:
        """Makes an identity, or makes the one with its key so."""
        identity, created = await self._made(request, "UpsertIdentity", merges=True)
        return rpc.UpsertIdentityResponse(identity=identity, created=created)

    async def GetIdentity(self, request: rpc.GetIdentityRequest, context: Context) -> rpc.GetIdentityResponse:
        """An identity."""
        identity = await self._service.get(current_principal(), _identity_id(request.identity_id))
        return rpc.GetIdentityResponse(identity=await self._shown(identity, request.view))

    async def ListIdentities(self, request: rpc.ListIdentitiesRequest, context: Context) -> rpc.ListIdentitiesResponse:
        """A page of identities."""
        if request.order_by not in convert.ORDERS:
            raise InvalidArgument("order_by is not known.", field="order_by")
        query, where = page_query(request), await self._filter(request.filter)
        page = await self._service.list(current_principal(), where, convert.ORDERS[request.order_by], query)
        identities = [await self._shown(identity, request.view) for identity in page.items]
        return rpc.ListIdentitiesResponse(identities=identities, next_page_token=next_page_token(query, page))

    async def CountIdentities(
        self, request: rpc.CountIdentitiesRequest, context: Context
    ) -> rpc.CountIdentitiesResponse:
        """How many identities match."""
        where = await self._filter(request.filter)
        return rpc.CountIdentitiesResponse(count=await self._service.count(current_principal(), where))

    async def UpdateIdentity(self, request: rpc.UpdateIdentityRequest, context: Context) -> rpc.UpdateIdentityResponse:
        """Changes the fields in the mask."""
        given, paths = request.identity, list(request.update_mask.paths)
        identity_id = _identity_id(given.id, "identity.id")
        if not paths:
            raise InvalidArgument("update_mask names no field.", field="update_mask")
        for path in paths:
            if path not in convert.CHANGES and path not in ("agent_ids", "block_ids"):
                raise InvalidArgument(f"update_mask: {path} cannot be changed.", field="update_mask")

        def change(identity: Identity) -> Identity:
            for path in paths:
                if path in convert.CHANGES:
                    identity = convert.CHANGES[path](given, identity)
            return identity

        updated = await self._service.update(
            current_principal(),
            request_key(request, "UpdateIdentity"),
            identity_id,
            change,
            convert.agents_from_proto(given.agent_ids) if "agent_ids" in paths else None,
            convert.blocks_from_proto(given.block_ids) if "block_ids" in paths else None,
        )
        return rpc.UpdateIdentityResponse(identity=convert.identity_to_proto(updated))

    async def UpsertIdentityProperties(
        self, request: rpc.UpsertIdentityPropertiesRequest, context: Context
    ) -> rpc.UpsertIdentityPropertiesResponse:
        """Sets properties key by key."""
        new, without = convert.properties_from_proto(request.properties, "properties")

        def change(identity: Identity) -> Identity:
            return replace(identity, properties=merged(identity.properties, new, without))

        key = request_key(request, "UpsertIdentityProperties")
        updated = await self._service.update(current_principal(), key, _identity_id(request.identity_id), change)
        return rpc.UpsertIdentityPropertiesResponse(identity=convert.identity_to_proto(updated))

    async def DeleteIdentity(self, request: rpc.DeleteIdentityRequest, context: Context) -> rpc.DeleteIdentityResponse:
        """Deletes an identity."""
        key = request_key(request, "DeleteIdentity")
        await self._service.delete(current_principal(), key, _identity_id(request.identity_id))
        return rpc.DeleteIdentityResponse()

    async def EraseIdentity(self, request: rpc.EraseIdentityRequest, context: Context) -> rpc.EraseIdentityResponse:
        """Erases everything that belongs to an identity."""
        erased = await self._service.erase(current_principal(), _identity_id(request.identity_id))
        return rpc.EraseIdentityResponse(report=erased_to_proto(erased))

    async def AttachIdentity(self, request: rpc.AttachIdentityRequest, context: Context) -> rpc.AttachIdentityResponse:
        """Attaches an identity to an agent or block."""
        key = request_key(request, "AttachIdentity")
        await self._service.attach(current_principal(), key, _identity_id(request.identity_id), **_target(request))
        return rpc.AttachIdentityResponse()

    async def DetachIdentity(self, request: rpc.DetachIdentityRequest, context: Context) -> rpc.DetachIdentityResponse:
        """Detaches an identity from an agent or block."""
        key = request_key(request, "DetachIdentity")
        await self._service.detach(current_principal(), key, _identity_id(request.identity_id), **_target(request))
        return rpc.DetachIdentityResponse()

    async def ListIdentityAgents(
        self, request: rpc.ListIdentityAgentsRequest, context: Context
    ) -> rpc.ListIdentityAgentsResponse:
        """A page of the agents of an identity."""
        query = page_query(request)
        page = await self._service.agent_ids(current_principal(), _identity_id(request.identity_id), query)
        return rpc.ListIdentityAgentsResponse(agent_ids=page.items, next_page_token=next_page_token(query, page))

    async def ListIdentityBlocks(
        self, request: rpc.ListIdentityBlocksRequest, context: Context
    ) -> rpc.ListIdentityBlocksResponse:
        """A page of the blocks of an identity."""
        query = page_query(request)
        found = await self._service.block_ids(current_principal(), _identity_id(request.identity_id))
        page = page_of(found, query, str)
        return rpc.ListIdentityBlocksResponse(block_ids=page.items, next_page_token=next_page_token(query, page))

    async def _made(
        self, request: rpc.CreateIdentityRequest | rpc.UpsertIdentityRequest, method: str, *, merges: bool
    ) -> tuple[pb.Identity, bool]:
        given = request.identity
        agent_ids, block_ids = convert.agents_from_proto(given.agent_ids), convert.blocks_from_proto(given.block_ids)
        identity, is_new = await self._service.create(
            current_principal(),
            request_key(request, method),
            convert.draft_from_proto(given),
            agent_ids,
            block_ids,
            merges=merges,
        )
        return convert.identity_to_proto(identity), is_new

    async def _shown(self, identity: Identity, view: rpc.IdentityView) -> pb.Identity:
        agents: tuple[str, ...] = ()
        if view.agent_ids:
            agents = (await self._service.agent_ids(current_principal(), identity.id)).items
        blocks = await self._service.block_ids(current_principal(), identity.id) if view.block_ids else ()
        return convert.identity_to_proto(identity, agents, blocks)

    async def _filter(self, given: rpc.IdentityFilter) -> IdentityFilter:
        where = convert.filter_from_proto(given)
        if not given.HasField("block_id"):
            return where
        return await self._service.of_block(require_id(given.block_id, "block", "filter.block_id"), where)


def _identity_id(given: str, field: str = "identity_id") -> str:
    return require_id(given, "identity", field)


def _target(request: rpc.AttachIdentityRequest | rpc.DetachIdentityRequest) -> dict[str, str]:
    match request.WhichOneof("target"):
        case "agent_id":
            return {"agent_id": require_id(request.agent_id, "agent", "agent_id")}
        case "block_id":
            return {"block_id": require_id(request.block_id, "block", "block_id")}
        case _:
            raise InvalidArgument("Either agent_id or block_id is required.", field="target")
