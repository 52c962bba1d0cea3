"""The operations of models, providers and text generation."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from mnemesh.agents.v1 import agents_pb2
from mnemesh.agents.v1 import agents_service_pb2 as agents_rpc
from mnemesh.agents.v1 import models_pb2 as pb
from mnemesh.agents.v1 import models_service_pb2 as rpc
from mnemesh.agents.v1.agents_pb2 import JsonSchemaFormat

from mnemesh_gateway.letta.convert.events import usage_from_proto
from mnemesh_gateway.letta.convert.models import (
    credentials_to_proto,
    embedding_config,
    llm_config,
    provider_from_proto,
    provider_to_proto,
    provider_type,
)
from mnemesh_gateway.letta.convert.values import json_to_text, set_present
from mnemesh_gateway.letta.errors import invalid_field
from mnemesh_gateway.letta.mesh import Mesh
from mnemesh_gateway.letta.operations import Call, NoQuery, Operations
from mnemesh_gateway.letta.pages import READ_SECONDS, PageQuery, listed, responses
from mnemesh_gateway.letta.schemas.messages import GeneratedText, GenerateText
from mnemesh_gateway.letta.schemas.models import (
    CheckProvider,
    CreateProvider,
    ListProviders,
    Provider,
    ProviderResult,
    UpdateProvider,
)

operations = Operations()

_SECONDS: Final = 60.0

_ANSWER_SECONDS: Final = 300.0


class ListModels(msgspec.Struct, kw_only=True):
    """The query of a list of models."""

    provider_name: str | None = None
    provider_type: str | None = None
    provider_category: list[str] | None = None


@operations.get("/models/", query=ListModels, result=list[dict[str, Any]])
async def list_models(call: Call[ListModels, None]) -> list[dict[str, Any]]:
    """Lists the models that agents can use."""
    query = call.query
    request = rpc.ListModelsRequest()
    request.providers.extend([query.provider_name] if query.provider_name else ())
    request.provider_types.extend([query.provider_type] if query.provider_type else ())
    found = [model async for page in responses(call.mesh.models.ListModels, request) for model in page.models]
    rows = []
    for model in found:
        config = msgspec.to_builtins(llm_config(model, agents_pb2.ModelSettings()))
        if query.provider_category and config["provider_category"] not in query.provider_category:
            continue
        more = {
            "model_type": "llm",
            "name": model.provider_model,
            "max_context_window": model.context_window,
            "provider_type": config["model_endpoint_type"],
        }
        rows.append(config | more)
    return rows


@operations.get("/models/embedding", result=list[dict[str, Any]])
async def list_embedding_models(call: Call[NoQuery, None]) -> list[dict[str, Any]]:
    """Lists the embedders that archives can use."""
    request = rpc.ListEmbeddingModelsRequest()
    pages = responses(call.mesh.models.ListEmbeddingModels, request)
    found = [model async for page in pages for model in page.models]
    rows = []
    for model in found:
        config = msgspec.to_builtins(embedding_config(model))
        more = {
            "model_type": "embedding",
            "name": model.provider_model,
            "display_name": model.display_name or model.provider_model,
            "provider_name": model.provider,
            "provider_type": config["embedding_endpoint_type"],
        }
        rows.append(config | more)
    return rows


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


@operations.post("/agents/{agent_id}/generate", body=GenerateText, result=GeneratedText)
async def generate_completion(call: Call[NoQuery, GenerateText]) -> GeneratedText:
    """Returns the answer of a model to one prompt. Nothing is stored."""
    body = call.body
    if not body.prompt.strip():
        raise invalid_field("prompt must not be blank", "body", "prompt")
    request = agents_rpc.GenerateTextRequest(agent_id=call.path["agent_id"], prompt=body.prompt)
    set_present(request, system=body.system_prompt, model=body.override_model)
    if body.response_schema is not None:
        schema = {"type": "object"} | body.response_schema
        request.response_format.json_schema.CopyFrom(
            JsonSchemaFormat(name="structured_output", schema=json_to_text(schema) or "{}")
        )
    response = await call.mesh.agents.GenerateText(request, timeout=_ANSWER_SECONDS)
    _, _, model = response.model.partition("/")
    return GeneratedText(content=response.text, model=model, usage=usage_from_proto(response.usage, 0))
