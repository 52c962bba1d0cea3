"""`mnemesh.agents.v1.IdentityService`."""

from typing import Any

import grpc
from mnemesh.agents.v1 import identities_pb2 as pb
from mnemesh.agents.v1 import identities_service_pb2 as rpc
from mnemesh.agents.v1 import identities_service_pb2_grpc
from mnemesh_kit.call_context import current_principal
from mnemesh_kit.idempotency import request_key
from mnemesh_kit.ids import require_id
from mnemesh_kit.paging import bounded, next_page_token, page_of, page_query
from mnemesh_types.twin import enum_from_proto

from mnemesh_orchestrator.model.identities import Identity, IdentityOrder
from mnemesh_orchestrator.rpc.convert.identities import (
    IDENTITY,
    agent_ids_from_proto,
    attachments_from_proto,
    block_ids_from_proto,
    identity_draft_from_proto,
    identity_filter_from_proto,
    identity_update_from_proto,
    property_changes_from_proto,
    target_from_proto,
)
from mnemesh_orchestrator.usecases.identities import IdentityService

Context = grpc.aio.ServicerContext[Any, Any]


class IdentitiesServicer(identities_service_pb2_grpc.IdentityServiceServicer):
    """Serves the identities."""

    def __init__(self, service: IdentityService) -> None:
        self._service = service

    async def CreateIdentity(self, request: rpc.CreateIdentityRequest, context: Context) -> rpc.CreateIdentityResponse:
        identity, _ = await self._create(request, "CreateIdentity", merges=False)
        return rpc.CreateIdentityResponse(identity=identity)

    async def UpsertIdentity(self, request: rpc.UpsertIdentityRequest, context: Context) -> rpc.UpsertIdentityResponse:
        identity, created = await self._create(request, "UpsertIdentity", merges=True)
        return rpc.UpsertIdentityResponse(identity=identity, created=created)

    async def GetIdentity(self, request: rpc.GetIdentityRequest, context: Context) -> rpc.GetIdentityResponse:
        identity = await self._service.get(current_principal(), _identity_id(request.identity_id))
        return rpc.GetIdentityResponse(identity=await self._with_view(identity, request.view))

    async def ListIdentities(self, request: rpc.ListIdentitiesRequest, context: Context) -> rpc.ListIdentitiesResponse:
        order, query = enum_from_proto(IdentityOrder, request.order_by, "order_by"), page_query(request)
        filter_, block_id = identity_filter_from_proto(request.filter)
        found = await self._service.list(current_principal(), filter_, order, query, block_id=block_id)
        identities = [await self._with_view(identity, request.view) for identity in found.items]
        page = bounded(query, found.with_items(identities))
        return rpc.ListIdentitiesResponse(identities=page.items, next_page_token=next_page_token(query, page))

    async def CountIdentities(
        self, request: rpc.CountIdentitiesRequest, context: Context
    ) -> rpc.CountIdentitiesResponse:
        filter_, block_id = identity_filter_from_proto(request.filter)
        count = await self._service.count(current_principal(), filter_, block_id=block_id)
        return rpc.CountIdentitiesResponse(count=count)

    async def UpdateIdentity(self, request: rpc.UpdateIdentityRequest, context: Context) -> rpc.UpdateIdentityResponse:
        identity_id, changes = identity_update_from_proto(request)
        key = request_key(request, "UpdateIdentity")
        identity = await self._service.update(
            current_principal(), key, identity_id, changes, *attachments_from_proto(request)
        )
        return rpc.UpdateIdentityResponse(identity=IDENTITY.to_proto(identity))

    async def UpsertIdentityProperties(
        self, request: rpc.UpsertIdentityPropertiesRequest, context: Context
    ) -> rpc.UpsertIdentityPropertiesResponse:
        key, changes = request_key(request, "UpsertIdentityProperties"), property_changes_from_proto(request.properties)
        identity_id = _identity_id(request.identity_id)
        identity = await self._service.change_properties(current_principal(), key, identity_id, changes)
        return rpc.UpsertIdentityPropertiesResponse(identity=IDENTITY.to_proto(identity))

    async def DeleteIdentity(self, request: rpc.DeleteIdentityRequest, context: Context) -> rpc.DeleteIdentityResponse:
        key = request_key(request, "DeleteIdentity")
        await self._service.delete(current_principal(), key, _identity_id(request.identity_id))
        return rpc.DeleteIdentityResponse()

    async def EraseIdentity(self, request: rpc.EraseIdentityRequest, context: Context) -> rpc.EraseIdentityResponse:
        erased = await self._service.erase(current_principal(), _identity_id(request.identity_id))
        return rpc.EraseIdentityResponse(report=erased.to_proto())

    async def AttachIdentity(self, request: rpc.AttachIdentityRequest, context: Context) -> rpc.AttachIdentityResponse:
        key, identity_id = request_key(request, "AttachIdentity"), _identity_id(request.identity_id)
        await self._service.attach(current_principal(), key, identity_id, **target_from_proto(request))
        return rpc.AttachIdentityResponse()

    async def DetachIdentity(self, request: rpc.DetachIdentityRequest, context: Context) -> rpc.DetachIdentityResponse:
        key, identity_id = request_key(request, "DetachIdentity"), _identity_id(request.identity_id)
        await self._service.detach(current_principal(), key, identity_id, **target_from_proto(request))
        return rpc.DetachIdentityResponse()

    async def ListIdentityAgents(
        self, request: rpc.ListIdentityAgentsRequest, context: Context
    ) -> rpc.ListIdentityAgentsResponse:
        query = page_query(request)
        found = await self._service.agent_ids(current_principal(), _identity_id(request.identity_id), query)
        page = bounded(query, found)
        return rpc.ListIdentityAgentsResponse(agent_ids=page.items, next_page_token=next_page_token(query, page))

    async def ListIdentityBlocks(
        self, request: rpc.ListIdentityBlocksRequest, context: Context
    ) -> rpc.ListIdentityBlocksResponse:
        query = page_query(request)
        block_ids = await self._service.block_ids(current_principal(), _identity_id(request.identity_id))
        page = bounded(query, page_of(block_ids, query, str))
        return rpc.ListIdentityBlocksResponse(block_ids=page.items, next_page_token=next_page_token(query, page))

    async def _create(
        self, request: rpc.CreateIdentityRequest | rpc.UpsertIdentityRequest, method: str, *, merges: bool
    ) -> tuple[pb.Identity, bool]:
        identity, is_new = await self._service.create(
            current_principal(),
            request_key(request, method),
            identity_draft_from_proto(request.identity),
            agent_ids_from_proto(request.identity.agent_ids),
            block_ids_from_proto(request.identity.block_ids),
            merges=merges,
        )
        return IDENTITY.to_proto(identity), is_new

    async def _with_view(self, identity: Identity, view: rpc.IdentityView) -> pb.Identity:
        caller = current_principal()
        agents = (await self._service.agent_ids(caller, identity.id)).items if view.agent_ids else ()
        blocks = await self._service.block_ids(caller, identity.id) if view.block_ids else ()
        return IDENTITY.to_proto(identity, agent_ids=agents, block_ids=blocks)


def _identity_id(value: str) -> str:
    return require_id(value, "identity", "identity_id")
