"""The rules that providers, their credentials and the overrides of models follow.

No error contains the value of a credential.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Final
from urllib.parse import urlsplit

from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.text import require_optional_text

from mnemesh_orchestrator.model.models import ModelPrice, ModelSettings, require_valid_settings
from mnemesh_orchestrator.model.providers import Credentials, ProviderDraft, ProviderRecord

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
