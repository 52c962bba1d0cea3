"""Models: handles, settings, embedding models, and the schemas of tools and answers."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.text import require_json_object

if TYPE_CHECKING:
    from jsonschema_rs import Validator

_MAX_PROBLEM: Final = 300

_MAX_TEMPERATURE: Final = 2
MIN_CONTEXT_WINDOW: Final = 1_000
"""Tokens. A smaller window has no space for a system prompt and an answer."""
EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_FORMAT_NAME: Final = re.compile(r"[A-Za-z0-9_-]{0,64}")


def schema_problem(schema: Mapping[str, Any]) -> str | None:
    """Returns why a schema cannot be used, or None."""
    try:
        validator(json.dumps(schema))
    except ValueError as error:
        return first_line(error)
    return None


@lru_cache(maxsize=64)
def validator(schema: str) -> "Validator":
    """Returns the validator of a schema. Raises ValueError if the schema cannot be used."""
    # Deferred: only structured answers need the library.
    import jsonschema_rs  # noqa: PLC0415

    return jsonschema_rs.validator_for(json.loads(schema), retriever=_refuse_reference)


def first_line(problem: object) -> str:
    """Returns the first line of a problem, shortened to 300 characters."""
    line = str(problem).partition("\n")[0]
    return line if len(line) <= _MAX_PROBLEM else f"{line[:_MAX_PROBLEM]}…"


def _refuse_reference(uri: str) -> Any:
    # A schema must be complete: the server fetches nothing for it.
    raise ValueError(f"it refers to {uri}")


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """Settings of a model call. None takes the model's own value."""

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
    plain_messages: bool | None = None

    def over(self, base: "ModelSettings") -> "ModelSettings":
        """Returns these settings, with `base` for those that are None."""
        values = {f.name: value for f in fields(self) if (value := getattr(self, f.name)) is not None}
        return replace(base, **values)


class FigureSource(StrEnum):
    """The source of a figure about a model."""

    PROVIDER = "provider"
    TABLE = "table"
    OVERRIDE = "override"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class ModelPrice:
    """Prices in millionths of a US dollar per million tokens. None is unknown, zero is free."""

    input: int | None = None
    cached_input: int | None = None
    cache_write: int | None = None
    output: int | None = None


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A model that a provider serves.

    `handle` is "provider/model". `api` names the renderer ("openai_chat", "openai_responses", "anthropic",
    "rehearsal"). `defaults` holds the settings of an agent that sets none, and always a context_window.
    """

    handle: str
    provider: str
    provider_model: str
    api: str
    defaults: ModelSettings
    endpoint: str | None = None
    provider_type: str = ""
    """The type of the provider, such as "openai" or "ollama"; empty if it is the provider's name."""
    window_source: FigureSource = FigureSource.DEFAULT
    max_output_tokens: int | None = None
    """The longest answer, if known. `defaults` holds it only if the API requires a limit."""
    output_source: FigureSource = FigureSource.DEFAULT
    provider_id: str | None = None
    """The id of the organization's own provider that serves the model; None for the operator's."""
    last_seen_at: datetime | None = None
    """When its provider last listed the model; None if it was never asked."""
    display_name: str | None = None
    """The name that the organization gave the model; None for its provider's name."""
    price: ModelPrice | None = None
    hidden: bool = False
    capabilities: Mapping[str, bool] = field(default_factory=dict)
    """Capabilities that the organization set. They override those of the provider's API."""

    @property
    def context_window(self) -> int:
        """The size of the context window in tokens, prompt and answer together."""
        return self.defaults.context_window or 32_000

    @property
    def most_output(self) -> int | None:
        """The longest answer that the model can give; None if it is unknown.

        The table of known models has limits that are safe to send, and longer answers may be possible.
        """
        known = self.output_source in (FigureSource.PROVIDER, FigureSource.OVERRIDE)
        return self.max_output_tokens if known else None

    def effective(self, settings: ModelSettings) -> ModelSettings:
        """Returns the settings of a call: unset ones are the model's, and no figure is above a known one of it."""
        found = settings.over(self.defaults)
        if self.window_source is not FigureSource.DEFAULT and found.context_window is not None:
            found = replace(found, context_window=min(found.context_window, self.context_window))
        if self.most_output is not None and found.max_output_tokens is not None:
            found = replace(found, max_output_tokens=min(found.max_output_tokens, self.most_output))
        return found


@dataclass(frozen=True, slots=True)
class ToolSchema:
    """A tool as it is offered to a model. `parameters` is a JSON schema of type object."""

    name: str
    description: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ResponseFormat:
    """The format of an answer. `kind` is "text", "json_object" or "json_schema"."""

    kind: str = "text"
    name: str | None = None
    schema: str | None = None
    strict: bool | None = None


def require_valid_settings(settings: ModelSettings, field: str) -> ModelSettings:
    """Returns `settings` if each value is in its range.

    Raises:
        InvalidArgument: A value is not. Metadata: field, such as `agent.model_settings.temperature`.
    """

    def refused(name: str, rule: str) -> InvalidArgument:
        return InvalidArgument(f"{field}.{name} must be {rule}.", field=f"{field}.{name}")

    window = settings.context_window
    least = {"context_window": MIN_CONTEXT_WINDOW, "max_output_tokens": 1, "max_reasoning_tokens": 0}
    for name, lowest in least.items():
        tokens = getattr(settings, name)
        if tokens is not None and tokens < lowest:
            raise refused(name, f"at least {lowest:,}")
        if name != "context_window" and tokens is not None and window is not None and tokens >= window:
            raise refused(name, f"below the context window of {window:,} tokens")
    for name, highest in (("temperature", _MAX_TEMPERATURE), ("top_p", 1)):
        value = getattr(settings, name)
        if value is not None and not 0 <= value <= highest:
            raise refused(name, f"between 0 and {highest}")
    if settings.reasoning_effort is not None and settings.reasoning_effort not in EFFORTS:
        raise refused("reasoning_effort", f"one of {', '.join(EFFORTS)}")
    if settings.provider_options is not None:
        require_json_object(settings.provider_options, f"{field}.provider_options")
    return settings


def require_settings_of(model: ModelInfo, settings: ModelSettings, field: str) -> None:
    """Refuses figures that are above the known ones of a model.

    Raises:
        InvalidArgument: A figure is. Metadata: field, such as `agent.model_settings.context_window`.
    """
    figures = {"max_output_tokens": (model.most_output, "longest answer")}
    if model.window_source is not FigureSource.DEFAULT:
        figures["context_window"] = (model.context_window, "context window")
        if settings.context_window is None:
            for name in ("max_output_tokens", "max_reasoning_tokens"):
                if (getattr(settings, name) or 0) >= model.context_window:
                    figures[name] = (model.context_window - 1, "context window")
    for name, (most, figure) in figures.items():
        tokens = getattr(settings, name)
        if tokens is not None and most is not None and tokens > most:
            raise InvalidArgument(
                f"{field}.{name} must be at most {most:,}: the {figure} of {model.handle} does not allow more. "
                "If that figure is wrong, correct it with UpdateModel.",
                field=f"{field}.{name}",
            )


def require_valid_format(format_: ResponseFormat, field: str) -> ResponseFormat:
    """Returns `format_` unless its name or its schema cannot be used.

    Raises:
        InvalidArgument: It is not. Metadata: field.
    """
    if format_.kind == "json_schema":
        path = f"{field}.json_schema.name"
        if not _FORMAT_NAME.fullmatch(format_.name or ""):
            raise InvalidArgument(f'{path} must have at most 64 letters, digits, "_" or "-".', field=path)
        path = f"{field}.json_schema.schema"
        schema = require_json_object(format_.schema or "", path)
        if (problem := schema_problem(json.loads(schema))) is not None:
            raise InvalidArgument(f"{path} must be a JSON schema: {problem}", field=path)
    return format_


def require_handle(handle: str, field: str) -> str:
    """Returns `handle` if it has the form of the handle of a model.

    Raises:
        InvalidArgument: It has not. Metadata: field.
    """
    if not all(handle.partition("/")):
        raise InvalidArgument(f'{field} must be a handle, "provider/model".', field=field)
    return handle


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingModel:
    """An embedding model.

    `dimension` is the length of its vectors; `batch_size` the texts per request, 0 for no limit.
    """

    handle: str
    provider_type: str
    dimension: int
    batch_size: int
    is_offline: bool
    is_default: bool
    endpoint: str | None = None
    provider_id: str | None = None


@dataclass(frozen=True, slots=True)
class EmbedderFilter:
    """The conditions of a list of embedding models; a model must meet all that are set."""

    providers: tuple[str, ...] = ()
    handle: str = ""

    def matches(self, model: EmbeddingModel) -> bool:
        """Returns whether a model meets the conditions."""
        provider = model.handle.partition("/")[0]
        return (not self.providers or provider in self.providers) and self.handle in ("", model.handle)
