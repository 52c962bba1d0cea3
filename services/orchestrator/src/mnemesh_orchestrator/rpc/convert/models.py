"""Models and embedders between the domain and the contract."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any, Final

from mnemesh.agents.v1 import agents_pb2
from mnemesh.agents.v1 import models_pb2 as pb
from mnemesh_kit.errors import InvalidArgument

from mnemesh_orchestrator.llm.dialects import Api, dialect_of
from mnemesh_orchestrator.llm.openai_chat.render import reasons
from mnemesh_orchestrator.model.embedding import EmbeddingModel
from mnemesh_orchestrator.model.models import FigureSource, ModelInfo, ModelPrice, ModelSettings
from mnemesh_orchestrator.model.providers import ModelOverride
from mnemesh_orchestrator.rpc.convert.settings import (
    plain_values,
    present,
    require_json_object,
    require_plain,
    settings_from_proto,
)

APIS: Final = {
    "openai_chat": pb.MODEL_API_OPENAI_CHAT,
    "openai_responses": pb.MODEL_API_OPENAI_RESPONSES,
    "anthropic": pb.MODEL_API_ANTHROPIC_MESSAGES,
    "rehearsal": pb.MODEL_API_REHEARSAL,
}
_SOURCES: Final = {
    FigureSource.PROVIDER: pb.FIGURE_SOURCE_PROVIDER,
    FigureSource.TABLE: pb.FIGURE_SOURCE_TABLE,
    FigureSource.OVERRIDE: pb.FIGURE_SOURCE_OVERRIDE,
    FigureSource.DEFAULT: pb.FIGURE_SOURCE_DEFAULT,
}
_LONGEST_NAME: Final = 200
_CAPABILITIES: Final = "capabilities."
# What has a path of its own, and what an agent says for itself alone.
_NO_DEFAULTS: Final = ("context_window", "fallback_model")


def model_to_proto(info: ModelInfo) -> pb.Model:
    """A model as the organization sees it."""
    category = pb.PROVIDER_CATEGORY_BASE if info.provider_id is None else pb.PROVIDER_CATEGORY_BYOK
    model = pb.Model(
        handle=info.handle,
        provider=info.provider,
        provider_model=info.provider_model,
        display_name=info.display_name or info.provider_model,
        api=APIS[info.api],
        provider_type=info.provider_type or info.provider,
        provider_category=category,
        provider_id=info.provider_id,
        endpoint=info.endpoint,
        context_window=info.context_window,
        context_window_source=_SOURCES[info.window_source],
        max_output_tokens=info.max_output_tokens or 0,
        max_output_tokens_source=_SOURCES[info.output_source],
        capabilities=_capabilities(info),
        hidden=info.hidden,
        default_settings=json.dumps(plain_values(info.defaults)),
    )
    if info.price is not None:
        model.price.CopyFrom(pb.ModelPrice(**asdict(info.price)))
    if info.last_seen_at is not None:
        model.last_seen_time.FromDatetime(info.last_seen_at)
    return model


def _capabilities(info: ModelInfo) -> pb.ModelCapabilities:
    """What the vendor's API can be asked for; whether a model is any good at it, no API tells, but a client may."""
    dialect = dialect_of(info)
    is_remote = info.api != Api.REHEARSAL
    known = {
        "streaming": True,
        "tool_calling": True,
        "parallel_tool_calls": is_remote and dialect.parallel_flag,
        "forced_tool_choice": is_remote,
        "strict_tool_schemas": is_remote and dialect.strict_tools,
        "structured_output": is_remote and dialect.json_schema,
        "temperature": is_remote and not reasons(info),
    }
    return pb.ModelCapabilities(**{**known, **info.capabilities})


def embedder_to_proto(model: EmbeddingModel) -> pb.EmbeddingModel:
    """An embedder."""
    provider, _, name = model.handle.partition("/")
    return pb.EmbeddingModel(
        handle=model.handle,
        provider=provider,
        provider_model=name,
        display_name=name,
        provider_type=model.provider_type,
        provider_category=pb.PROVIDER_CATEGORY_BASE,
        provider_id=model.provider_id,
        endpoint=model.endpoint,
        dimension=model.dimension,
        batch_size=model.batch_size,
        offline=model.is_offline,
        is_default=model.is_default,
    )


def override_from_proto(model: pb.Model, paths: list[str]) -> Callable[[ModelOverride], ModelOverride]:
    """The change that an update of these paths is.

    Raises:
        InvalidArgument: naming the field, or the path that cannot be changed.
    """
    if not paths:
        raise InvalidArgument("update_mask names no field.", field="update_mask")
    changes: dict[str, Any] = {}
    capabilities: dict[str, bool] = {}
    known = {_CAPABILITIES + field.name for field in pb.ModelCapabilities.DESCRIPTOR.fields}
    for path in paths:
        if path in known:
            name = path.removeprefix(_CAPABILITIES)
            capabilities[name] = getattr(model.capabilities, name)
        elif path in _READERS:
            changes[path] = _READERS[path](model)
        else:
            raise InvalidArgument(f"update_mask: {path} cannot be changed.", field="update_mask")

    def change(override: ModelOverride) -> ModelOverride:
        return replace(override, **changes, capabilities={**override.capabilities, **capabilities})

    return change


def _tokens(name: str) -> Callable[[pb.Model], int | None]:
    def read(model: pb.Model) -> int | None:
        tokens: int = getattr(model, name)
        if tokens < 0:
            raise InvalidArgument(f"model.{name} must not be negative.", field=f"model.{name}")
        return tokens or None

    return read


def _display_name(model: pb.Model) -> str | None:
    name = require_plain(model.display_name, "model.display_name")
    if len(name) > _LONGEST_NAME:
        raise InvalidArgument(
            f"model.display_name must be at most {_LONGEST_NAME} characters.", field="model.display_name"
        )
    return name or None


def _price(model: pb.Model) -> ModelPrice | None:
    if not model.HasField("price"):
        return None
    price = ModelPrice(**present(model.price, "input", "cached_input", "cache_write", "output"))
    for name, amount in asdict(price).items():
        if amount is not None and amount < 0:
            raise InvalidArgument(f"model.price.{name} must not be negative.", field=f"model.price.{name}")
    return price


def _default_settings(model: pb.Model) -> ModelSettings | None:
    if not model.default_settings:
        return None
    field = "model.default_settings"
    given = json.loads(require_json_object(model.default_settings, field))
    for name in _NO_DEFAULTS:
        if name in given:
            raise InvalidArgument(f"{field}: {name} cannot be set there.", field=field)
    try:
        settings = agents_pb2.ModelSettings(**given)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"{field} holds what is no setting, or no value of it: {error}.", field=field) from error
    return settings_from_proto(settings, field)


_READERS: Final[Mapping[str, Callable[[pb.Model], Any]]] = {
    "display_name": _display_name,
    "context_window": _tokens("context_window"),
    "max_output_tokens": _tokens("max_output_tokens"),
    "price": _price,
    "hidden": lambda model: model.hidden or None,
    "default_settings": _default_settings,
}
