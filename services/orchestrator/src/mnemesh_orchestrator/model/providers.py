"""Providers that an organization registered, and what it says of models over what is known of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from mnemesh_orchestrator.model.models import FigureSource, ModelInfo, ModelPrice, ModelSettings


class ProviderCategory(StrEnum):
    """BASE is the operator's, for everybody; BYOK an organization's, with a key of its own."""

    BASE = "base"
    BYOK = "byok"


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that a server says it serves; figures are None where it does not say."""

    name: str
    context_window: int | None = None
    max_output_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Credentials:
    """Keys in plain, as they come in. Of a change: None stays, empty deletes; of a header, None keeps its value."""

    api_key: str | None = field(default=None, repr=False)
    access_key: str | None = field(default=None, repr=False)
    headers: tuple[tuple[str, str | None], ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class SealedCredentials:
    """Keys as they are stored: each sealed by itself, so that one can be changed without opening the others."""

    api_key: bytes | None = None
    access_key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderDraft:
    """What a client says of a provider; `api` is None where the type's own is meant."""

    name: str
    type: str
    api: str | None = None
    base_url: str | None = None
    api_version: str | None = None
    region: str | None = None
    disabled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderRecord:
    """A registered provider, as it is stored. `served` is what it was last seen to serve, in its own order."""

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
        """First part of its models' handles."""
        return self.draft.name


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderView:
    """A provider as it is shown: whatever it is, without a key. Times are None of what has no record."""

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
    """What an organization says of a model; None, or a capability that is not there, leaves what is known otherwise."""

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
        """Nothing is left of it."""
        return all(not getattr(self, f.name) for f in fields(self) if f.name not in ("handle", "hidden")) and (
            self.hidden is None
        )

    def over(self, info: ModelInfo) -> ModelInfo:
        """What holds of the model in the organization."""
        defaults = info.defaults if self.default_settings is None else self.default_settings.over(info.defaults)
        sources: dict[str, Any] = {}
        if self.context_window is not None:
            defaults = replace(defaults, context_window=self.context_window)
            sources["window_source"] = FigureSource.OVERRIDE
        if self.max_output_tokens is not None:
            sources["output_source"] = FigureSource.OVERRIDE
            # An API that has to be told a limit is told this one; the others are told none.
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
            price=self.price,
            hidden=bool(self.hidden),
            capabilities=self.capabilities,
            **sources,
        )

    def _says(self, setting: str) -> bool:
        return self.default_settings is not None and getattr(self.default_settings, setting) is not None


@dataclass(frozen=True, slots=True)
class OwnModels:
    """All that an organization registered and said, at a revision that every change of it raises."""

    revision: int = 0
    providers: tuple[ProviderRecord, ...] = ()
    overrides: tuple[ModelOverride, ...] = ()
