"""Providers and their credentials between the domain and the contract."""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from mnemesh.agents.v1 import models_pb2 as pb
from mnemesh.agents.v1 import models_service_pb2 as rpc
from mnemesh_kit.errors import InvalidArgument

from mnemesh_orchestrator.llm.dialects import DIALECTS
from mnemesh_orchestrator.model.providers import Credentials, ProviderCategory, ProviderDraft, ProviderView
from mnemesh_orchestrator.rpc.convert.models import APIS
from mnemesh_orchestrator.rpc.convert.settings import present

R = TypeVar("R", rpc.CreateProviderRequest, rpc.UpdateProviderRequest)

_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,100}")
_REGION: Final = re.compile(r"[a-z0-9-]{1,50}")
_VERSION: Final = re.compile(r"[A-Za-z0-9._-]{1,50}")
_HEADER: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_VISIBLE: Final = re.compile(r"[\x21-\x7e]{0,8000}")
_HEADER_VALUE: Final = re.compile(r"(?:[\x21-\x7e](?:[\x20-\x7e]{0,7998}[\x21-\x7e])?)?")
_LONGEST_URL: Final = 2000
_FRAMING: Final = frozenset({"host", "content-length", "transfer-encoding", "connection", "content-type", "upgrade"})
_SPOKEN: Final = {number: name for name, number in APIS.items() if name != "rehearsal"} | {
    pb.MODEL_API_UNSPECIFIED: None
}
CATEGORIES: Final = {
    pb.PROVIDER_CATEGORY_BASE: ProviderCategory.BASE,
    pb.PROVIDER_CATEGORY_BYOK: ProviderCategory.BYOK,
}
_CATEGORIES_BACK: Final = {category: number for number, category in CATEGORIES.items()}


def provider_to_proto(view: ProviderView) -> pb.Provider:
    """A provider as it is shown."""
    draft = view.draft
    provider = pb.Provider(
        id=view.id,
        name=draft.name,
        type=draft.type,
        category=_CATEGORIES_BACK[view.category],
        api=pb.MODEL_API_UNSPECIFIED if draft.api is None else APIS[draft.api],
        base_url=draft.base_url,
        api_version=draft.api_version,
        region=draft.region,
        disabled=draft.disabled,
        has_api_key=view.has_api_key,
        has_access_key=view.has_access_key,
        has_headers=view.has_headers,
        last_refresh_error=view.refresh_error,
        model_count=view.model_count,
    )
    for stamp, moment in (
        (provider.last_refresh_time, view.refreshed_at),
        (provider.create_time, view.created_at),
        (provider.update_time, view.updated_at),
    ):
        if moment is not None:
            stamp.FromDatetime(moment)
    return provider


def draft_from_proto(provider: pb.Provider, *, may_be_nameless: bool = False) -> ProviderDraft:
    """A provider to register, or to check.

    Raises:
        InvalidArgument: naming the field.
    """
    name = provider.name or (provider.type if may_be_nameless else "")
    if not _NAME.fullmatch(name):
        raise _wrong("name", 'must be 1 to 100 letters, digits, "_", "-" and "."')
    if provider.type not in DIALECTS:
        raise _wrong("type", f"must be one of {', '.join(DIALECTS)}")
    draft = ProviderDraft(name=name, type=provider.type)
    return replace(draft, **{path: read(provider) for path, read in CHANGES.items()})


def changes_from_proto(provider: pb.Provider, paths: list[str]) -> dict[str, Any]:
    """The fields of a draft that an update of these paths sets.

    Raises:
        InvalidArgument: naming the field, or the path that cannot be changed.
    """
    for path in paths:
        if path not in CHANGES:
            raise InvalidArgument(f"update_mask: {path} cannot be changed.", field="update_mask")
    return {path: CHANGES[path](provider) for path in paths}


def credentials_from_proto(given: pb.ProviderCredentials) -> Credentials:
    """Credentials as they came in.

    Raises:
        InvalidArgument: naming the field, never its value.
    """
    keys = present(given, "api_key", "access_key")
    for name, value in keys.items():
        if not _VISIBLE.fullmatch(value):
            raise InvalidArgument(
                f"credentials.{name} must be visible ASCII characters without blanks, 8000 at most.",
                field=f"credentials.{name}",
            )
    headers: dict[str, tuple[str, str | None]] = {}
    for place, header in enumerate(given.headers):
        field = f"credentials.headers[{place}]"
        name = header.name
        if not _HEADER.fullmatch(name) or name.lower() in _FRAMING:
            raise InvalidArgument(f"{field}.name is no name of a header that may be set.", field=f"{field}.name")
        if name.lower() in headers:
            raise InvalidArgument(f"{field}.name is there twice.", field=f"{field}.name")
        value = header.value if header.HasField("value") else None
        if value is not None and not _HEADER_VALUE.fullmatch(value):
            raise InvalidArgument(f"{field}.value must be visible ASCII characters.", field=f"{field}.value")
        headers[name.lower()] = (name, value)
    return Credentials(**keys, headers=tuple(headers.values()))


def compared(request: R, fingerprint: Callable[[str], str]) -> R:
    """The request as repeats of it are compared: a record of it holds fingerprints where credentials were."""
    shown = type(request)()
    shown.CopyFrom(request)
    for name, value in present(shown.credentials, "api_key", "access_key").items():
        setattr(shown.credentials, name, value and fingerprint(value))
    for header in shown.credentials.headers:
        if header.value:
            header.value = fingerprint(header.value)
    return shown


def _api(provider: pb.Provider) -> str | None:
    if provider.api not in _SPOKEN:
        raise _wrong("api", "is none that this server speaks")
    return _SPOKEN[provider.api]


def _base_url(provider: pb.Provider) -> str | None:
    url = provider.base_url
    if not url:
        return None
    if len(url) > _LONGEST_URL or not _VISIBLE.fullmatch(url):
        raise _wrong("base_url", "is no URL")
    try:
        parts = urlsplit(url)
        is_usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_usable = False
    if not is_usable:
        raise _wrong("base_url", "must be an http or https URL")
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise _wrong("base_url", "must hold neither credentials, which are given apart, nor a query")
    return url


def _text(name: str, form: re.Pattern[str]) -> Callable[[pb.Provider], str | None]:
    def read(provider: pb.Provider) -> str | None:
        value: str = getattr(provider, name)
        if value and not form.fullmatch(value):
            raise _wrong(name, "has characters that it cannot have, or too many")
        return value or None

    return read


def _wrong(name: str, problem: str) -> InvalidArgument:
    return InvalidArgument(f"provider.{name} {problem}.", field=f"provider.{name}")


CHANGES: Final[Mapping[str, Callable[[pb.Provider], Any]]] = {
    "api": _api,
    "base_url": _base_url,
    "api_version": _text("api_version", _VERSION),
    "region": _text("region", _REGION),
    "disabled": lambda provider: provider.disabled,
}
"""Paths of an update mask, and what they read; an absent field clears."""
