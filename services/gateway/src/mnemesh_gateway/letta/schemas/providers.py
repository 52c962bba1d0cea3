"""Providers of models."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import msgspec


class Provider(msgspec.Struct, kw_only=True):
    """A provider. Its keys are never shown."""

    id: str
    name: str
    provider_type: str
    provider_category: str
    api_key: str | None = None
    base_url: str | None = None
    access_key: str | None = None
    region: str | None = None
    api_version: str | None = None
    organization_id: str | None = None
    updated_at: datetime | None = None
    last_synced: datetime | None = None


class ProviderFields(msgspec.Struct, kw_only=True):
    """The address and the keys of a provider. An empty text is the same as none."""

    api_key: str | None = None
    access_key: str | None = None
    region: str | None = None
    api_version: str | None = None
    base_url: str | None = None


class CreateProvider(ProviderFields, kw_only=True):
    """A provider to create."""

    name: str
    provider_type: str
    api_key: str


class UpdateProvider(ProviderFields, kw_only=True):
    """Changes of a provider. A field that is null or absent stays as it is."""


class CheckProvider(ProviderFields, kw_only=True):
    """A provider to contact; nothing is stored."""

    provider_type: str
    api_key: str


class ListProviders(msgspec.Struct, kw_only=True):
    """The query of a list of providers."""

    before: str | None = None
    after: str | None = None
    limit: int | None = None
    order: Literal["asc", "desc"] | None = None
    name: str | None = None
    provider_type: str | None = None


class ProviderResult(msgspec.Struct, kw_only=True):
    """The result of a check or a deletion."""

    message: str
