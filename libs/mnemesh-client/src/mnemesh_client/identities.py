"""Identities: the people and organizations that agents and blocks belong to, with keys that you choose."""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Literal

from mnemesh.agents.v1 import agents_pb2, identities_pb2, identities_service_pb2, identities_service_pb2_grpc
from mnemesh_kit.errors import InvalidArgument

from mnemesh_client.inputs import present_fields, update_request
from mnemesh_client.paging import paginate
from mnemesh_client.transport import Channel

IdentityTypeName = Literal["org", "user", "other"]

_ERASURE_SECONDS = 120.0


class IdentitiesClient:
    """Calls of IdentityService, as `client.identities`. Errors: NotFound; AlreadyExists for a key in use."""

    def __init__(self, channel: Channel) -> None:
        self.stub = identities_service_pb2_grpc.IdentityServiceStub(channel)

    async def create(
        self,
        identifier_key: str,
        name: str,
        type: IdentityTypeName = "user",  # noqa: A002
        *,
        properties: Mapping[str, str] | None = None,
        agent_ids: Sequence[str] = (),
        block_ids: Sequence[str] = (),
    ) -> identities_pb2.Identity:
        """Creates an identity. Raises AlreadyExists for a key in use."""
        identity = _identity(identifier_key, name, type, properties, agent_ids, block_ids)
        request = identities_service_pb2.CreateIdentityRequest(identity=identity)
        return (await self.stub.CreateIdentity(request)).identity

    async def upsert(
        self,
        identifier_key: str,
        name: str,
        type: IdentityTypeName = "user",  # noqa: A002
        *,
        properties: Mapping[str, str] | None = None,
        agent_ids: Sequence[str] = (),
        block_ids: Sequence[str] = (),
    ) -> identities_pb2.Identity:
        """Creates an identity, or updates the one with its key. Agents and blocks are added to those attached."""
        identity = _identity(identifier_key, name, type, properties, agent_ids, block_ids)
        request = identities_service_pb2.UpsertIdentityRequest(identity=identity)
        return (await self.stub.UpsertIdentity(request)).identity

    async def get(self, identity_id: str) -> identities_pb2.Identity:
        """Returns an identity with the ids of its agents and blocks."""
        view = identities_service_pb2.IdentityView(agent_ids=True, block_ids=True)
        request = identities_service_pb2.GetIdentityRequest(identity_id=identity_id, view=view)
        return (await self.stub.GetIdentity(request)).identity

    def list(
        self, *, identifier_key: str | None = None, agent_id: str | None = None, limit: int | None = None
    ) -> AsyncIterator[identities_pb2.Identity]:
        """Yields the identities that match all arguments, oldest first."""
        criteria = identities_service_pb2.IdentityFilter(identifier_key=identifier_key, agent_id=agent_id)
        request = identities_service_pb2.ListIdentitiesRequest(filter=criteria)
        return paginate(self.stub.ListIdentities, request, "identities", limit)

    async def count(self, *, identifier_key: str | None = None, agent_id: str | None = None) -> int:
        """Returns the number of identities that match all arguments."""
        criteria = identities_service_pb2.IdentityFilter(identifier_key=identifier_key, agent_id=agent_id)
        return (await self.stub.CountIdentities(identities_service_pb2.CountIdentitiesRequest(filter=criteria))).count

    async def update(self, identity_id: str, **fields: Any) -> identities_pb2.Identity:
        """Updates fields of an identity (name, identifier_key, …). None clears a field."""
        request = update_request(identities_service_pb2.UpdateIdentityRequest, "identity", identity_id, fields)
        return (await self.stub.UpdateIdentity(request)).identity

    async def set_properties(self, identity_id: str, properties: Mapping[str, str]) -> identities_pb2.Identity:
        """Sets properties by key. Other properties are kept."""
        request = identities_service_pb2.UpsertIdentityPropertiesRequest(
            identity_id=identity_id, properties=_properties(properties)
        )
        return (await self.stub.UpsertIdentityProperties(request)).identity

    async def attach(self, identity_id: str, *, agent_id: str | None = None, block_id: str | None = None) -> None:
        """Attaches an identity to an agent or to a block."""
        target = _target(agent_id, block_id)
        await self.stub.AttachIdentity(identities_service_pb2.AttachIdentityRequest(identity_id=identity_id, **target))

    async def detach(self, identity_id: str, *, agent_id: str | None = None, block_id: str | None = None) -> None:
        """Detaches an identity from an agent or from a block. Both are kept."""
        target = _target(agent_id, block_id)
        await self.stub.DetachIdentity(identities_service_pb2.DetachIdentityRequest(identity_id=identity_id, **target))

    def agents(self, identity_id: str, *, limit: int | None = None) -> AsyncIterator[str]:
        """Yields the ids of the agents of an identity."""
        request = identities_service_pb2.ListIdentityAgentsRequest(identity_id=identity_id)
        return paginate(self.stub.ListIdentityAgents, request, "agent_ids", limit)

    def blocks(self, identity_id: str, *, limit: int | None = None) -> AsyncIterator[str]:
        """Yields the ids of the blocks of an identity."""
        request = identities_service_pb2.ListIdentityBlocksRequest(identity_id=identity_id)
        return paginate(self.stub.ListIdentityBlocks, request, "block_ids", limit)

    async def delete(self, identity_id: str) -> None:
        """Deletes an identity. Its agents and blocks are kept."""
        await self.stub.DeleteIdentity(identities_service_pb2.DeleteIdentityRequest(identity_id=identity_id))

    async def erase(self, identity_id: str) -> agents_pb2.ErasureReport:
        """Erases an identity, its agents with all data that belongs only to them, and its blocks. Returns counts."""
        request = identities_service_pb2.EraseIdentityRequest(identity_id=identity_id)
        return (await self.stub.EraseIdentity(request, timeout=_ERASURE_SECONDS)).report


def _identity(
    identifier_key: str,
    name: str,
    type_: IdentityTypeName,
    properties: Mapping[str, str] | None,
    agent_ids: Sequence[str],
    block_ids: Sequence[str],
) -> identities_pb2.Identity:
    return identities_pb2.Identity(
        identifier_key=identifier_key,
        name=name,
        type=identities_pb2.IdentityType.Value(f"IDENTITY_TYPE_{type_.upper()}"),
        properties=_properties(properties or {}),
        agent_ids=agent_ids,
        block_ids=block_ids,
    )


def _properties(values: Mapping[str, str]) -> list[identities_pb2.IdentityProperty]:
    return [identities_pb2.IdentityProperty(key=key, text=text) for key, text in values.items()]


def _target(agent_id: str | None, block_id: str | None) -> dict[str, Any]:
    if (agent_id is None) == (block_id is None):
        raise InvalidArgument("Set exactly one of agent_id and block_id.", field="target")
    return present_fields(agent_id=agent_id, block_id=block_id)
