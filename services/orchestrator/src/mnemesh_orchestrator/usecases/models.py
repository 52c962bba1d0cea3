"""ModelCatalog as an organization sees them, and what it says of them."""

from collections.abc import Callable

from mnemesh_kit.idempotency import RequestKey
from mnemesh_kit.principal import Principal

from mnemesh_orchestrator.llm.embedders import EmbedderPlace, embedding_models
from mnemesh_orchestrator.llm.model_catalog import ModelCatalog
from mnemesh_orchestrator.model.embedding import EmbeddingModel
from mnemesh_orchestrator.model.models import ModelInfo
from mnemesh_orchestrator.model.providers import ModelOverride
from mnemesh_orchestrator.store.base import ProviderStore


class ModelService:
    """Language models and embedders."""

    def __init__(self, store: ProviderStore, models: ModelCatalog, embedder: EmbedderPlace) -> None:
        self._store = store
        self._models = models
        self._embedder = embedder

    async def get(self, caller: Principal, handle: str) -> ModelInfo:
        """What is known of a model; an empty handle means the one that a new agent gets. Raises ModelUnknown."""
        offer = await self._models.of(caller.organization_id)
        info, _ = await offer.resolve_for_turn(handle or await offer.default_handle())
        return info

    async def list(self, caller: Principal) -> tuple[ModelInfo, ...]:
        """The models on offer, by handle."""
        return await (await self._models.of(caller.organization_id)).list_models()

    async def update(
        self,
        caller: Principal,
        key: RequestKey | None,
        handle: str,
        change: Callable[[ModelOverride], ModelOverride],
    ) -> ModelInfo:
        """Changes what the organization says of a model. Raises ModelUnknown."""
        organization_id = caller.organization_id
        await self._models.resolve(organization_id, handle)
        await self._store.override(key, organization_id, handle, change)
        self._models.forget(organization_id)
        return (await self._models.resolve(organization_id, handle))[0]

    async def embedders(self) -> tuple[EmbeddingModel, ...]:
        """The embedders on offer, by handle."""
        return embedding_models(self._embedder)
