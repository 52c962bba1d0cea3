"""Providers that an organization registered, and its settings of models."""

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Final
from urllib.parse import urlsplit

from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.text import require_optional_text

from mnemesh_orchestrator.model.models import FigureSource, ModelInfo, ModelPrice, ModelSettings, require_valid_settings

_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,100}")
_REGION: Final = re.compile(r"[a-z0-9-]{1,50}")
_VERSION: Final = re.compile(r"[A-Za-z0-9._-]{1,50}")
_HEADER: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_VISIBLE: Final = re.compile(r"[\x21-\x7e]{0,8000}")
_HEADER_VALUE: Final = re.compile(r"(?:[\x21-\x7e](?:[\x20-\x7e]{0,7998}[\x21-\x7e])?)?")
_MAX_URL: Final = 2_000
_MAX_DISPLAY_NAME: Final = 200
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


def require_valid_provider(draft: ProviderDraft) -> ProviderDraft:
    """Returns the draft if it follows every rule of a provider. Its type is not checked.

    Raises:
        InvalidArgument: A field breaks its rule. Metadata: field, such as `provider.base_url`.
    """
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
    """Returns the credentials if each can be sent in a header.

    Raises:
        InvalidArgument: One cannot. Metadata: field, such as `credentials.headers[0].name`.
    """
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
    """Requires that no stored credential goes to another host: who may change the URL may not know the key.

    Raises:
        InvalidArgument: The host changes, and a stored credential is neither replaced nor deleted. Metadata: field.
    """
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
    """Returns new values of the fields of a model's override if each follows its rule.

    Raises:
        InvalidArgument: One does not. Metadata: field, such as `model.price.input`.
    """
    for name in ("context_window", "max_output_tokens"):
        if (changes.get(name) or 0) < 0:
            raise InvalidArgument(f"model.{name} must not be negative.", field=f"model.{name}")
    require_optional_text(changes.get("display_name"), "model.display_name", max_chars=_MAX_DISPLAY_NAME)
    price: ModelPrice | None = changes.get("price")
    for name, amount in ({} if price is None else asdict(price)).items():
        if amount is not None and amount < 0:
            raise InvalidArgument(f"model.price.{name} must not be negative.", field=f"model.price.{name}")
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
