"""Identities and their properties."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

from mnemesh.agents.v1 import identities_pb2 as pb
from mnemesh.agents.v1 import identities_service_pb2 as rpc
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.ids import require_id
from mnemesh_kit.time import timestamp_to_proto
from mnemesh_types.provenance import Provenance

from mnemesh_orchestrator.model.identities import (
    Identity,
    IdentityFilter,
    IdentityOrder,
    IdentityProperty,
    IdentityType,
    PropertyChange,
)
from mnemesh_orchestrator.rpc.convert.fields import enum_from_proto, optional_field, present_fields

_TYPE_TO_PROTO: Final = {kind: pb.IdentityType.Value(f"IDENTITY_TYPE_{kind.name}") for kind in IdentityType}
_TYPE_FROM_PROTO: Final = {number: kind for kind, number in _TYPE_TO_PROTO.items()}
_ORDER_FROM_PROTO: Final = {
    rpc.IDENTITY_ORDER_BY_UNSPECIFIED: IdentityOrder.CREATED_AT,
    rpc.IDENTITY_ORDER_BY_CREATE_TIME: IdentityOrder.CREATED_AT,
    rpc.IDENTITY_ORDER_BY_UPDATE_TIME: IdentityOrder.UPDATED_AT,
    rpc.IDENTITY_ORDER_BY_NAME: IdentityOrder.NAME,
}
_PROVENANCE_IDS: Final = ("project_id", "template_id", "base_template_id", "deployment_id", "entity_id")
_PROVENANCE_PATHS: Final = {f"provenance.{name}": name for name in _PROVENANCE_IDS}
_ATTACHMENTS: Final = ("agent_ids", "block_ids")


def identity_to_proto(identity: Identity, agent_ids: Sequence[str] = (), block_ids: Sequence[str] = ()) -> pb.Identity:
    """Returns the message of an identity, with the ids of its agents and blocks if the view has them."""
    return pb.Identity(
        id=identity.id,
        identifier_key=identity.identifier_key,
        name=identity.name,
        type=_TYPE_TO_PROTO[identity.type],
        properties=[_property_to_proto(item) for item in identity.properties],
        agent_ids=agent_ids,
        block_ids=block_ids,
        create_time=timestamp_to_proto(identity.created_at),
        update_time=timestamp_to_proto(identity.updated_at),
        provenance=identity.provenance.to_proto(),
    )


def _property_to_proto(item: IdentityProperty) -> pb.IdentityProperty:
    value: dict[str, Any] = {item.kind: item.value}
    return pb.IdentityProperty(key=item.key, **value)


def identity_draft_from_proto(message: pb.Identity) -> Identity:
    """Returns the identity that a caller wants to create, without id, organization and times.

    Raises:
        InvalidArgument: The type is missing or unknown.
    """
    epoch = datetime.fromtimestamp(0, UTC)
    empty = Identity("", "", "", "", IdentityType.OTHER, epoch, epoch)
    values = {name: read(message) for name, read in _READERS.items()}
    return replace(empty, **values, provenance=Provenance(**present_fields(message.provenance, *_PROVENANCE_IDS)))


def identity_update_from_proto(request: rpc.UpdateIdentityRequest) -> tuple[str, dict[str, Any]]:
    """Returns the id of the identity, and the new values by the field names of `Identity`.

    The value of `provenance` is a dictionary of those of its fields that change.

    Raises:
        InvalidArgument: The id is malformed, the mask is empty, or it names a field that cannot be updated.
    """
    message, paths = request.identity, request.update_mask.paths
    identity_id = require_id(message.id, "identity", "identity.id")
    if not paths:
        raise InvalidArgument("update_mask must name at least one field.", field="update_mask")
    for path in paths:
        if path not in _READERS and path not in _PROVENANCE_PATHS and path not in _ATTACHMENTS:
            raise InvalidArgument(f"update_mask must not name {path}.", field="update_mask")
    changes = {path: _READERS[path](message) for path in paths if path in _READERS}
    names = [_PROVENANCE_PATHS[path] for path in paths if path in _PROVENANCE_PATHS]
    if names:
        changes["provenance"] = {name: optional_field(message.provenance, name) for name in names}
    return identity_id, changes


def attachments_from_proto(request: rpc.UpdateIdentityRequest) -> tuple[tuple[str, ...] | None, tuple[str, ...] | None]:
    """Returns the ids of the agents and of the blocks of an update; None for those that the mask does not name."""
    paths, message = request.update_mask.paths, request.identity
    return (
        agent_ids_from_proto(message.agent_ids) if "agent_ids" in paths else None,
        block_ids_from_proto(message.block_ids) if "block_ids" in paths else None,
    )


def agent_ids_from_proto(ids: Sequence[str]) -> tuple[str, ...]:
    """Returns the ids of agents, each once. Raises InvalidArgument if one is malformed."""
    return tuple(dict.fromkeys(require_id(item, "agent", "identity.agent_ids") for item in ids))


def block_ids_from_proto(ids: Sequence[str]) -> tuple[str, ...]:
    """Returns the ids of blocks, each once. Raises InvalidArgument if one is malformed."""
    return tuple(dict.fromkeys(require_id(item, "block", "identity.block_ids") for item in ids))


def property_changes_from_proto(properties: Sequence[pb.IdentityProperty]) -> tuple[PropertyChange, ...]:
    """Returns changes of properties, in order. A property without a value is removed."""
    return tuple(PropertyChange(item.key, _property_from_proto(item)) for item in properties)


def _property_from_proto(item: pb.IdentityProperty) -> IdentityProperty | None:
    kind = item.WhichOneof("value")
    return None if kind is None else IdentityProperty(item.key, kind, getattr(item, kind))


def _properties_from_proto(message: pb.Identity) -> tuple[IdentityProperty, ...]:
    changes = property_changes_from_proto(message.properties)
    return tuple(change.property for change in changes if change.property is not None)


def _type_from_proto(message: pb.Identity) -> IdentityType:
    if message.type == pb.IDENTITY_TYPE_UNSPECIFIED:
        raise InvalidArgument("identity.type is required.", field="identity.type")
    return enum_from_proto(_TYPE_FROM_PROTO, message.type, "identity.type")


_READERS: Final[Mapping[str, Callable[[pb.Identity], Any]]] = {
    "identifier_key": lambda message: message.identifier_key,
    "name": lambda message: message.name,
    "type": _type_from_proto,
    "properties": _properties_from_proto,
}
"""The paths of an update mask that name a field of the record, and the values that they read."""


def identity_filter_from_proto(message: rpc.IdentityFilter) -> tuple[IdentityFilter, str | None]:
    """Returns the filter of a list or a count, and the id of the block whose identities it selects.

    Raises:
        InvalidArgument: An id is malformed, or a type is unknown. Metadata: field.
    """
    ids = [require_id(identity_id, "identity", "filter.identity_ids") for identity_id in message.identity_ids]
    block_id = optional_field(message, "block_id")
    filter_ = IdentityFilter(
        identity_ids=tuple(ids) or None,
        **present_fields(message, "identifier_key", "name", "name_search", "project_id"),
        types=tuple(enum_from_proto(_TYPE_FROM_PROTO, kind, "filter.types") for kind in message.types),
        agent_id=require_id(message.agent_id, "agent", "filter.agent_id") if message.HasField("agent_id") else None,
    )
    return filter_, None if block_id is None else require_id(block_id, "block", "filter.block_id")


def identity_order_from_proto(value: rpc.IdentityOrderBy.ValueType) -> IdentityOrder:
    """Returns the sort key of a list. Raises InvalidArgument if it is unknown."""
    return enum_from_proto(_ORDER_FROM_PROTO, value, "order_by")


def target_from_proto(request: rpc.AttachIdentityRequest | rpc.DetachIdentityRequest) -> dict[str, str]:
    """Returns the agent_id or the block_id of a request. Raises InvalidArgument if it has neither."""
    match request.WhichOneof("target"):
        case "agent_id":
            return {"agent_id": require_id(request.agent_id, "agent", "agent_id")}
        case "block_id":
            return {"block_id": require_id(request.block_id, "block", "block_id")}
        case _:
            raise InvalidArgument("target must be set to agent_id or block_id.", field="target")
