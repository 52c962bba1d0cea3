"""Models and embedders with their settings, compactions and response formats."""

from typing import Any, Final

import msgspec
from mnemesh.agents.v1 import agents_pb2 as pb
from mnemesh.agents.v1 import models_pb2
from mnemesh.agents.v1 import models_service_pb2 as rpc
from mnemesh_kit.errors import MnemeshError, NotFound
from mnemesh_letta.convert.settings import (
    COMPACTION_MODE_NAMES,
    COMPACTION_MODES,
    InvalidSetting,
    api_settings,
    compaction,
    embedder_handle,
    fill_api_settings,
    model_handle,
    response_format,
    tool_rule,
)
from mnemesh_letta.convert.values import fill, present, set_present, shown
from msgspec import structs

from mnemesh_gateway.http.errors import invalid_field
from mnemesh_gateway.letta.mesh import READ_SECONDS, Mesh, list_pages


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
    strict: bool | None = None


class LLMConfig(GivenLLMConfig, kw_only=True):
    """A model with the settings in effect."""

    model_endpoint_type: str
    context_window: int
    display_name: str | None = None
    model_endpoint: str | None = None
    provider_category: str | None = None
    model_wrapper: str | None = None
    put_inner_thoughts_in_kwargs: bool | None = None
    response_format: dict[str, Any] | None = None


class EmbeddingConfig(msgspec.Struct, kw_only=True):
    """An embedder."""

    embedding_endpoint_type: str
    embedding_model: str
    embedding_dim: int
    embedding_endpoint: str | None = None
    embedding_chunk_size: int | None = 300
    handle: str | None = None
    batch_size: int = 32


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
_SETTINGS: Final = (
    "context_window_limit",
    "max_tokens",
    "max_reasoning_tokens",
    "enable_reasoner",
    "parallel_tool_calls",
)
_ENDPOINT_TYPES: Final = {"openai_compatible": "openai", "rehearsal": "openai", "mnemesh": "openai", "": "openai"}
_CATEGORIES: Final = {models_pb2.PROVIDER_CATEGORY_BASE: "base", models_pb2.PROVIDER_CATEGORY_BYOK: "byok"}


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

    return await mesh.read_cached(f"model:{handle}", read)


async def find_embedder(mesh: Mesh, handle: str | None) -> models_pb2.EmbeddingModel | None:
    """Returns an embedder by its handle, or the default one for None; None if there is none."""

    async def read() -> list[models_pb2.EmbeddingModel]:
        pages = list_pages(mesh.models.ListEmbeddingModels, rpc.ListEmbeddingModelsRequest())
        return [model async for page in pages for model in page.models]

    models = await mesh.read_cached("embedders", read)
    if handle is None:
        return next((model for model in models if model.is_default), None)
    return next((model for model in models if model.handle == handle), None)


def llm_config(model: models_pb2.Model, settings: pb.ModelSettings) -> LLMConfig:
    """Returns the configuration of a model with the settings in effect."""
    return shown(
        LLMConfig,
        settings,
        model=model.provider_model,
        display_name=model.display_name or None,
        model_endpoint_type=_ENDPOINT_TYPES.get(model.provider_type, model.provider_type),
        model_endpoint=present(model, "endpoint"),
        provider_name=model.provider or None,
        provider_category=_CATEGORIES.get(model.provider_category, "base"),
        context_window=settings.context_window or model.context_window,
        handle=model.handle,
        put_inner_thoughts_in_kwargs=settings.inner_thoughts_in_kwargs,
        max_reasoning_tokens=settings.max_reasoning_tokens,
        strict=settings.strict_tool_schemas,
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
    return api_settings(_ENDPOINT_TYPES.get(provider_type, provider_type), settings)


def settings_to_proto(given: dict[str, Any], message: pb.ModelSettings, *loc: str) -> None:
    """Sets the settings of a model. What only the provider knows is sent to it as it is.

    Raises:
        ValidationFailed: a setting has the wrong type.
    """
    try:
        fill_api_settings(message, given)
    except (TypeError, ValueError, AttributeError) as error:
        raise invalid_field(f"A setting has the wrong type: {error}.", *loc) from error


def choice_to_proto(body: ModelChoice, message: pb.Agent) -> set[str]:
    """Sets the model, its settings and the embedder of an agent; returns the paths that were set."""
    settings = message.model_settings
    handle = body.model
    if body.llm_config is not None:
        handle = handle or model_handle(structs.asdict(body.llm_config))
        fill(settings, body.llm_config)
        if not settings.max_reasoning_tokens:
            settings.ClearField("max_reasoning_tokens")
    if body.model_settings is not None:
        settings_to_proto(body.model_settings, settings, "body", "model_settings")
    fill(settings, {name: getattr(body, name) for name in _SETTINGS})
    embedder = body.embedding or (embedder_of(body.embedding_config) if body.embedding_config is not None else None)
    set_present(message, model=handle, embedder=embedder)
    paths = {name for name, value in (("model", handle), ("embedder", embedder)) if value}
    if settings.ListFields():
        paths.add("model_settings")
    return paths


def embedder_of(config: GivenEmbeddingConfig) -> str | None:
    """Returns the handle of an embedder that is configured by names."""
    return embedder_handle(structs.asdict(config))


def given_embedder(handle: str | None, config: GivenEmbeddingConfig | None) -> str | None:
    """Returns the handle of the embedder that a request names; None selects the default."""
    found = handle or (embedder_of(config) if config is not None else None)
    return None if found in UNSET_MODELS else found


def format_to_proto(given: dict[str, Any], *loc: str) -> pb.ResponseFormat:
    """Returns a response format.

    Raises:
        ValidationFailed: the type is unknown, or a schema has no object.
    """
    try:
        return response_format(given)
    except InvalidSetting as error:
        raise invalid_field(str(error), *loc, *error.loc) from error


def rule_to_proto(rule: dict[str, Any], index: int) -> pb.ToolRule:
    """Returns a tool rule.

    Raises:
        ValidationFailed: the type is unknown, or a field is missing or has the wrong type.
    """
    loc = ("body", "tool_rules", index)
    if not isinstance(rule.get("tool_name"), str):
        raise invalid_field("Field required", *loc, "tool_name")
    try:
        return tool_rule(rule)
    except KeyError as error:
        raise invalid_field(f"Field required: {error.args[0]}", *loc) from error
    except (TypeError, ValueError, AttributeError) as error:
        raise invalid_field(f"A field has the wrong type or value: {error}", *loc) from error


def compaction_from_proto(agent: pb.Agent) -> CompactionSettings | None:
    """Returns the settings of an agent's compactions."""
    if not agent.HasField("compaction_settings"):
        return None
    given = agent.compaction_settings
    provider = given.model.partition("/")[0] if given.HasField("model") else ""
    return shown(
        CompactionSettings,
        given,
        mode=COMPACTION_MODE_NAMES.get(given.mode, "sliding_window"),
        model_settings=settings_to_json(provider, given.model_settings) if given.HasField("model_settings") else None,
        prompt_acknowledgement=given.prompt_acknowledgement,
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
    if given.mode is not None and given.mode not in COMPACTION_MODES:
        raise invalid_field(f"Input should be one of {', '.join(COMPACTION_MODES)}", *loc, "mode")
    message = compaction(given.mode, given)
    if given.model_settings is not None:
        settings_to_proto(given.model_settings, message.model_settings, *loc, "model_settings")
    return message
