"""Models as an organization sees them, and its overrides of their figures."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.principal import Principal
from mnemesh_kit.text import require_no_nul

from mnemesh_orchestrator.llm.capabilities import with_capabilities
from mnemesh_orchestrator.llm.embedders import EmbedderDirectory
from mnemesh_orchestrator.llm.model_catalog import ModelCatalog
from mnemesh_orchestrator.model.embedding import EmbedderFilter, EmbeddingModel
from mnemesh_orchestrator.model.filters import require_searchable_fields
from mnemesh_orchestrator.model.models import ModelInfo
from mnemesh_orchestrator.model.provider_rules import require_valid_override
from mnemesh_orchestrator.model.providers import ModelFilter, ModelOverride
from mnemesh_orchestrator.store.base import ProviderStore


class ModelService:
    """Language models and embedding models."""

    def __init__(self, store: ProviderStore, models: ModelCatalog, embedders: EmbedderDirectory) -> None:
        self._store = store
        self._models = models
        self._embedders = embedders

    async def get(self, caller: Principal, handle: str) -> ModelInfo:
        """Returns a model with its capabilities. An empty handle means the default model of new agents.

        Raises:
            ModelUnknown: No provider of the organization serves the model.
        """
        models = await self._models.of(caller.organization_id)
        info, _ = await models.resolve_for_turn(handle or await models.default_handle())
        return with_capabilities(info)

    async def list(self, caller: Principal, filter_: ModelFilter) -> tuple[ModelInfo, ...]:
        """Returns the models that the organization can use, ordered by handle. Raises InvalidArgument."""
        require_searchable_fields(filter_, "")
        models = await (await self._models.of(caller.organization_id)).list_models()
        return tuple(with_capabilities(info) for info in models if filter_.matches(info))

    async def update(
        self,
        caller: Principal,
        key: RequestKey | None,
        handle: str,
        changes: Mapping[str, Any],
        capabilities: Mapping[str, bool],
    ) -> ModelInfo:
        """Changes the organization's override of a model, and returns the model.

        Args:
            caller: The caller.
            key: Identifies the request.
            handle: The handle of the model.
            changes: New values by the field names of `ModelOverride`; None removes a value.
            capabilities: The capabilities that change.

        Raises:
            InvalidArgument: A value breaks its rule.
            ModelUnknown: No provider of the organization serves the model.
        """
        if not require_no_nul(handle, "model.handle"):
            raise InvalidArgument("model.handle is required.", field="model.handle")
        require_valid_override(changes)

        def change(override: ModelOverride) -> ModelOverride:
            return replace(override, **changes, capabilities={**override.capabilities, **capabilities})

        organization_id = caller.organization_id
        await self._models.resolve(organization_id, handle)
        await self._store.override(key, organization_id, handle, change)
        self._models.invalidate(organization_id)
        return with_capabilities((await self._models.resolve(organization_id, handle))[0])

    async def embedders(self, caller: Principal, filter_: EmbedderFilter) -> tuple[EmbeddingModel, ...]:  # noqa: ARG002
        """Returns the embedding models of the server, ordered by handle. Every organization can use all of them."""
        return tuple(model for model in await self._embedders.models() if filter_.matches(model))
