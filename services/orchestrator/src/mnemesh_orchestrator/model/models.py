"""Models and providers."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.text import require_json_object, require_optional_text
from mnemesh_types.agents import ModelPrice, ModelSettings

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


def settings_over(settings: ModelSettings, base: ModelSettings) -> ModelSettings:
    """Returns the settings, with `base` for those that are None."""
    values = {f.name: value for f in fields(settings) if (value := getattr(settings, f.name)) is not None}
    return replace(base, **values)


class FigureSource(StrEnum):
    """The source of a figure about a model."""

    PROVIDER = "provider"
    TABLE = "table"
    OVERRIDE = "override"
    DEFAULT = "default"


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
    def vendor(self) -> tuple[str, str | None]:
        """The type of its provider, and the endpoint."""
        return self.provider_type or self.provider, self.endpoint

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
        found = settings_over(settings, self.defaults)
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
    """Returns `settings` if each value is in its range."""

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
    """Refuses figures that are above the known ones of a model."""
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
    """Returns `format_` unless its name or its schema cannot be used."""
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
    """Returns `handle` if it has the form of the handle of a model."""
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


_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,100}")
_REGION: Final = re.compile(r"[a-z0-9-]{1,50}")
_VERSION: Final = re.compile(r"[A-Za-z0-9._-]{1,50}")
_HEADER: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_VISIBLE: Final = re.compile(r"[\x21-\x7e]{0,8000}")
_HEADER_VALUE: Final = re.compile(r"(?:[\x21-\x7e](?:[\x20-\x7e]{0,7998}[\x21-\x7e])?)?")
_MAX_URL: Final = 2_000
_MAX_DISPLAY_NAME: Final = 200
_MAX_PRICE: Final = 10**12
"""A million dollars per million tokens. The cost of a billion such tokens can be stored."""
_FRAMING_HEADERS: Final = frozenset(
    {"host", "content-length", "transfer-encoding", "connection", "content-type", "upgrade"}
)
_OWN_PATHS: Final = ("context_window", "fallback_model")
"""Settings that the default settings of a model cannot have: one has its own field, and one is an agent's."""


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
        defaults = (
            info.defaults if self.default_settings is None else settings_over(self.default_settings, info.defaults)
        )
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


def require_valid_provider(draft: ProviderDraft) -> ProviderDraft:
    """Returns the draft if it follows every rule of a provider. Its type is not checked."""
    if not _NAME.fullmatch(draft.name):
        raise _invalid("name", 'must have 1 to 100 letters, digits, "_", "-" or "."')
    require_valid_changes(asdict(draft))
    return draft


def require_valid_changes(changes: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns new values of the fields of a provider if each follows its rule. Raises InvalidArgument."""
    for name, value in changes.items():
        if value is not None and name in _RULES:
            _RULES[name](value)
    return changes


def require_valid_credentials(credentials: Credentials) -> Credentials:
    """Returns the credentials if each can be sent in a header."""
    for name in ("api_key", "access_key"):
        value = getattr(credentials, name)
        if value is not None and not _VISIBLE.fullmatch(value):
            raise InvalidArgument(
                f"credentials.{name} must be at most 8,000 visible ASCII characters without blanks.",
                field=f"credentials.{name}",
            )
    names: set[str] = set()
    for index, (name, value) in enumerate(credentials.headers):
        field = f"credentials.headers[{index}]"
        if not _HEADER.fullmatch(name) or name.lower() in _FRAMING_HEADERS:
            raise InvalidArgument(f"{field}.name must be the name of a header that can be set.", field=f"{field}.name")
        if name.lower() in names:
            raise InvalidArgument(f"{field}.name must not repeat the name of a header.", field=f"{field}.name")
        if value is not None and not _HEADER_VALUE.fullmatch(value):
            raise InvalidArgument(f"{field}.value must be visible ASCII characters.", field=f"{field}.value")
        names.add(name.lower())
    return credentials


def require_credentials_for_new_host(record: ProviderRecord, draft: ProviderDraft, credentials: Credentials) -> None:
    """Requires that no stored credential goes to another host: who may change the URL may not know the key."""
    if _origin(record.draft) == _origin(draft):
        return
    stored = record.credentials
    kept = [name for name in ("api_key", "access_key") if getattr(stored, name) and getattr(credentials, name) is None]
    if stored.headers and (not credentials.headers or any(value is None for _, value in credentials.headers)):
        kept.append("headers")
    if kept:
        raise InvalidArgument(
            f"credentials.{kept[0]} must be sent again when provider.base_url or provider.type leads to another host.",
            field=f"credentials.{kept[0]}",
        )


def _origin(draft: ProviderDraft) -> tuple[str, str | None, int | None]:
    if draft.base_url is None:
        return draft.type, None, None
    parts = urlsplit(draft.base_url)
    return parts.scheme, parts.hostname, parts.port


def require_valid_override(changes: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns new values of the fields of a model's override if each follows its rule."""
    for name in ("context_window", "max_output_tokens"):
        if (changes.get(name) or 0) < 0:
            raise InvalidArgument(f"model.{name} must not be negative.", field=f"model.{name}")
    require_optional_text(changes.get("display_name"), "model.display_name", max_chars=_MAX_DISPLAY_NAME)
    price: ModelPrice | None = changes.get("price")
    for name, amount in ({} if price is None else asdict(price)).items():
        if amount is not None and not 0 <= amount <= _MAX_PRICE:
            field = f"model.price.{name}"
            raise InvalidArgument(f"{field} must be between 0 and {_MAX_PRICE:,}.", field=field)
    settings: ModelSettings | None = changes.get("default_settings")
    if settings is not None:
        for name in _OWN_PATHS:
            if getattr(settings, name) is not None:
                field = "model.default_settings"
                raise InvalidArgument(f"{field} must not set {name}.", field=field)
        require_valid_settings(settings, "model.default_settings")
    return changes


def _require_url(url: str) -> None:
    if len(url) > _MAX_URL or not _VISIBLE.fullmatch(url):
        raise _invalid("base_url", f"must be a URL of at most {_MAX_URL:,} characters")
    try:
        parts = urlsplit(url)
        is_usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_usable = False
    if not is_usable:
        raise _invalid("base_url", "must be an http or https URL")
    if parts.username is not None or parts.password is not None or "?" in url or "#" in url:
        raise _invalid(
            "base_url", "must have no credentials, no query and no fragment; send credentials in their own fields"
        )


def _require_form(name: str, form: re.Pattern[str], description: str) -> Callable[[str], None]:
    def check(value: str) -> None:
        if not form.fullmatch(value):
            raise _invalid(name, f"must have {description}")

    return check


def _invalid(name: str, problem: str) -> InvalidArgument:
    return InvalidArgument(f"provider.{name} {problem}.", field=f"provider.{name}")


_RULES: Final[Mapping[str, Callable[[Any], None]]] = {
    "base_url": _require_url,
    "api_version": _require_form("api_version", _VERSION, '1 to 50 letters, digits, ".", "_" or "-"'),
    "region": _require_form("region", _REGION, '1 to 50 lower-case letters, digits or "-"'),
}
