"""Models and embedders with their settings, compactions and response formats."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec
from mnemesh.agents.v1 import agents_pb2 as pb
from mnemesh.agents.v1 import models_pb2
from mnemesh.agents.v1 import models_service_pb2 as rpc
from mnemesh_kit.errors import MnemeshError, NotFound

from mnemesh_gateway.letta.errors import invalid_field
from mnemesh_gateway.letta.mesh import READ_SECONDS, Mesh, responses
from mnemesh_gateway.letta.values import json_from_text, json_to_text, present, set_present


class LLMConfig(msgspec.Struct, kw_only=True):
    """A model with the settings in effect."""

    model: str
    model_endpoint_type: str
    context_window: int
    display_name: str | None = None
    model_endpoint: str | None = None
    provider_name: str | None = None
    provider_category: str | None = None
    model_wrapper: str | None = None
    put_inner_thoughts_in_kwargs: bool | None = None
    handle: str | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    enable_reasoner: bool | None = None
    reasoning_effort: str | None = None
    max_reasoning_tokens: int | None = None
    parallel_tool_calls: bool | None = None
    response_format: dict[str, Any] | None = None
    strict: bool | None = None


class EmbeddingConfig(msgspec.Struct, kw_only=True):
    """An embedder."""

    embedding_endpoint_type: str
    embedding_model: str
    embedding_dim: int
    embedding_endpoint: str | None = None
    embedding_chunk_size: int | None = 300
    handle: str | None = None
    batch_size: int = 32


class GivenLLMConfig(msgspec.Struct, kw_only=True):
    """A model as older clients configure it. The handle is used, or else the names of provider and model."""

    model: str
    model_endpoint_type: str = ""
    context_window: int | None = None
    provider_name: str | None = None
    handle: str | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    enable_reasoner: bool | None = None
    reasoning_effort: str | None = None
    max_reasoning_tokens: int | None = None
    parallel_tool_calls: bool | None = None
    put_inner_thoughts_in_kwargs: bool | None = None
    strict: bool | None = None


class GivenEmbeddingConfig(msgspec.Struct, kw_only=True):
    """An embedder as older clients configure it."""

    embedding_model: str
    embedding_endpoint_type: str = ""
    handle: str | None = None


class CompactionSettings(msgspec.Struct, kw_only=True):
    """When and how a conversation is compacted."""

    model: str | None = None
    model_settings: dict[str, Any] | None = None
    prompt: str | None = None
    prompt_acknowledgement: bool | None = None
    clip_chars: int | None = None
    mode: str | None = None
    sliding_window_percentage: float | None = None


class ModelChoice(msgspec.Struct, kw_only=True):
    """The fields of a body that choose the model, its settings and the embedder."""

    model: str | None = None
    model_settings: dict[str, Any] | None = None
    llm_config: GivenLLMConfig | None = None
    context_window_limit: int | None = None
    max_tokens: int | None = None
    max_reasoning_tokens: int | None = None
    enable_reasoner: bool | None = None
    parallel_tool_calls: bool | None = None
    embedding: str | None = None
    embedding_config: GivenEmbeddingConfig | None = None
    response_format: dict[str, Any] | None = None
    compaction_settings: CompactionSettings | None = None


UNSET_MODELS: Final = frozenset({"letta/letta-free"})
"""Handles of Letta's own models, which stand for the defaults here."""


_ENDPOINT_TYPES: Final = {"openai_compatible": "openai", "rehearsal": "openai", "mnemesh": "openai", "": "openai"}


_CATEGORIES: Final = {models_pb2.PROVIDER_CATEGORY_BASE: "base", models_pb2.PROVIDER_CATEGORY_BYOK: "byok"}


_PLAIN: Final = {"temperature", "max_output_tokens", "parallel_tool_calls", "top_p"}


_UNDERSTOOD: Final = _PLAIN | {"provider_type", "reasoning", "strict", "response_format", "thinking", "effort"}


_MODES: Final = {
    "sliding_window": pb.COMPACTION_MODE_SLIDING_WINDOW,
    "all": pb.COMPACTION_MODE_ALL,
    "self_compact_sliding_window": pb.COMPACTION_MODE_SELF_COMPACT_SLIDING_WINDOW,
    "self_compact_all": pb.COMPACTION_MODE_SELF_COMPACT_ALL,
    "episodic": pb.COMPACTION_MODE_EPISODIC,
}


async def find_model(mesh: Mesh, handle: str) -> models_pb2.Model:
    """Returns a model of the caller's; one with its names only if no provider has it now."""

    async def read() -> models_pb2.Model:
        try:
            return (await mesh.models.GetModel(rpc.GetModelRequest(handle=handle), timeout=READ_SECONDS)).model
        except MnemeshError as error:
            if not isinstance(error, NotFound) and error.reason != "MODEL_UNKNOWN":
                raise
            provider, _, name = handle.partition("/")
            return models_pb2.Model(handle=handle, provider=provider, provider_model=name or handle)

    return await mesh.cached(f"model:{handle}", read)


async def find_embedder(mesh: Mesh, handle: str | None) -> models_pb2.EmbeddingModel | None:
    """Returns an embedder by its handle, or the default one for None; None if there is none."""

    async def read() -> list[models_pb2.EmbeddingModel]:
        pages = responses(mesh.models.ListEmbeddingModels, rpc.ListEmbeddingModelsRequest())
        return [model async for page in pages for model in page.models]

    models = await mesh.cached("embedders", read)
    if handle is None:
        return next((model for model in models if model.is_default), None)
    return next((model for model in models if model.handle == handle), None)


def llm_config(model: models_pb2.Model, settings: pb.ModelSettings, context_window: int = 0) -> LLMConfig:
    """Returns the configuration of a model with the settings in effect."""
    return LLMConfig(
        model=model.provider_model,
        display_name=model.display_name or None,
        model_endpoint_type=_ENDPOINT_TYPES.get(model.provider_type, model.provider_type),
        model_endpoint=present(model, "endpoint"),
        provider_name=model.provider or None,
        provider_category=_CATEGORIES.get(model.provider_category, "base"),
        context_window=settings.context_window or context_window or model.context_window,
        handle=model.handle,
        put_inner_thoughts_in_kwargs=present(settings, "inner_thoughts_in_kwargs") or False,
        temperature=present(settings, "temperature"),
        max_tokens=present(settings, "max_output_tokens"),
        enable_reasoner=present(settings, "enable_reasoner"),
        reasoning_effort=present(settings, "reasoning_effort"),
        max_reasoning_tokens=present(settings, "max_reasoning_tokens") or 0,
        parallel_tool_calls=present(settings, "parallel_tool_calls"),
        strict=present(settings, "strict_tool_schemas") or False,
    )


def embedding_config(model: models_pb2.EmbeddingModel | None, handle: str = "") -> EmbeddingConfig:
    """Returns the configuration of an embedder; one with its names only if no provider has it now."""
    if model is None:
        name = handle.partition("/")[2] or handle
        return EmbeddingConfig(embedding_endpoint_type="openai", embedding_model=name, embedding_dim=0, handle=handle)
    return EmbeddingConfig(
        embedding_endpoint_type=_ENDPOINT_TYPES.get(model.provider_type, model.provider_type),
        embedding_endpoint=present(model, "endpoint"),
        embedding_model=model.provider_model,
        embedding_dim=model.dimension,
        handle=model.handle,
        batch_size=model.batch_size or 32,
    )


def settings_to_json(provider_type: str, settings: pb.ModelSettings) -> dict[str, Any]:
    """Returns the settings of a model in Letta's form."""
    found: dict[str, Any] = {"provider_type": _ENDPOINT_TYPES.get(provider_type, provider_type)}
    for name in ("max_output_tokens", "temperature", "parallel_tool_calls"):
        value = present(settings, name)
        if value is not None:
            found[name] = value
    effort = present(settings, "reasoning_effort")
    if effort is not None:
        found["reasoning"] = {"reasoning_effort": effort}
    if settings.HasField("strict_tool_schemas"):
        found["strict"] = settings.strict_tool_schemas
    if settings.HasField("enable_reasoner") and provider_type == "anthropic":
        thinking: dict[str, Any] = {"type": "enabled" if settings.enable_reasoner else "disabled"}
        if settings.HasField("max_reasoning_tokens"):
            thinking["budget_tokens"] = settings.max_reasoning_tokens
        found["thinking"] = thinking
    return found | (json_from_text(settings.provider_options) or {} if settings.HasField("provider_options") else {})


def settings_to_proto(given: dict[str, Any], message: pb.ModelSettings, *loc: str) -> None:
    """Sets the settings of a model. What only the provider knows is sent to it as it is.

    Raises:
        ValidationFailed: a setting has the wrong type.
    """
    try:
        set_present(message, **{name: given.get(name) for name in _PLAIN})
        reasoning = given.get("reasoning") or {}
        thinking = given.get("thinking") or {}
        set_present(
            message,
            strict_tool_schemas=given.get("strict"),
            reasoning_effort=reasoning.get("reasoning_effort") or given.get("effort"),
            max_reasoning_tokens=thinking.get("budget_tokens"),
        )
        if "type" in thinking:
            message.enable_reasoner = thinking["type"] != "disabled"
        further = {name: value for name, value in given.items() if name not in _UNDERSTOOD and value is not None}
        set_present(message, provider_options=json_to_text(further or None))
    except (TypeError, ValueError, AttributeError) as error:
        raise invalid_field(f"A setting has the wrong type: {error}.", *loc) from error


def choice_to_proto(body: ModelChoice, message: pb.Agent) -> set[str]:
    """Sets the model, its settings and the embedder of an agent; returns the paths that were set."""
    settings = message.model_settings
    handle = body.model or (_handle_of(body.llm_config) if body.llm_config is not None else None)
    if body.llm_config is not None:
        _legacy_settings(body.llm_config, settings)
    if body.model_settings is not None:
        settings_to_proto(body.model_settings, settings, "body", "model_settings")
    set_present(
        settings,
        context_window=body.context_window_limit,
        max_output_tokens=body.max_tokens,
        max_reasoning_tokens=body.max_reasoning_tokens,
        enable_reasoner=body.enable_reasoner,
        parallel_tool_calls=body.parallel_tool_calls,
    )
    embedder = body.embedding or (embedder_of(body.embedding_config) if body.embedding_config is not None else None)
    set_present(message, model=handle, embedder=embedder)
    paths = {name for name, value in (("model", handle), ("embedder", embedder)) if value}
    if settings.ListFields():
        paths.add("model_settings")
    return paths


def _legacy_settings(config: GivenLLMConfig, settings: pb.ModelSettings) -> None:
    set_present(
        settings,
        context_window=config.context_window,
        temperature=config.temperature,
        max_output_tokens=config.max_tokens,
        enable_reasoner=config.enable_reasoner,
        reasoning_effort=config.reasoning_effort,
        max_reasoning_tokens=config.max_reasoning_tokens or None,
        parallel_tool_calls=config.parallel_tool_calls,
        strict_tool_schemas=config.strict,
    )


def _handle_of(config: GivenLLMConfig) -> str:
    """Returns the handle of a model that is configured by names."""
    return config.handle or f"{config.provider_name or config.model_endpoint_type or 'openai'}/{config.model}"


def embedder_of(config: GivenEmbeddingConfig) -> str:
    """Returns the handle of an embedder that is configured by names."""
    return config.handle or f"{config.embedding_endpoint_type or 'openai'}/{config.embedding_model}"


def given_embedder(handle: str | None, config: GivenEmbeddingConfig | None) -> str | None:
    """Returns the handle of the embedder that a request names; None selects the default."""
    found = handle or (embedder_of(config) if config is not None else None)
    return None if found in UNSET_MODELS else found


_MODE_NAMES: Final = {mode: name for name, mode in _MODES.items()}


def format_from_proto(agent: pb.Agent) -> dict[str, Any] | None:
    """Returns the response format of an agent."""
    if not agent.HasField("response_format"):
        return None
    match agent.response_format.WhichOneof("format"):
        case "json_object":
            return {"type": "json_object"}
        case "json_schema":
            given = agent.response_format.json_schema
            schema = {"name": given.name, "schema": json_from_text(given.schema), "strict": present(given, "strict")}
            return {"type": "json_schema", "json_schema": schema}
    return {"type": "text"}


def format_to_proto(given: dict[str, Any], *loc: str) -> pb.ResponseFormat:
    """Returns a response format.

    Raises:
        ValidationFailed: the type is unknown, or a schema has no object.
    """
    match given.get("type"):
        case "text":
            return pb.ResponseFormat(text=pb.TextFormat())
        case "json_object":
            return pb.ResponseFormat(json_object=pb.JsonObjectFormat())
        case "json_schema":
            schema = given.get("json_schema")
            if not isinstance(schema, dict):
                raise invalid_field("Input should be a valid dictionary", *loc, "json_schema")
            inner = schema.get("schema", schema)
            if not isinstance(inner, dict) or not inner:
                raise invalid_field("Input should have a JSON schema", *loc, "json_schema", "schema")
            # The title of a schema may have any characters, the name of a format may not.
            name = schema.get("name") or re.sub(r"[^A-Za-z0-9_-]", "_", str(inner.get("title", "")))[:64]
            message = pb.JsonSchemaFormat(name=str(name or "answer"), schema=json_to_text(inner) or "{}")
            set_present(message, strict=schema.get("strict"))
            return pb.ResponseFormat(json_schema=message)
    raise invalid_field("Input should be 'text', 'json_schema' or 'json_object'", *loc, "type")


def compaction_from_proto(agent: pb.Agent) -> CompactionSettings | None:
    """Returns the settings of an agent's compactions."""
    if not agent.HasField("compaction_settings"):
        return None
    given = agent.compaction_settings
    provider = given.model.partition("/")[0] if given.HasField("model") else ""
    return CompactionSettings(
        mode=_MODE_NAMES.get(given.mode, "sliding_window"),
        model=present(given, "model"),
        model_settings=settings_to_json(provider, given.model_settings) if given.HasField("model_settings") else None,
        prompt=present(given, "prompt"),
        prompt_acknowledgement=present(given, "prompt_acknowledgement") or False,
        clip_chars=given.clip_chars if given.HasField("clip_chars") else 50_000,
        sliding_window_percentage=(
            given.sliding_window_percentage if given.HasField("sliding_window_percentage") else 0.3
        ),
    )


def compaction_to_proto(given: CompactionSettings, *loc: str) -> pb.CompactionSettings:
    """Returns the settings of compactions.

    Raises:
        ValidationFailed: the mode is unknown.
    """
    if given.mode is not None and given.mode not in _MODES:
        raise invalid_field(f"Input should be one of {', '.join(_MODES)}", *loc, "mode")
    message = pb.CompactionSettings(mode=_MODES[given.mode or "sliding_window"])
    set_present(
        message,
        model=given.model,
        prompt=given.prompt,
        prompt_acknowledgement=given.prompt_acknowledgement,
        clip_chars=given.clip_chars,
        sliding_window_percentage=given.sliding_window_percentage,
    )
    if given.model_settings is not None:
        settings_to_proto(given.model_settings, message.model_settings, *loc, "model_settings")
    return message
