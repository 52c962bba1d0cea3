"""mnemesh.agents.v1.ModelService."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import grpc
from mnemesh.agents.v1 import models_service_pb2 as rpc
from mnemesh.agents.v1 import models_service_pb2_grpc
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.idempotency import request_key
from mnemesh_kit.ids import require_id
from mnemesh_kit.paging import next_page_token, page_of, page_query
from mnemesh_kit.principal import current_principal

from mnemesh_orchestrator.model.models import ModelInfo
from mnemesh_orchestrator.model.providers import ProviderCategory, ProviderDraft, ProviderView
from mnemesh_orchestrator.rpc.convert.models import embedder_to_proto, model_to_proto, override_from_proto
from mnemesh_orchestrator.rpc.convert.providers import (
    CATEGORIES,
    changes_from_proto,
    compared,
    credentials_from_proto,
    draft_from_proto,
    provider_to_proto,
)
from mnemesh_orchestrator.rpc.convert.settings import present, require_known, require_plain
from mnemesh_orchestrator.rpc.pages import Place, page_in_order
from mnemesh_orchestrator.usecases.models import ModelService
from mnemesh_orchestrator.usecases.providers import ProviderService

Context = grpc.aio.ServicerContext[Any, Any]

_PROVIDER_ORDERS: Final[dict[int, Callable[[ProviderView], Place]]] = {
    rpc.PROVIDER_ORDER_BY_UNSPECIFIED: lambda view: (_moment(view.created_at), view.id),
    rpc.PROVIDER_ORDER_BY_CREATE_TIME: lambda view: (_moment(view.created_at), view.id),
    rpc.PROVIDER_ORDER_BY_UPDATE_TIME: lambda view: (_moment(view.updated_at), view.id),
    rpc.PROVIDER_ORDER_BY_NAME: lambda view: (view.draft.name, view.id),
}


class ModelsServicer(models_service_pb2_grpc.ModelServiceServicer):
    """Models, embedders, and the providers that serve them."""

    def __init__(self, models: ModelService, providers: ProviderService) -> None:
        self._models = models
        self._providers = providers

    async def GetModel(self, request: rpc.GetModelRequest, context: Context) -> rpc.GetModelResponse:
        """What is known of a model; an empty handle means the one that a new agent gets."""
        return rpc.GetModelResponse(model=model_to_proto(await self._models.get(current_principal(), request.handle)))

    async def ListModels(self, request: rpc.ListModelsRequest, context: Context) -> rpc.ListModelsResponse:
        """A page of models, by handle."""
        if request.order_by not in (rpc.MODEL_ORDER_BY_UNSPECIFIED, rpc.MODEL_ORDER_BY_HANDLE):
            raise InvalidArgument("order_by is not known.", field="order_by")
        query = page_query(request)
        wanted = _wanted(request)
        found = [info for info in await self._models.list(current_principal()) if wanted(info)]
        page = page_of(found, query, lambda model: model.handle)
        return rpc.ListModelsResponse(
            models=[model_to_proto(info) for info in page.items], next_page_token=next_page_token(query, page)
        )

    async def UpdateModel(self, request: rpc.UpdateModelRequest, context: Context) -> rpc.UpdateModelResponse:
        """Sets figures of a model for the organization."""
        handle = require_plain(request.model.handle, "model.handle")
        if not handle:
            raise InvalidArgument("model.handle is required.", field="model.handle")
        change = override_from_proto(request.model, list(request.update_mask.paths))
        key = request_key(request, "UpdateModel")
        info = await self._models.update(current_principal(), key, handle, change)
        return rpc.UpdateModelResponse(model=model_to_proto(info))

    async def ListEmbeddingModels(
        self, request: rpc.ListEmbeddingModelsRequest, context: Context
    ) -> rpc.ListEmbeddingModelsResponse:
        """A page of embedders, by handle."""
        if request.order_by not in (rpc.EMBEDDING_MODEL_ORDER_BY_UNSPECIFIED, rpc.EMBEDDING_MODEL_ORDER_BY_HANDLE):
            raise InvalidArgument("order_by is not known.", field="order_by")
        query = page_query(request)
        found = [
            model
            for model in await self._models.embedders()
            if (not request.providers or model.handle.partition("/")[0] in request.providers)
            and request.handle in ("", model.handle)
        ]
        page = page_of(found, query, lambda model: model.handle)
        return rpc.ListEmbeddingModelsResponse(
            models=[embedder_to_proto(model) for model in page.items], next_page_token=next_page_token(query, page)
        )

    async def CreateProvider(self, request: rpc.CreateProviderRequest, context: Context) -> rpc.CreateProviderResponse:
        """Registers a provider with the organization's own key."""
        draft, credentials = draft_from_proto(request.provider), credentials_from_proto(request.credentials)
        key = request_key(compared(request, self._providers.fingerprint), "CreateProvider")
        made = await self._providers.create(current_principal(), key, draft, credentials)
        return rpc.CreateProviderResponse(provider=provider_to_proto(made))

    async def GetProvider(self, request: rpc.GetProviderRequest, context: Context) -> rpc.GetProviderResponse:
        """A provider."""
        found = await self._providers.get(current_principal(), _provider_id(request.provider_id))
        return rpc.GetProviderResponse(provider=provider_to_proto(found))

    async def ListProviders(self, request: rpc.ListProvidersRequest, context: Context) -> rpc.ListProvidersResponse:
        """A page of providers, the operator's among them."""
        place = require_known(_PROVIDER_ORDERS, request.order_by, "order_by")
        query = page_query(request)
        wanted = _wanted_providers(request)
        every = await self._providers.list(current_principal())
        page = page_in_order([view for view in every if wanted(view)], every, query, place)
        return rpc.ListProvidersResponse(
            providers=[provider_to_proto(view) for view in page.items], next_page_token=next_page_token(query, page)
        )

    async def UpdateProvider(self, request: rpc.UpdateProviderRequest, context: Context) -> rpc.UpdateProviderResponse:
        """Changes the fields in the mask, and the credentials given."""
        provider_id = _provider_id(request.provider.id, "provider.id")
        changes = changes_from_proto(request.provider, list(request.update_mask.paths))
        credentials = credentials_from_proto(request.credentials)
        if not changes and not request.HasField("credentials"):
            raise InvalidArgument("update_mask names no field, and no credentials are given.", field="update_mask")

        def change(draft: ProviderDraft) -> ProviderDraft:
            return replace(draft, **changes)

        key = request_key(compared(request, self._providers.fingerprint), "UpdateProvider")
        changed = await self._providers.update(current_principal(), key, provider_id, change, credentials)
        return rpc.UpdateProviderResponse(provider=provider_to_proto(changed))

    async def DeleteProvider(self, request: rpc.DeleteProviderRequest, context: Context) -> rpc.DeleteProviderResponse:
        """Deletes a provider and its credentials."""
        key = request_key(request, "DeleteProvider")
        await self._providers.delete(current_principal(), key, _provider_id(request.provider_id))
        return rpc.DeleteProviderResponse()

    async def RefreshProvider(
        self, request: rpc.RefreshProviderRequest, context: Context
    ) -> rpc.RefreshProviderResponse:
        """Reads the models of a provider anew."""
        key = request_key(request, "RefreshProvider")
        refreshed = await self._providers.refresh(current_principal(), key, _provider_id(request.provider_id))
        return rpc.RefreshProviderResponse(
            provider=provider_to_proto(refreshed.provider), added=refreshed.added, removed=refreshed.removed
        )

    async def CheckProvider(self, request: rpc.CheckProviderRequest, context: Context) -> rpc.CheckProviderResponse:
        """Asks a provider which models it has."""
        credentials = credentials_from_proto(request.credentials)
        match request.WhichOneof("target"):
            case "provider_id":
                provider_id = _provider_id(request.provider_id)
                names = await self._providers.check(current_principal(), provider_id, credentials)
            case "provider":
                draft = draft_from_proto(request.provider, may_be_nameless=True)
                names = await self._providers.check_draft(draft, credentials)
            case _:
                raise InvalidArgument("provider_id or provider is required.", field="target")
        return rpc.CheckProviderResponse(provider_models=names)


def _wanted(request: rpc.ListModelsRequest) -> Callable[[ModelInfo], bool]:
    """Which models a list looks at."""
    categories = {require_known(CATEGORIES, number, "provider_categories") for number in request.provider_categories}
    given = present(request, "handle_search", "hidden")
    search = require_plain(given.get("handle_search", ""), "handle_search").lower()

    def wanted(info: ModelInfo) -> bool:
        category = ProviderCategory.BASE if info.provider_id is None else ProviderCategory.BYOK
        return (
            (not request.providers or info.provider in request.providers)
            and (not request.provider_types or (info.provider_type or info.provider) in request.provider_types)
            and (not categories or category in categories)
            and given.get("hidden", info.hidden) == info.hidden
            and search in info.handle.lower()
        )

    return wanted


def _wanted_providers(request: rpc.ListProvidersRequest) -> Callable[[ProviderView], bool]:
    """Which providers a list looks at."""
    categories = {require_known(CATEGORIES, number, "categories") for number in request.categories}
    name = require_plain(request.name, "name") if request.HasField("name") else None

    def wanted(view: ProviderView) -> bool:
        return (
            (not request.provider_ids or view.id in request.provider_ids)
            and (name is None or view.draft.name == name)
            and (not request.types or view.draft.type in request.types)
            and (not categories or view.category in categories)
        )

    return wanted


def _moment(moment: Any) -> str:
    return "" if moment is None else str(moment.isoformat())


def _provider_id(value: str, field: str = "provider_id") -> str:
    return require_id(value, "provider", field)
