"""`mnemesh.agents.v1.ModelService`, with the conversion of its messages."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any, Final, TypeVar

import grpc
from google.protobuf.field_mask_pb2 import FieldMask
from mnemesh.agents.v1 import agents_pb2, models_service_pb2_grpc
from mnemesh.agents.v1 import models_pb2 as pb
from mnemesh.agents.v1 import models_service_pb2 as rpc
from mnemesh_kit.call_context import current_principal
from mnemesh_kit.errors import InvalidArgument, NotFound
from mnemesh_kit.idempotency import request_key
from mnemesh_kit.ids import require_id
from mnemesh_kit.paging import Cursor, Page, PageQuery, bounded, next_page_token, page_of, page_query
from mnemesh_kit.text import require_json_object
from mnemesh_types.agents import ModelSettings
from mnemesh_types.twin import Conversion, enum_from_proto, enum_of, optional_field

from mnemesh_orchestrator.model.models import (
    Credentials,
    EmbedderFilter,
    EmbeddingModel,
    FigureSource,
    ModelFilter,
    ModelInfo,
    ModelOverride,
    ProviderCategory,
    ProviderDraft,
    ProviderFilter,
    ProviderOrder,
    ProviderView,
)
from mnemesh_orchestrator.usecases.providers import ModelService, ProviderService

Context = grpc.aio.ServicerContext[Any, Any]

_API: Final = {
    "openai_chat": pb.MODEL_API_OPENAI_CHAT,
    "openai_responses": pb.MODEL_API_OPENAI_RESPONSES,
    "anthropic": pb.MODEL_API_ANTHROPIC_MESSAGES,
    "rehearsal": pb.MODEL_API_REHEARSAL,
}
_API_FROM_PROTO: Final = {number: name for name, number in _API.items() if name != "rehearsal"} | {
    pb.MODEL_API_UNSPECIFIED: None
}
enum_of(pb.FigureSource, FigureSource)
enum_of(pb.ProviderCategory, ProviderCategory)
enum_of(rpc.ProviderOrderBy, ProviderOrder, "CREATED_AT")
_MODEL: Final = Conversion(
    pb.Model,
    ModelInfo,
    context_window_source="window_source",
    max_output_tokens_source="output_source",
    display_name=None,
    api=None,
    provider_type=None,
    capabilities=None,
)
_OVERRIDE: Final = Conversion(pb.Model, ModelOverride, default_settings=None, capabilities=None)
MODEL_FILTER: Final = Conversion(rpc.ListModelsRequest, ModelFilter, provider_categories="categories")
_EMBEDDER: Final = Conversion(pb.EmbeddingModel, EmbeddingModel, offline="is_offline")
_PROVIDER: Final = Conversion(
    pb.Provider, ProviderView, last_refresh_time="refreshed_at", last_refresh_error="refresh_error"
)
_DRAFT: Final = Conversion(pb.Provider, ProviderDraft, api=None)
PROVIDER_FILTER: Final = Conversion(rpc.ListProvidersRequest, ProviderFilter)
_CAPABILITIES: Final = "capabilities."

R = TypeVar("R", rpc.CreateProviderRequest, rpc.UpdateProviderRequest)


def model_to_proto(info: ModelInfo) -> pb.Model:
    """Returns the message of a model as the organization sees it. The model must have its capabilities."""
    return _MODEL.to_proto(
        info,
        display_name=info.display_name or info.provider_model,
        api=_API[info.api],
        provider_type=info.provider_type or info.provider,
        provider_category=pb.PROVIDER_CATEGORY_BASE if info.provider_id is None else pb.PROVIDER_CATEGORY_BYOK,
        capabilities=pb.ModelCapabilities(**info.capabilities),
        default_settings=json.dumps(
            {name: value for name, value in asdict(info.defaults).items() if value is not None}
        ),
    )


def embedder_to_proto(model: EmbeddingModel) -> pb.EmbeddingModel:
    """Returns the message of an embedding model."""
    provider, _, name = model.handle.partition("/")
    return _EMBEDDER.to_proto(
        model,
        provider=provider,
        provider_model=name,
        display_name=name,
        provider_category=pb.PROVIDER_CATEGORY_BASE,
    )


def override_from_proto(model: pb.Model, paths: Sequence[str]) -> tuple[dict[str, Any], dict[str, bool]]:
    """Returns the new values of an override by the field names of `ModelOverride`, and the changed capabilities."""
    known = {_CAPABILITIES + field.name for field in pb.ModelCapabilities.DESCRIPTOR.fields}
    own = [path for path in paths if path not in known]
    names = [path.removeprefix(_CAPABILITIES) for path in paths if path in known]
    changes = {} if names and not own else _OVERRIDE.changes(model, FieldMask(paths=own), _OVERRIDABLE, "model")
    if "default_settings" in own:
        changes["default_settings"] = _default_settings(model)
    return changes, {name: getattr(model.capabilities, name) for name in names}


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


_OVERRIDABLE: Final = ("display_name", "context_window", "max_output_tokens", "price", "hidden", "default_settings")
_CHANGEABLE: Final = ("api", "base_url", "api_version", "region", "disabled")


def provider_to_proto(view: ProviderView) -> pb.Provider:
    """Returns the message of a provider, without its credentials."""
    draft = view.draft
    return _PROVIDER.to_proto(
        view,
        api=pb.MODEL_API_UNSPECIFIED if draft.api is None else _API[draft.api],
        **{name: getattr(draft, name) for name in ("name", "type", "base_url", "api_version", "region", "disabled")},
    )


def provider_draft_from_proto(provider: pb.Provider, *, default_name: str = "") -> ProviderDraft:
    """Returns the draft of a provider. Raises InvalidArgument if its API is unknown."""
    return ProviderDraft(
        name=provider.name or default_name, type=provider.type, **_changes(provider, FieldMask(paths=_CHANGEABLE))
    )


def _changes(provider: pb.Provider, mask: FieldMask) -> dict[str, Any]:
    """Returns new values by the field names of `ProviderDraft`. An empty text is None."""
    changes = _DRAFT.changes(provider, mask, _CHANGEABLE, "provider")
    if "api" in mask.paths:
        if provider.api not in _API_FROM_PROTO:
            raise InvalidArgument(f"provider.api has the unknown value {provider.api}.", field="provider.api")
        changes["api"] = _API_FROM_PROTO[provider.api]
    return {name: None if value == "" else value for name, value in changes.items()}


def provider_update_from_proto(request: rpc.UpdateProviderRequest) -> dict[str, Any]:
    """Returns the new values of a provider by the field names of `ProviderDraft`.

    Raises:
        InvalidArgument: The mask names a field that cannot be updated, or the request changes nothing.
    """
    if request.update_mask.paths:
        return _changes(request.provider, request.update_mask)
    if not request.HasField("credentials"):
        raise InvalidArgument(
            "update_mask must name at least one field, or the request must have credentials.", field="update_mask"
        )
    return {}


def credentials_from_proto(message: pb.ProviderCredentials) -> Credentials:
    """Returns the credentials of a request."""
    headers = tuple((header.name, optional_field(header, "value")) for header in message.headers)
    return Credentials(optional_field(message, "api_key"), optional_field(message, "access_key"), headers)


def request_without_credentials(request: R, fingerprint: Callable[[str], str]) -> R:
    """Returns a copy of a request with a fingerprint in place of each credential, to compare repeated requests by."""
    copy = type(request)()
    copy.CopyFrom(request)
    for name in ("api_key", "access_key"):
        if value := getattr(copy.credentials, name):
            setattr(copy.credentials, name, fingerprint(value))
    for header in copy.credentials.headers:
        if header.value:
            header.value = fingerprint(header.value)
    return copy


def provider_id_from_proto(value: str, field: str = "provider_id") -> str:
    """Returns the id of a provider. Raises InvalidArgument if it is malformed."""
    return require_id(value, "provider", field)


T = TypeVar("T")
Position = tuple[str, str]
"""The sort key of a row, and its id, which breaks ties."""


def page_in_order(
    items: Sequence[T], visible: Iterable[T], query: PageQuery, position: Callable[[T], Position]
) -> Page[T]:
    """Returns one page.

    Args:
        items: The items of the list, in any order.
        visible: The items that `after_id` and `before_id` can name.
        position: Returns the position of an item in the order.

    Raises:
        NotFound: `after_id` or `before_id` names an item that is not visible.
    """
    positions = {position(item)[1]: position(item) for item in visible}

    def anchor(field: str, id_: str) -> Position:
        if id_ not in positions:
            raise NotFound(f"{field} names no row of this list.", field=field, resource_id=id_)
        return positions[id_]

    bounds = [anchor("after_id", query.after_id)] if query.after_id is not None else []
    if query.cursor is not None:
        bounds.append((str(query.cursor.value), query.cursor.id))
    ordered = sorted(items, key=position, reverse=not query.ascending)
    for bound in bounds:
        ordered = [item for item in ordered if (position(item) > bound if query.ascending else position(item) < bound)]
    if query.before_id is not None:
        end = anchor("before_id", query.before_id)
        ordered = [item for item in ordered if (position(item) < end if query.ascending else position(item) > end)]
    page = tuple(ordered[: query.limit])
    return Page(page, tuple(Cursor(*position(item)) for item in page), len(ordered) > len(page))


class ModelsServicer(models_service_pb2_grpc.ModelServiceServicer):
    """Serves models, embedding models, and the providers that serve them."""

    def __init__(self, models: ModelService, providers: ProviderService) -> None:
        self._models = models
        self._providers = providers

    async def GetModel(self, request: rpc.GetModelRequest, context: Context) -> rpc.GetModelResponse:
        return rpc.GetModelResponse(model=model_to_proto(await self._models.get(current_principal(), request.handle)))

    async def ListModels(self, request: rpc.ListModelsRequest, context: Context) -> rpc.ListModelsResponse:
        query = page_query(request)
        models = await self._models.list(current_principal(), MODEL_FILTER.from_proto(request))
        page = bounded(query, page_of(models, query, lambda model: model.handle).map(model_to_proto))
        return rpc.ListModelsResponse(models=page.items, next_page_token=next_page_token(query, page))

    async def UpdateModel(self, request: rpc.UpdateModelRequest, context: Context) -> rpc.UpdateModelResponse:
        changes, capabilities = override_from_proto(request.model, request.update_mask.paths)
        key = request_key(request, "UpdateModel")
        info = await self._models.update(current_principal(), key, request.model.handle, changes, capabilities)
        return rpc.UpdateModelResponse(model=model_to_proto(info))

    async def ListEmbeddingModels(
        self, request: rpc.ListEmbeddingModelsRequest, context: Context
    ) -> rpc.ListEmbeddingModelsResponse:
        query = page_query(request)
        filter_ = EmbedderFilter(tuple(request.providers), request.handle)
        models = await self._models.embedders(current_principal(), filter_)
        page = bounded(query, page_of(models, query, lambda model: model.handle).map(embedder_to_proto))
        return rpc.ListEmbeddingModelsResponse(models=page.items, next_page_token=next_page_token(query, page))

    async def CreateProvider(self, request: rpc.CreateProviderRequest, context: Context) -> rpc.CreateProviderResponse:
        draft, credentials = provider_draft_from_proto(request.provider), credentials_from_proto(request.credentials)
        key = request_key(request_without_credentials(request, self._providers.fingerprint), "CreateProvider")
        provider = await self._providers.create(current_principal(), key, draft, credentials)
        return rpc.CreateProviderResponse(provider=provider_to_proto(provider))

    async def GetProvider(self, request: rpc.GetProviderRequest, context: Context) -> rpc.GetProviderResponse:
        provider = await self._providers.get(current_principal(), provider_id_from_proto(request.provider_id))
        return rpc.GetProviderResponse(provider=provider_to_proto(provider))

    async def ListProviders(self, request: rpc.ListProvidersRequest, context: Context) -> rpc.ListProvidersResponse:
        order, query = enum_from_proto(ProviderOrder, request.order_by, "order_by"), page_query(request)
        filter_ = PROVIDER_FILTER.from_proto(request)
        visible = await self._providers.list(current_principal(), ProviderFilter())
        selected = await self._providers.list(current_principal(), filter_)
        page = bounded(query, page_in_order(selected, visible, query, order.position).map(provider_to_proto))
        return rpc.ListProvidersResponse(providers=page.items, next_page_token=next_page_token(query, page))

    async def UpdateProvider(self, request: rpc.UpdateProviderRequest, context: Context) -> rpc.UpdateProviderResponse:
        provider_id = provider_id_from_proto(request.provider.id, "provider.id")
        changes, credentials = provider_update_from_proto(request), credentials_from_proto(request.credentials)
        key = request_key(request_without_credentials(request, self._providers.fingerprint), "UpdateProvider")
        provider = await self._providers.update(current_principal(), key, provider_id, changes, credentials)
        return rpc.UpdateProviderResponse(provider=provider_to_proto(provider))

    async def DeleteProvider(self, request: rpc.DeleteProviderRequest, context: Context) -> rpc.DeleteProviderResponse:
        key = request_key(request, "DeleteProvider")
        await self._providers.delete(current_principal(), key, provider_id_from_proto(request.provider_id))
        return rpc.DeleteProviderResponse()

    async def RefreshProvider(
        self, request: rpc.RefreshProviderRequest, context: Context
    ) -> rpc.RefreshProviderResponse:
        key = request_key(request, "RefreshProvider")
        provider_id = provider_id_from_proto(request.provider_id)
        refresh = await self._providers.refresh(current_principal(), key, provider_id)
        return rpc.RefreshProviderResponse(
            provider=provider_to_proto(refresh.provider), added=refresh.added, removed=refresh.removed
        )

    async def CheckProvider(self, request: rpc.CheckProviderRequest, context: Context) -> rpc.CheckProviderResponse:
        caller, credentials = current_principal(), credentials_from_proto(request.credentials)
        match request.WhichOneof("target"):
            case "provider_id":
                provider_id = provider_id_from_proto(request.provider_id)
                names = await self._providers.check(caller, provider_id, credentials)
            case "provider":
                draft = provider_draft_from_proto(request.provider, default_name=request.provider.type)
                names = await self._providers.check_draft(caller, draft, credentials)
            case _:
                raise InvalidArgument("target must be set to provider_id or provider.", field="target")
        return rpc.CheckProviderResponse(provider_models=names)
