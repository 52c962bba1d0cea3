"""Providers and their credentials."""

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from mnemesh.agents.v1 import models_pb2 as pb
from mnemesh.agents.v1 import models_service_pb2 as rpc
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.ids import require_id
from mnemesh_kit.time import optional_timestamp_to_proto

from mnemesh_orchestrator.model.providers import (
    Credentials,
    ProviderDraft,
    ProviderFilter,
    ProviderOrder,
    ProviderView,
)
from mnemesh_orchestrator.rpc.convert.fields import enum_from_proto, optional_field, present_fields
from mnemesh_orchestrator.rpc.convert.models import API_TO_PROTO, CATEGORY_FROM_PROTO

R = TypeVar("R", rpc.CreateProviderRequest, rpc.UpdateProviderRequest)

_API_FROM_PROTO: Final = {number: name for name, number in API_TO_PROTO.items() if name != "rehearsal"} | {
    pb.MODEL_API_UNSPECIFIED: None
}
_CATEGORY_TO_PROTO: Final = {category: number for number, category in CATEGORY_FROM_PROTO.items()}
_ORDER_FROM_PROTO: Final = {
    rpc.PROVIDER_ORDER_BY_UNSPECIFIED: ProviderOrder.CREATED_AT,
    rpc.PROVIDER_ORDER_BY_CREATE_TIME: ProviderOrder.CREATED_AT,
    rpc.PROVIDER_ORDER_BY_UPDATE_TIME: ProviderOrder.UPDATED_AT,
    rpc.PROVIDER_ORDER_BY_NAME: ProviderOrder.NAME,
}
_READERS: Final[Mapping[str, Callable[[pb.Provider], Any]]] = {
    "api": lambda provider: enum_from_proto(_API_FROM_PROTO, provider.api, "provider.api"),
    "base_url": lambda provider: provider.base_url or None,
    "api_version": lambda provider: provider.api_version or None,
    "region": lambda provider: provider.region or None,
    "disabled": lambda provider: provider.disabled,
}
"""The paths of an update mask, and the values that they read. An absent field clears its value."""


def provider_to_proto(view: ProviderView) -> pb.Provider:
    """Returns the message of a provider, without its credentials."""
    draft = view.draft
    return pb.Provider(
        id=view.id,
        name=draft.name,
        type=draft.type,
        category=_CATEGORY_TO_PROTO[view.category],
        api=pb.MODEL_API_UNSPECIFIED if draft.api is None else API_TO_PROTO[draft.api],
        base_url=draft.base_url,
        api_version=draft.api_version,
        region=draft.region,
        disabled=draft.disabled,
        has_api_key=view.has_api_key,
        has_access_key=view.has_access_key,
        has_headers=view.has_headers,
        last_refresh_error=view.refresh_error,
        model_count=view.model_count,
        last_refresh_time=optional_timestamp_to_proto(view.refreshed_at),
        create_time=optional_timestamp_to_proto(view.created_at),
        update_time=optional_timestamp_to_proto(view.updated_at),
    )


def provider_draft_from_proto(provider: pb.Provider, *, default_name: str = "") -> ProviderDraft:
    """Returns the draft of a provider. Raises InvalidArgument if its API is unknown."""
    values = {path: read(provider) for path, read in _READERS.items()}
    return ProviderDraft(name=provider.name or default_name, type=provider.type, **values)


def provider_update_from_proto(request: rpc.UpdateProviderRequest) -> dict[str, Any]:
    """Returns the new values of a provider by the field names of `ProviderDraft`.

    Raises:
        InvalidArgument: The mask names a field that cannot be updated, or the request changes nothing.
    """
    paths = request.update_mask.paths
    for path in paths:
        if path not in _READERS:
            raise InvalidArgument(f"update_mask must not name {path}.", field="update_mask")
    if not paths and not request.HasField("credentials"):
        raise InvalidArgument(
            "update_mask must name at least one field, or the request must have credentials.", field="update_mask"
        )
    return {path: _READERS[path](request.provider) for path in paths}


def credentials_from_proto(message: pb.ProviderCredentials) -> Credentials:
    """Returns the credentials of a request."""
    headers = tuple((header.name, optional_field(header, "value")) for header in message.headers)
    return Credentials(**present_fields(message, "api_key", "access_key"), headers=headers)


def request_without_credentials(request: R, fingerprint: Callable[[str], str]) -> R:
    """Returns a copy of a request with a fingerprint in place of each credential, to compare repeated requests by."""
    copy = type(request)()
    copy.CopyFrom(request)
    for name, value in present_fields(copy.credentials, "api_key", "access_key").items():
        setattr(copy.credentials, name, value and fingerprint(value))
    for header in copy.credentials.headers:
        if header.value:
            header.value = fingerprint(header.value)
    return copy


def provider_id_from_proto(value: str, field: str = "provider_id") -> str:
    """Returns the id of a provider. Raises InvalidArgument if it is malformed."""
    return require_id(value, "provider", field)


def provider_filter_from_proto(request: rpc.ListProvidersRequest) -> ProviderFilter:
    """Returns the filter of a list of providers. Raises InvalidArgument if a category is unknown."""
    categories = (enum_from_proto(CATEGORY_FROM_PROTO, number, "categories") for number in request.categories)
    return ProviderFilter(
        provider_ids=tuple(request.provider_ids),
        name=optional_field(request, "name"),
        types=tuple(request.types),
        categories=tuple(categories),
    )


def provider_order_from_proto(value: rpc.ProviderOrderBy.ValueType) -> ProviderOrder:
    """Returns the sort key of a list. Raises InvalidArgument if it is unknown."""
    return enum_from_proto(_ORDER_FROM_PROTO, value, "order_by")
