"""Providers as clients see them, without credentials."""

from dataclasses import replace

from mnemesh_kit.ids import derive_id

from mnemesh_orchestrator.llm.model_catalog import OwnProvider
from mnemesh_orchestrator.llm.provider import Provider
from mnemesh_orchestrator.llm.registry import MNEMESH
from mnemesh_orchestrator.model.providers import ProviderCategory, ProviderDraft, ProviderView


def base_id(name: str) -> str:
    """Returns the id of a provider of the operator, which is the same in every process."""
    return derive_id("provider", "base", name)


def base_view(name: str, provider: Provider | None) -> ProviderView:
    """Returns the view of a provider of the operator. `provider` is None for the built-in rehearsal model."""
    provider_id = base_id(name)
    if provider is None:
        draft = ProviderDraft(name=MNEMESH, type=MNEMESH, api="rehearsal")
        return ProviderView(id=provider_id, draft=draft, category=ProviderCategory.BASE, model_count=1)
    settings = provider.settings
    return ProviderView(
        id=provider_id,
        draft=ProviderDraft(
            name=settings.name,
            type=settings.type,
            api=settings.api_in_use,
            base_url=settings.base_url,
            api_version=settings.api_version,
            region=settings.region,
        ),
        category=ProviderCategory.BASE,
        has_api_key=settings.api_key is not None,
        has_headers=bool(settings.headers),
        model_count=len(provider.offered_models),
        refreshed_at=provider.refreshed_at,
    )


def own_view(own: OwnProvider) -> ProviderView:
    """Returns the view of a provider of the organization."""
    record, sealed = own.record, own.record.credentials
    return ProviderView(
        id=record.id,
        draft=replace(record.draft, api=own.provider.settings.api_in_use),
        category=ProviderCategory.BYOK,
        has_api_key=sealed.api_key is not None,
        has_access_key=sealed.access_key is not None,
        has_headers=bool(sealed.headers),
        model_count=len(own.provider.offered_models),
        refreshed_at=record.refreshed_at,
        refresh_error=own.problem or record.refresh_error,
        created_at=record.created_at,
        updated_at=record.updated_at,
    )
