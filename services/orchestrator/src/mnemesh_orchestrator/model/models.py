"""Models: their handles, settings, and what a request to one asks for."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from enum import StrEnum
from typing import Any


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """How a model is called. None takes the model's own value."""

    context_window: int | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    parallel_tool_calls: bool | None = None
    inner_thoughts_in_kwargs: bool | None = None
    enable_reasoner: bool | None = None
    reasoning_effort: str | None = None
    max_reasoning_tokens: int | None = None
    strict_tool_schemas: bool | None = None
    fallback_model: str | None = None
    provider_options: str | None = None

    def over(self, base: "ModelSettings") -> "ModelSettings":
        """These settings where given, and `base` where not."""
        given = {f.name: value for f in fields(self) if (value := getattr(self, f.name)) is not None}
        return replace(base, **given)


class FigureSource(StrEnum):
    """How a figure of a model is known."""

    PROVIDER = "provider"
    TABLE = "table"
    OVERRIDE = "override"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class ModelPrice:
    """Millionths of a US dollar for a million tokens; None is not known, zero is free."""

    input: int | None = None
    cached_input: int | None = None
    cache_write: int | None = None
    output: int | None = None


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A model that a provider serves.

    `handle` is "provider/model"; `api` names the renderer ("openai_chat",
    "openai_responses", "anthropic", "rehearsal"); `defaults` holds the settings of an agent that
    sets none, and always a context_window.
    """

    handle: str
    provider: str
    provider_model: str
    api: str
    defaults: ModelSettings
    endpoint: str | None = None
    provider_type: str = ""
    """What its provider is, as "openai" or "ollama"; empty where that is the provider's name."""
    window_source: FigureSource = FigureSource.DEFAULT
    max_output_tokens: int | None = None
    """The longest answer, as far as anyone says; `defaults` holds it only where the API wants to be told a limit."""
    output_source: FigureSource = FigureSource.DEFAULT
    provider_id: str | None = None
    """Of the organization's own provider that serves it; None of the operator's."""
    last_seen_at: datetime | None = None
    """When its provider was last seen to offer it; None where nobody looked."""
    display_name: str | None = None
    """What the organization calls it; None where that is its provider's name for it."""
    price: ModelPrice | None = None
    hidden: bool = False
    capabilities: Mapping[str, bool] = field(default_factory=dict)
    """What the organization says that it can and cannot, over what its vendor's API can be asked for."""

    @property
    def context_window(self) -> int:
        """Tokens, prompt and answer together."""
        return self.defaults.context_window or 32_000


@dataclass(frozen=True, slots=True)
class ToolSchema:
    """A tool as a model is offered it; `parameters` is a JSON schema of type object."""

    name: str
    description: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ResponseFormat:
    """Structured output: kind is "text", "json_object" or "json_schema"."""

    kind: str = "text"
    name: str | None = None
    schema: str | None = None
    strict: bool | None = None
