"""Providers that an organization registered, and its settings of models."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from mnemesh_orchestrator.model.models import FigureSource, ModelInfo, ModelPrice, ModelSettings


class ProviderCategory(StrEnum):
    """BASE providers are the operator's and serve every organization. BYOK providers belong to one organization."""

    BASE = "base"
    BYOK = "byok"


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that a server lists. Figures that it does not report are None."""

    name: str
    context_window: int | None = None
    max_output_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Credentials:
    """Keys in plain text, as a client sent them. In a change, None keeps a value and an empty text deletes it."""

    api_key: str | None = field(default=None, repr=False)
    access_key: str | None = field(default=None, repr=False)
    headers: tuple[tuple[str, str | None], ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class SealedCredentials:
    """Keys as they are stored. Each is sealed separately, so that one can be changed without opening the others."""

    api_key: bytes | None = None
    access_key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderDraft:
    """A provider as a client describes it. `api` is None for the API of the type."""

    name: str
    type: str
    api: str | None = None
    base_url: str | None = None
    api_version: str | None = None
    region: str | None = None
    disabled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderRecord:
    """A stored provider. `served` lists the models that it last reported, in its order."""

    id: str
    organization_id: str
    draft: ProviderDraft
    created_at: datetime
    updated_at: datetime
    credentials: SealedCredentials = SealedCredentials()
    served: tuple[ServedModel, ...] = ()
    refreshed_at: datetime | None = None
    refresh_error: str | None = None

    @property
    def name(self) -> str:
        """The first part of the handles of its models."""
        return self.draft.name


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderView:
    """A provider as clients see it, without keys. Times are None for a provider without a record."""

    id: str
    draft: ProviderDraft
    category: ProviderCategory
    has_api_key: bool = False
    has_access_key: bool = False
    has_headers: bool = False
    model_count: int = 0
    refreshed_at: datetime | None = None
    refresh_error: str | None = None
    created_at: datetime | None = None
    updated_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class ModelOverride:
    """An organization's settings of a model. None, or a missing capability, keeps the known value."""

    handle: str
    display_name: str | None = None
    context_window: int | None = None
    max_output_tokens: int | None = None
    price: ModelPrice | None = None
    hidden: bool | None = None
    default_settings: ModelSettings | None = None
    capabilities: Mapping[str, bool] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """True if the override sets nothing."""
        return all(not getattr(self, f.name) for f in fields(self) if f.name not in ("handle", "hidden")) and (
            self.hidden is None
        )

    def over(self, info: ModelInfo) -> ModelInfo:
        """Returns the model with the override applied."""
        defaults = info.defaults if self.default_settings is None else self.default_settings.over(info.defaults)
        sources: dict[str, Any] = {}
        if self.context_window is not None:
            defaults = replace(defaults, context_window=self.context_window)
            sources["window_source"] = FigureSource.OVERRIDE
        if self.max_output_tokens is not None:
            sources["output_source"] = FigureSource.OVERRIDE
            # An API that requires a limit is sent this one. Other APIs are sent none.
            if info.defaults.max_output_tokens is not None and not self._says("max_output_tokens"):
                defaults = replace(defaults, max_output_tokens=self.max_output_tokens)
        if self.capabilities.get("parallel_tool_calls") is False and not self._says("parallel_tool_calls"):
            defaults = replace(defaults, parallel_tool_calls=False)
        if self.capabilities.get("strict_tool_schemas") is False and not self._says("strict_tool_schemas"):
            defaults = replace(defaults, strict_tool_schemas=False)
        return replace(
            info,
            defaults=defaults,
            display_name=self.display_name or info.display_name,
            max_output_tokens=self.max_output_tokens or info.max_output_tokens,
            price=self.price or info.price,
            hidden=bool(self.hidden),
            capabilities=self.capabilities,
            **sources,
        )

    def _says(self, setting: str) -> bool:
        return self.default_settings is not None and getattr(self.default_settings, setting) is not None


@dataclass(frozen=True, slots=True)
class OwnModels:
    """The providers and overrides of an organization. Every change raises `revision`."""

    revision: int = 0
    providers: tuple[ProviderRecord, ...] = ()
    overrides: tuple[ModelOverride, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelFilter:
    """The conditions of a list of models; a model must meet all that are set."""

    providers: tuple[str, ...] = ()
    provider_types: tuple[str, ...] = ()
    categories: tuple[ProviderCategory, ...] = ()
    hidden: bool | None = None
    handle_search: str | None = None

    def matches(self, info: ModelInfo) -> bool:
        """Returns whether a model meets the conditions."""
        category = ProviderCategory.BASE if info.provider_id is None else ProviderCategory.BYOK
        return (
            (not self.providers or info.provider in self.providers)
            and (not self.provider_types or (info.provider_type or info.provider) in self.provider_types)
            and (not self.categories or category in self.categories)
            and self.hidden in (None, info.hidden)
            and (self.handle_search or "").lower() in info.handle.lower()
        )


class ProviderOrder(StrEnum):
    """The keys that lists of providers can be sorted by."""

    CREATED_AT = "created_at"
    UPDATED_AT = "updated_at"
    NAME = "name"

    def position(self, view: ProviderView) -> tuple[str, str]:
        """Returns the sort key of a provider, and its id, which breaks ties."""
        if self is ProviderOrder.NAME:
            return view.draft.name, view.id
        time = view.created_at if self is ProviderOrder.CREATED_AT else view.updated_at
        return "" if time is None else time.isoformat(), view.id


@dataclass(frozen=True, slots=True)
class ProviderFilter:
    """The conditions of a list of providers; a provider must meet all that are set."""

    provider_ids: tuple[str, ...] = ()
    name: str | None = None
    types: tuple[str, ...] = ()
    categories: tuple[ProviderCategory, ...] = ()

    def matches(self, view: ProviderView) -> bool:
        """Returns whether a provider meets the conditions."""
        return (
            (not self.provider_ids or view.id in self.provider_ids)
            and self.name in (None, view.draft.name)
            and (not self.types or view.draft.type in self.types)
            and (not self.categories or view.category in self.categories)
        )


@dataclass(frozen=True, slots=True)
class Refresh:
    """The result of a refresh: the provider, and the handles that were added and removed."""

    provider: ProviderView
    added: tuple[str, ...]
    removed: tuple[str, ...]
