"""Providers of models: create, retrieve, list, update, delete, check, and read their models again."""

from __future__ import annotations

from typing import Final

from mnemesh.agents.v1 import models_pb2 as pb
from mnemesh.agents.v1 import models_service_pb2 as rpc

from mnemesh_gateway.letta.convert.providers import (
    credentials_to_proto,
    provider_from_proto,
    provider_to_proto,
    provider_type,
)
from mnemesh_gateway.letta.convert.values import set_present
from mnemesh_gateway.letta.mesh import Mesh
from mnemesh_gateway.letta.operations import Call, NoQuery, Operations
from mnemesh_gateway.letta.pages import READ_SECONDS, PageQuery, listed
from mnemesh_gateway.letta.schemas.providers import (
    CheckProvider,
    CreateProvider,
    ListProviders,
    Provider,
    ProviderResult,
    UpdateProvider,
)

operations = Operations()
_SECONDS: Final = 60.0


@operations.get("/providers/", query=ListProviders, result=list[Provider])
async def list_providers(call: Call[ListProviders, None]) -> list[Provider]:
    """Lists providers, newest first."""
    query = call.query
    page = PageQuery(before=query.before, after=query.after, limit=query.limit, order=query.order)
    request = rpc.ListProvidersRequest(types=[provider_type(query.provider_type)] if query.provider_type else ())
    set_present(request, name=query.name)
    rows = await listed(call.mesh.models.ListProviders, request, "providers", page, default="desc")
    return [provider_from_proto(row) for row in rows]


@operations.post("/providers/", body=CreateProvider, result=Provider)
async def create_provider(call: Call[NoQuery, CreateProvider]) -> Provider:
    """Creates a provider with a key, and reads its models."""
    body = call.body
    provider = pb.Provider(name=body.name, type=provider_type(body.provider_type))
    provider_to_proto(body, provider)
    request = rpc.CreateProviderRequest(
        request_id=call.request_id, provider=provider, credentials=credentials_to_proto(body)
    )
    return provider_from_proto((await call.mesh.models.CreateProvider(request, timeout=_SECONDS)).provider)


@operations.post("/providers/check", body=CheckProvider, result=ProviderResult)
async def check_provider(call: Call[NoQuery, CheckProvider]) -> ProviderResult:
    """Contacts a provider with a key, and stores nothing."""
    body = call.body
    provider = pb.Provider(type=provider_type(body.provider_type))
    provider_to_proto(body, provider)
    request = rpc.CheckProviderRequest(provider=provider, credentials=credentials_to_proto(body))
    await call.mesh.models.CheckProvider(request, timeout=_SECONDS)
    return ProviderResult(message=f"Valid api key for provider_type={body.provider_type}")


@operations.get("/providers/{provider_id}", result=Provider)
async def retrieve_provider(call: Call[NoQuery, None]) -> Provider:
    """Returns a provider."""
    return await _read(call.mesh, call.path["provider_id"])


@operations.patch("/providers/{provider_id}", body=UpdateProvider, result=Provider)
async def modify_provider(call: Call[NoQuery, UpdateProvider]) -> Provider:
    """Updates the address or the keys of a provider."""
    body, provider = call.body, pb.Provider(id=call.path["provider_id"])
    request = rpc.UpdateProviderRequest(request_id=call.request_id)
    request.update_mask.paths.extend(provider_to_proto(body, provider))
    request.provider.CopyFrom(provider)
    credentials = credentials_to_proto(body)
    if credentials.ListFields():
        request.credentials.CopyFrom(credentials)
    if not request.update_mask.paths and not request.HasField("credentials"):
        return await _read(call.mesh, provider.id)
    return provider_from_proto((await call.mesh.models.UpdateProvider(request, timeout=_SECONDS)).provider)


@operations.patch("/providers/{provider_id}/refresh", result=Provider)
async def refresh_provider_models(call: Call[NoQuery, None]) -> Provider:
    """Reads the models of a provider again."""
    request = rpc.RefreshProviderRequest(request_id=call.request_id, provider_id=call.path["provider_id"])
    return provider_from_proto((await call.mesh.models.RefreshProvider(request, timeout=_SECONDS)).provider)


@operations.post("/providers/{provider_id}/check", result=ProviderResult)
async def check_existing_provider(call: Call[NoQuery, None]) -> ProviderResult:
    """Contacts a provider with its key."""
    provider = await _read(call.mesh, call.path["provider_id"])
    await call.mesh.models.CheckProvider(rpc.CheckProviderRequest(provider_id=provider.id), timeout=_SECONDS)
    return ProviderResult(message=f"Valid api key for provider_type={provider.provider_type}")


@operations.delete("/providers/{provider_id}", result=ProviderResult)
async def delete_provider(call: Call[NoQuery, None]) -> ProviderResult:
    """Deletes a provider with its key. Agents keep the handles of its models."""
    provider = await _read(call.mesh, call.path["provider_id"])
    request = rpc.DeleteProviderRequest(request_id=call.request_id, provider_id=provider.id)
    await call.mesh.models.DeleteProvider(request, timeout=_SECONDS)
    return ProviderResult(message=f"Provider id={provider.id} successfully deleted")


async def _read(mesh: Mesh, provider_id: str) -> Provider:
    request = rpc.GetProviderRequest(provider_id=provider_id)
    return provider_from_proto((await mesh.models.GetProvider(request, timeout=READ_SECONDS)).provider)
