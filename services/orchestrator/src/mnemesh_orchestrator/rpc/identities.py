"""`mnemesh.agents.v1.IdentityService`, with the conversion of its messages."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, Final

import grpc
from mnemesh.agents.v1 import identities_pb2 as pb
from mnemesh.agents.v1 import identities_service_pb2 as rpc
from mnemesh.agents.v1 import identities_service_pb2_grpc
from mnemesh_kit.call_context import current_principal
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.idempotency import request_key
from mnemesh_kit.ids import require_id, require_ids
from mnemesh_kit.paging import bounded, next_page_token, page_of, page_query
from mnemesh_types.twin import Conversion, enum_from_proto, enum_of, optional_field, register, written

from mnemesh_orchestrator.model.identities import (
    Identity,
    IdentityFilter,
    IdentityOrder,
    IdentityProperty,
    IdentityType,
    PropertyChange,
)
from mnemesh_orchestrator.rpc.convert.runs import PROVENANCE_IDS
from mnemesh_orchestrator.usecases.identities import IdentityService

Context = grpc.aio.ServicerContext[Any, Any]

enum_of(pb.IdentityType, IdentityType)
enum_of(rpc.IdentityOrderBy, IdentityOrder, "CREATED_AT")
IDENTITY: Final = Conversion(pb.Identity, Identity)
_FILTER: Final = Conversion(rpc.IdentityFilter, IdentityFilter)
_WRITABLE: Final = ("identifier_key", "name", "type", "properties", *PROVENANCE_IDS)
_ATTACHMENTS: Final = ("agent_ids", "block_ids")


def _read_property(item: pb.IdentityProperty, _field: str = "") -> IdentityProperty | None:
    kind = item.WhichOneof("value")
    return None if kind is None else IdentityProperty(item.key, kind, getattr(item, kind))


def _write_property(item: IdentityProperty) -> pb.IdentityProperty:
    value: dict[str, Any] = {item.kind: item.value}
    return pb.IdentityProperty(key=item.key, **value)


register(pb.IdentityProperty, _read_property, _write_property)


def identity_draft_from_proto(message: pb.Identity, fields: Collection[str] = _WRITABLE) -> Identity:
    """Returns the identity that a caller wants to create, without id, organization and times."""
    draft = IDENTITY.from_proto(written(message, fields), "identity", organization_id="")
    return replace(draft, properties=_with_values(draft.properties))


def _with_values(properties: Sequence[IdentityProperty | None]) -> tuple[IdentityProperty, ...]:
    return tuple(item for item in properties if item is not None)


def identity_update_from_proto(request: rpc.UpdateIdentityRequest) -> tuple[str, dict[str, Any]]:
    """Returns the id of the identity, and the new values by the field names of `Identity`.

    The value of `provenance` is a dictionary of those of its fields that change.
    """
    identity_id = require_id(request.identity.id, "identity", "identity.id")
    changes = IDENTITY.changes(request.identity, request.update_mask, (*_WRITABLE, *_ATTACHMENTS), "identity")
    if "properties" in changes:
        changes["properties"] = _with_values(changes["properties"])
    return identity_id, changes


def attachments_from_proto(request: rpc.UpdateIdentityRequest) -> tuple[tuple[str, ...] | None, tuple[str, ...] | None]:
    """Returns the ids of the agents and of the blocks of an update; None for those that the mask does not name."""
    paths, message = request.update_mask.paths, request.identity
    return (
        agent_ids_from_proto(message.agent_ids) if "agent_ids" in paths else None,
        block_ids_from_proto(message.block_ids) if "block_ids" in paths else None,
    )


def agent_ids_from_proto(ids: Sequence[str]) -> tuple[str, ...]:
    """Returns the ids of agents, each once. Raises InvalidArgument if one is malformed."""
    return tuple(dict.fromkeys(require_id(item, "agent", "identity.agent_ids") for item in ids))


def block_ids_from_proto(ids: Sequence[str]) -> tuple[str, ...]:
    """Returns the ids of blocks, each once. Raises InvalidArgument if one is malformed."""
    return tuple(dict.fromkeys(require_id(item, "block", "identity.block_ids") for item in ids))


def property_changes_from_proto(properties: Sequence[pb.IdentityProperty]) -> tuple[PropertyChange, ...]:
    """Returns changes of properties, in order. A property without a value is removed."""
    return tuple(PropertyChange(item.key, _read_property(item)) for item in properties)


def identity_filter_from_proto(message: rpc.IdentityFilter) -> tuple[IdentityFilter, str | None]:
    """Returns the filter of a list or a count, and the id of the block whose identities it selects."""
    require_ids(message, "filter", identity_ids="identity", agent_id="agent", block_id="block")
    return _FILTER.from_proto(message, "filter"), optional_field(message, "block_id")


def target_from_proto(request: rpc.AttachIdentityRequest | rpc.DetachIdentityRequest) -> dict[str, str]:
    """Returns the agent_id or the block_id of a request. Raises InvalidArgument if it has neither."""
    match request.WhichOneof("target"):
        case "agent_id":
            return {"agent_id": require_id(request.agent_id, "agent", "agent_id")}
        case "block_id":
            return {"block_id": require_id(request.block_id, "block", "block_id")}
        case _:
            raise InvalidArgument("target must be set to agent_id or block_id.", field="target")


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
