"""Models and embedding models."""

from __future__ import annotations

from typing import Any

import msgspec
from mnemesh.agents.v1 import agents_pb2
from mnemesh.agents.v1 import models_service_pb2 as rpc

from mnemesh_gateway.letta.convert.models import embedding_config, llm_config
from mnemesh_gateway.letta.operations import Call, NoQuery, Operations
from mnemesh_gateway.letta.pages import responses

operations = Operations()


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
