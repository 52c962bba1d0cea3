"""`mnemesh.agents.v1.ModelService`."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import grpc
from mnemesh.agents.v1 import models_service_pb2 as rpc
from mnemesh.agents.v1 import models_service_pb2_grpc
from mnemesh_kit.call_context import current_principal
from mnemesh_kit.errors import InvalidArgument, NotFound
from mnemesh_kit.idempotency import request_key
from mnemesh_kit.paging import Cursor, Page, PageQuery, bounded, next_page_token, page_of, page_query
from mnemesh_types.twin import enum_from_proto

from mnemesh_orchestrator.model.models import EmbedderFilter, ProviderFilter, ProviderOrder
from mnemesh_orchestrator.rpc.convert.models import (
    MODEL_FILTER,
    PROVIDER_FILTER,
    credentials_from_proto,
    embedder_to_proto,
    model_to_proto,
    override_from_proto,
    provider_draft_from_proto,
    provider_id_from_proto,
    provider_to_proto,
    provider_update_from_proto,
    request_without_credentials,
)
from mnemesh_orchestrator.usecases.providers import ModelService, ProviderService

T = TypeVar("T")
Position = tuple[str, str]
"""The sort key of a row, and its id, which breaks ties."""

Context = grpc.aio.ServicerContext[Any, Any]


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
