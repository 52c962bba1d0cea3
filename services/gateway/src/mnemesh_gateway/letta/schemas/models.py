"""The JSON of models and providers."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

import msgspec


class LLMConfig(msgspec.Struct, kw_only=True):
    """A model with the settings in effect."""

    model: str
    model_endpoint_type: str
    context_window: int
    display_name: str | None = None
    model_endpoint: str | None = None
    provider_name: str | None = None
    provider_category: str | None = None
    model_wrapper: str | None = None
    put_inner_thoughts_in_kwargs: bool | None = None
    handle: str | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    enable_reasoner: bool | None = None
    reasoning_effort: str | None = None
    max_reasoning_tokens: int | None = None
    parallel_tool_calls: bool | None = None
    response_format: dict[str, Any] | None = None
    strict: bool | None = None


class EmbeddingConfig(msgspec.Struct, kw_only=True):
    """An embedder."""

    embedding_endpoint_type: str
    embedding_model: str
    embedding_dim: int
    embedding_endpoint: str | None = None
    embedding_chunk_size: int | None = 300
    handle: str | None = None
    batch_size: int = 32


class GivenLLMConfig(msgspec.Struct, kw_only=True):
    """A model as older clients configure it. The handle is used, or else the names of provider and model."""

    model: str
    model_endpoint_type: str = ""
    context_window: int | None = None
    provider_name: str | None = None
    handle: str | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    enable_reasoner: bool | None = None
    reasoning_effort: str | None = None
    max_reasoning_tokens: int | None = None
    parallel_tool_calls: bool | None = None
    put_inner_thoughts_in_kwargs: bool | None = None
    strict: bool | None = None


class GivenEmbeddingConfig(msgspec.Struct, kw_only=True):
    """An embedder as older clients configure it."""

    embedding_model: str
    embedding_endpoint_type: str = ""
    handle: str | None = None


class CompactionSettings(msgspec.Struct, kw_only=True):
    """When and how a conversation is compacted."""

    model: str | None = None
    model_settings: dict[str, Any] | None = None
    prompt: str | None = None
    prompt_acknowledgement: bool | None = None
    clip_chars: int | None = None
    mode: str | None = None
    sliding_window_percentage: float | None = None


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
