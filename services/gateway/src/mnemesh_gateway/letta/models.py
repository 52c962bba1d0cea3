"""Models, providers and text generation."""

from datetime import datetime
from typing import Any, Final

import msgspec
from mnemesh.agents.v1 import agents_pb2
from mnemesh.agents.v1 import agents_service_pb2 as agents_rpc
from mnemesh.agents.v1 import models_pb2 as models_pb
from mnemesh.agents.v1 import models_service_pb2 as rpc
from mnemesh.agents.v1.agents_pb2 import JsonSchemaFormat
from mnemesh_letta.convert.values import json_text, set_present, shown

from mnemesh_gateway.http.errors import invalid_field
from mnemesh_gateway.letta.mesh import Mesh, PageQuery, list_page, list_pages
from mnemesh_gateway.letta.model_settings import embedding_config, llm_config
from mnemesh_gateway.letta.operations import Call, NoQuery, Operations, read
from mnemesh_gateway.letta.turns import Usage, usage_from_proto


class Provider(msgspec.Struct, kw_only=True):
    """A provider. Its keys are never shown."""

    id: str
    name: str
    provider_type: str
    provider_category: str
    api_key: str | None = None
    base_url: str | None = None
    access_key: str | None = None
    region: str | None = None
    api_version: str | None = None
    organization_id: str | None = None
    updated_at: datetime | None = None
    last_synced: datetime | None = None


class ProviderFields(msgspec.Struct, kw_only=True):
    """The address and the keys of a provider. An empty text is the same as none."""

    api_key: str | None = None
    access_key: str | None = None
    region: str | None = None
    api_version: str | None = None
    base_url: str | None = None


class CreateProvider(ProviderFields, kw_only=True):
    """A provider to create."""

    name: str
    provider_type: str
    api_key: str


class UpdateProvider(ProviderFields, kw_only=True):
    """Changes of a provider. A field that is null or absent stays as it is."""


class CheckProvider(ProviderFields, kw_only=True):
    """A provider to contact; nothing is stored."""

    provider_type: str
    api_key: str


class ListProviders(PageQuery, kw_only=True):
    """The query of a list of providers."""

    name: str | None = None
    provider_type: str | None = None


class ProviderResult(msgspec.Struct, kw_only=True):
    """The result of a check or a deletion."""

    message: str


class GenerateText(msgspec.Struct, kw_only=True):
    """A prompt for a model, which is answered without the agent's memory, messages and tools."""

    prompt: str
    system_prompt: str | None = None
    override_model: str | None = None
    response_schema: dict[str, Any] | None = None


class GeneratedText(msgspec.Struct, kw_only=True):
    """The answer of a model; JSON text if a schema was given."""

    content: str
    model: str
    usage: Usage


_TYPES: Final = {"lmstudio_openai": "lmstudio", "hugging-face": "openai_compatible"} | dict.fromkeys(
    ("baseten", "cerebras", "fireworks", "minimax", "openrouter", "sglang", "zai", "zai_coding"), "openai_compatible"
)
"""Letta's names of types that differ. Those that speak OpenAI's format need a base_url here."""
_NAMES: Final = {"lmstudio": "lmstudio_openai", "openai_compatible": "openai", "mnemesh": "letta"}
_PLAIN_FIELDS: Final = ("base_url", "api_version", "region")


def provider_from_proto(provider: models_pb.Provider) -> Provider:
    category = "base" if provider.category == models_pb.PROVIDER_CATEGORY_BASE else "byok"
    return shown(Provider, provider, provider_type=_NAMES.get(provider.type, provider.type), provider_category=category)


def provider_type(name: str) -> str:
    """Returns the type of a provider. One that the mesh does not know stays as it is, and the mesh refuses it."""
    return _TYPES.get(name, name)


def provider_to_proto(body: ProviderFields, message: models_pb.Provider) -> list[str]:
    """Sets the address that a body has, and returns the paths."""
    given = {name: getattr(body, name) or None for name in _PLAIN_FIELDS}
    set_present(message, **given)
    return [name for name, value in given.items() if value is not None]


def credentials_to_proto(body: ProviderFields) -> models_pb.ProviderCredentials:
    """Returns the keys that a body has."""
    found = models_pb.ProviderCredentials()
    set_present(found, api_key=body.api_key or None, access_key=body.access_key or None)
    return found


operations = Operations()
_SECONDS: Final = 60.0
_ANSWER_SECONDS: Final = 300.0


class ListModels(msgspec.Struct, kw_only=True):
    """The query of a list of models."""

    provider_name: str | None = None
    provider_type: str | None = None
    provider_category: list[str] | None = None


@operations.get("/models/")
async def list_models(call: Call[ListModels, None]) -> list[dict[str, Any]]:
    """Lists the models that agents can use."""
    query = call.query
    request = rpc.ListModelsRequest()
    request.providers.extend([query.provider_name] if query.provider_name else ())
    request.provider_types.extend([query.provider_type] if query.provider_type else ())
    found = [model async for page in list_pages(call.mesh.models.ListModels, request) for model in page.models]
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


@operations.get("/models/embedding")
async def list_embedding_models(call: Call[NoQuery, None]) -> list[dict[str, Any]]:
    """Lists the embedders that archives can use."""
    request = rpc.ListEmbeddingModelsRequest()
    pages = list_pages(call.mesh.models.ListEmbeddingModels, request)
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


@operations.get("/providers/")
async def list_providers(call: Call[ListProviders, None]) -> list[Provider]:
    """Lists providers, newest first."""
    query = call.query
    request = rpc.ListProvidersRequest(types=[provider_type(query.provider_type)] if query.provider_type else ())
    set_present(request, name=query.name)
    rows = await list_page(call.mesh.models.ListProviders, request, "providers", query, default="desc")
    return [provider_from_proto(row) for row in rows]


@operations.post("/providers/")
async def create_provider(call: Call[NoQuery, CreateProvider]) -> Provider:
    """Creates a provider with a key, and reads its models."""
    body = call.body
    provider = models_pb.Provider(name=body.name, type=provider_type(body.provider_type))
    provider_to_proto(body, provider)
    request = rpc.CreateProviderRequest(provider=provider, credentials=credentials_to_proto(body))
    return provider_from_proto((await call.write(call.mesh.models.CreateProvider, request)).provider)


@operations.post("/providers/check")
async def check_provider(call: Call[NoQuery, CheckProvider]) -> ProviderResult:
    """Contacts a provider with a key, and stores nothing."""
    body = call.body
    provider = models_pb.Provider(type=provider_type(body.provider_type))
    provider_to_proto(body, provider)
    request = rpc.CheckProviderRequest(provider=provider, credentials=credentials_to_proto(body))
    await call.mesh.models.CheckProvider(request, timeout=_SECONDS)
    return ProviderResult(message=f"Valid api key for provider_type={body.provider_type}")


@operations.get("/providers/{provider_id}")
async def retrieve_provider(call: Call[NoQuery, None]) -> Provider:
    """Returns a provider."""
    return await _read(call.mesh, call.path["provider_id"])


@operations.patch("/providers/{provider_id}")
async def modify_provider(call: Call[NoQuery, UpdateProvider]) -> Provider:
    """Updates the address or the keys of a provider."""
    body, provider = call.body, models_pb.Provider(id=call.path["provider_id"])
    request = rpc.UpdateProviderRequest()
    request.update_mask.paths.extend(provider_to_proto(body, provider))
    request.provider.CopyFrom(provider)
    credentials = credentials_to_proto(body)
    if credentials.ListFields():
        request.credentials.CopyFrom(credentials)
    if not request.update_mask.paths and not request.HasField("credentials"):
        return await _read(call.mesh, provider.id)
    return provider_from_proto((await call.write(call.mesh.models.UpdateProvider, request)).provider)


@operations.patch("/providers/{provider_id}/refresh")
async def refresh_provider_models(call: Call[NoQuery, None]) -> Provider:
    """Reads the models of a provider again."""
    request = rpc.RefreshProviderRequest(provider_id=call.path["provider_id"])
    return provider_from_proto((await call.write(call.mesh.models.RefreshProvider, request)).provider)


@operations.post("/providers/{provider_id}/check")
async def check_existing_provider(call: Call[NoQuery, None]) -> ProviderResult:
    """Contacts a provider with its key."""
    provider = await _read(call.mesh, call.path["provider_id"])
    await call.mesh.models.CheckProvider(rpc.CheckProviderRequest(provider_id=provider.id), timeout=_SECONDS)
    return ProviderResult(message=f"Valid api key for provider_type={provider.provider_type}")


@operations.delete("/providers/{provider_id}")
async def delete_provider(call: Call[NoQuery, None]) -> ProviderResult:
    """Deletes a provider with its key. Agents keep the handles of its models."""
    provider = await _read(call.mesh, call.path["provider_id"])
    await call.write(call.mesh.models.DeleteProvider, rpc.DeleteProviderRequest(provider_id=provider.id))
    return ProviderResult(message=f"Provider id={provider.id} successfully deleted")


async def _read(mesh: Mesh, provider_id: str) -> Provider:
    request = rpc.GetProviderRequest(provider_id=provider_id)
    return provider_from_proto((await read(mesh.models.GetProvider, request)).provider)


@operations.post("/agents/{agent_id}/generate")
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
            JsonSchemaFormat(name="structured_output", schema=json_text(schema) or "{}")
        )
    response = await call.mesh.agents.GenerateText(request, timeout=_ANSWER_SECONDS)
    _, _, model = response.model.partition("/")
    return GeneratedText(content=response.text, model=model, usage=usage_from_proto(response.usage, 0))
