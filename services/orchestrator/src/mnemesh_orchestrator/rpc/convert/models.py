"""Models, their overrides, embedding models and providers."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from mnemesh.agents.v1 import agents_pb2
from mnemesh.agents.v1 import models_pb2 as pb
from mnemesh.agents.v1 import models_service_pb2 as rpc
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.ids import require_id
from mnemesh_kit.text import require_json_object
from mnemesh_kit.time import optional_timestamp_to_proto
from mnemesh_types.agents import ModelPrice, ModelSettings

from mnemesh_orchestrator.model.models import (
    Credentials,
    EmbeddingModel,
    FigureSource,
    ModelFilter,
    ModelInfo,
    ProviderCategory,
    ProviderDraft,
    ProviderFilter,
    ProviderOrder,
    ProviderView,
)
from mnemesh_orchestrator.rpc.convert.fields import enum_from_proto, optional_field, plain_fields, present_fields

API_TO_PROTO: Final = {
    "openai_chat": pb.MODEL_API_OPENAI_CHAT,
    "openai_responses": pb.MODEL_API_OPENAI_RESPONSES,
    "anthropic": pb.MODEL_API_ANTHROPIC_MESSAGES,
    "rehearsal": pb.MODEL_API_REHEARSAL,
}
_SOURCE_TO_PROTO: Final = {
    FigureSource.PROVIDER: pb.FIGURE_SOURCE_PROVIDER,
    FigureSource.TABLE: pb.FIGURE_SOURCE_TABLE,
    FigureSource.OVERRIDE: pb.FIGURE_SOURCE_OVERRIDE,
    FigureSource.DEFAULT: pb.FIGURE_SOURCE_DEFAULT,
}
CATEGORY_FROM_PROTO: Final = {
    pb.PROVIDER_CATEGORY_BASE: ProviderCategory.BASE,
    pb.PROVIDER_CATEGORY_BYOK: ProviderCategory.BYOK,
}
_CAPABILITIES: Final = "capabilities."

R = TypeVar("R", rpc.CreateProviderRequest, rpc.UpdateProviderRequest)
_ORDER_FROM_PROTO: Final = {
    rpc.PROVIDER_ORDER_BY_UNSPECIFIED: ProviderOrder.CREATED_AT,
    rpc.PROVIDER_ORDER_BY_CREATE_TIME: ProviderOrder.CREATED_AT,
    rpc.PROVIDER_ORDER_BY_UPDATE_TIME: ProviderOrder.UPDATED_AT,
    rpc.PROVIDER_ORDER_BY_NAME: ProviderOrder.NAME,
}


def model_to_proto(info: ModelInfo) -> pb.Model:
    """Returns the message of a model as the organization sees it. The model must have its capabilities."""
    category = pb.PROVIDER_CATEGORY_BASE if info.provider_id is None else pb.PROVIDER_CATEGORY_BYOK
    return pb.Model(
        handle=info.handle,
        provider=info.provider,
        provider_model=info.provider_model,
        display_name=info.display_name or info.provider_model,
        api=API_TO_PROTO[info.api],
        provider_type=info.provider_type or info.provider,
        provider_category=category,
        provider_id=info.provider_id,
        endpoint=info.endpoint,
        context_window=info.context_window,
        context_window_source=_SOURCE_TO_PROTO[info.window_source],
        max_output_tokens=info.max_output_tokens or 0,
        max_output_tokens_source=_SOURCE_TO_PROTO[info.output_source],
        capabilities=pb.ModelCapabilities(**info.capabilities),
        hidden=info.hidden,
        default_settings=json.dumps(plain_fields(info.defaults)),
        price=None if info.price is None else info.price.to_proto(),
        last_seen_time=optional_timestamp_to_proto(info.last_seen_at),
    )


def embedder_to_proto(model: EmbeddingModel) -> pb.EmbeddingModel:
    """Returns the message of an embedding model."""
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


def override_from_proto(model: pb.Model, paths: Sequence[str]) -> tuple[dict[str, Any], dict[str, bool]]:
    """Returns the new values of an override by the field names of `ModelOverride`, and the changed capabilities.

    Raises:
        InvalidArgument: The paths are empty or cannot be updated, or the default settings are not settings. Metadata:
            field.
    """
    if not paths:
        raise InvalidArgument("update_mask must name at least one field.", field="update_mask")
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
            raise InvalidArgument(f"update_mask must not name {path}.", field="update_mask")
    return changes, capabilities


def model_filter_from_proto(request: rpc.ListModelsRequest) -> ModelFilter:
    """Returns the filter of a list of models. Raises InvalidArgument if a category is unknown."""
    categories = (
        enum_from_proto(CATEGORY_FROM_PROTO, number, "provider_categories") for number in request.provider_categories
    )
    return ModelFilter(
        providers=tuple(request.providers),
        provider_types=tuple(request.provider_types),
        categories=tuple(categories),
        hidden=optional_field(request, "hidden"),
        handle_search=optional_field(request, "handle_search"),
    )


def _price(model: pb.Model) -> ModelPrice | None:
    if not model.HasField("price"):
        return None
    return ModelPrice.from_proto(model.price)


def _default_settings(model: pb.Model) -> ModelSettings | None:
    if not model.default_settings:
        return None
    field = "model.default_settings"
    values = json.loads(require_json_object(model.default_settings, field))
    try:
        settings = agents_pb2.ModelSettings(**values)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"{field} must have settings of models only: {error}.", field=field) from error
    return ModelSettings.from_proto(settings, field)


_READERS: Final[Mapping[str, Callable[[pb.Model], Any]]] = {
    "display_name": lambda model: model.display_name or None,
    "context_window": lambda model: model.context_window or None,
    "max_output_tokens": lambda model: model.max_output_tokens or None,
    "price": _price,
    "hidden": lambda model: model.hidden or None,
    "default_settings": _default_settings,
}


_API_FROM_PROTO: Final = {number: name for name, number in API_TO_PROTO.items() if name != "rehearsal"} | {
    pb.MODEL_API_UNSPECIFIED: None
}
_CATEGORY_TO_PROTO: Final = {category: number for number, category in CATEGORY_FROM_PROTO.items()}
_PROVIDER_READERS: Final[Mapping[str, Callable[[pb.Provider], Any]]] = {
    "api": lambda provider: enum_from_proto(_API_FROM_PROTO, provider.api, "provider.api"),
    "base_url": lambda provider: provider.base_url or None,
    "api_version": lambda provider: provider.api_version or None,
    "region": lambda provider: provider.region or None,
    "disabled": lambda provider: provider.disabled,
}
"""The paths of an update mask, and the values that they read. An absent field clears its value."""


def provider_to_proto(view: ProviderView) -> pb.Provider:
    """Returns the message of a provider, without its credentials."""
    draft = view.draft
    return pb.Provider(
        id=view.id,
        name=draft.name,
        type=draft.type,
        category=_CATEGORY_TO_PROTO[view.category],
        api=pb.MODEL_API_UNSPECIFIED if draft.api is None else API_TO_PROTO[draft.api],
        base_url=draft.base_url,
        api_version=draft.api_version,
        region=draft.region,
        disabled=draft.disabled,
        has_api_key=view.has_api_key,
        has_access_key=view.has_access_key,
        has_headers=view.has_headers,
        last_refresh_error=view.refresh_error,
        model_count=view.model_count,
        last_refresh_time=optional_timestamp_to_proto(view.refreshed_at),
        create_time=optional_timestamp_to_proto(view.created_at),
        update_time=optional_timestamp_to_proto(view.updated_at),
    )


def provider_draft_from_proto(provider: pb.Provider, *, default_name: str = "") -> ProviderDraft:
    """Returns the draft of a provider. Raises InvalidArgument if its API is unknown."""
    values = {path: read(provider) for path, read in _PROVIDER_READERS.items()}
    return ProviderDraft(name=provider.name or default_name, type=provider.type, **values)


def provider_update_from_proto(request: rpc.UpdateProviderRequest) -> dict[str, Any]:
    """Returns the new values of a provider by the field names of `ProviderDraft`.

    Raises:
        InvalidArgument: The mask names a field that cannot be updated, or the request changes nothing.
    """
    paths = request.update_mask.paths
    for path in paths:
        if path not in _PROVIDER_READERS:
            raise InvalidArgument(f"update_mask must not name {path}.", field="update_mask")
    if not paths and not request.HasField("credentials"):
        raise InvalidArgument(
            "update_mask must name at least one field, or the request must have credentials.", field="update_mask"
        )
    return {path: _PROVIDER_READERS[path](request.provider) for path in paths}


def credentials_from_proto(message: pb.ProviderCredentials) -> Credentials:
    """Returns the credentials of a request."""
    headers = tuple((header.name, optional_field(header, "value")) for header in message.headers)
    return Credentials(**present_fields(message, "api_key", "access_key"), headers=headers)


def request_without_credentials(request: R, fingerprint: Callable[[str], str]) -> R:
    """Returns a copy of a request with a fingerprint in place of each credential, to compare repeated requests by."""
    copy = type(request)()
    copy.CopyFrom(request)
    for name, value in present_fields(copy.credentials, "api_key", "access_key").items():
        setattr(copy.credentials, name, value and fingerprint(value))
    for header in copy.credentials.headers:
        if header.value:
            header.value = fingerprint(header.value)
    return copy


def provider_id_from_proto(value: str, field: str = "provider_id") -> str:
    """Returns the id of a provider. Raises InvalidArgument if it is malformed."""
    return require_id(value, "provider", field)


def provider_filter_from_proto(request: rpc.ListProvidersRequest) -> ProviderFilter:
    """Returns the filter of a list of providers. Raises InvalidArgument if a category is unknown."""
    categories = (enum_from_proto(CATEGORY_FROM_PROTO, number, "categories") for number in request.categories)
    return ProviderFilter(
        provider_ids=tuple(request.provider_ids),
        name=optional_field(request, "name"),
        types=tuple(request.types),
        categories=tuple(categories),
    )


def provider_order_from_proto(value: rpc.ProviderOrderBy.ValueType) -> ProviderOrder:
    """Returns the sort key of a list. Raises InvalidArgument if it is unknown."""
    return enum_from_proto(_ORDER_FROM_PROTO, value, "order_by")
