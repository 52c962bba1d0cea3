"""Identities: the people and organizations that agents and blocks belong to, with keys that you choose."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Literal

from mnemesh.agents.v1 import agents_pb2, identities_pb2, identities_service_pb2, identities_service_pb2_grpc

from mnemesh_client.paging import paginate
from mnemesh_client.transport import Channel

IdentityTypeName = Literal["org", "user", "other"]

_ERASURE_SECONDS = 120.0


class IdentitiesClient:
    """Calls of IdentityService, as `client.identities`. Errors: NotFound; AlreadyExists for a key in use."""

    def __init__(self, channel: Channel) -> None:
        self.stub = identities_service_pb2_grpc.IdentityServiceStub(channel)

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
        identity = identities_pb2.Identity(
            identifier_key=identifier_key,
            name=name,
            type=identities_pb2.IdentityType.Value(f"IDENTITY_TYPE_{type.upper()}"),
            properties=[
                identities_pb2.IdentityProperty(key=key, text=text) for key, text in (properties or {}).items()
            ],
            agent_ids=agent_ids,
            block_ids=block_ids,
        )
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

    async def delete(self, identity_id: str) -> None:
        """Deletes an identity. Its agents and blocks are kept."""
        await self.stub.DeleteIdentity(identities_service_pb2.DeleteIdentityRequest(identity_id=identity_id))

    async def erase(self, identity_id: str) -> agents_pb2.ErasureReport:
        """Erases an identity, its agents with all data that belongs only to them, and its blocks. Returns counts."""
        request = identities_service_pb2.EraseIdentityRequest(identity_id=identity_id)
        return (await self.stub.EraseIdentity(request, timeout=_ERASURE_SECONDS)).report
