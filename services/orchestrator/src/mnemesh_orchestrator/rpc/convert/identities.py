"""Identities and their properties."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, Final

from mnemesh.agents.v1 import identities_pb2 as pb
from mnemesh.agents.v1 import identities_service_pb2 as rpc
from mnemesh_kit.errors import InvalidArgument
from mnemesh_kit.ids import require_id, require_ids
from mnemesh_types.twin import Conversion, enum_of, optional_field, register, written

from mnemesh_orchestrator.model.identities import (
    Identity,
    IdentityFilter,
    IdentityOrder,
    IdentityProperty,
    IdentityType,
    PropertyChange,
)
from mnemesh_orchestrator.rpc.convert.runs import PROVENANCE_IDS

enum_of(pb.IdentityType, IdentityType)
enum_of(rpc.IdentityOrderBy, IdentityOrder, "CREATED_AT")
IDENTITY: Final = Conversion(pb.Identity, Identity)
_FILTER: Final = Conversion(rpc.IdentityFilter, IdentityFilter)
_WRITABLE: Final = ("identifier_key", "name", "type", "properties", *PROVENANCE_IDS)
_ATTACHMENTS: Final = ("agent_ids", "block_ids")


def _read_property(item: pb.IdentityProperty, _field: str = "") -> IdentityProperty | None:
    kind = item.WhichOneof("value")
    return None if kind is None else IdentityProperty(item.key, kind, getattr(item, kind))


def _write_property(item: IdentityProperty) -> pb.IdentityProperty:
    value: dict[str, Any] = {item.kind: item.value}
    return pb.IdentityProperty(key=item.key, **value)


register(pb.IdentityProperty, _read_property, _write_property)


def identity_draft_from_proto(message: pb.Identity, fields: Collection[str] = _WRITABLE) -> Identity:
    """Returns the identity that a caller wants to create, without id, organization and times."""
    draft = IDENTITY.from_proto(written(message, fields), "identity", organization_id="")
    return replace(draft, properties=_with_values(draft.properties))


def _with_values(properties: Sequence[IdentityProperty | None]) -> tuple[IdentityProperty, ...]:
    return tuple(item for item in properties if item is not None)


def identity_update_from_proto(request: rpc.UpdateIdentityRequest) -> tuple[str, dict[str, Any]]:
    """Returns the id of the identity, and the new values by the field names of `Identity`.

    The value of `provenance` is a dictionary of those of its fields that change.
    """
    identity_id = require_id(request.identity.id, "identity", "identity.id")
    changes = IDENTITY.changes(request.identity, request.update_mask, (*_WRITABLE, *_ATTACHMENTS), "identity")
    if "properties" in changes:
        changes["properties"] = _with_values(changes["properties"])
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
    return tuple(PropertyChange(item.key, _read_property(item)) for item in properties)


def identity_filter_from_proto(message: rpc.IdentityFilter) -> tuple[IdentityFilter, str | None]:
    """Returns the filter of a list or a count, and the id of the block whose identities it selects."""
    require_ids(message, "filter", identity_ids="identity", agent_id="agent", block_id="block")
    return _FILTER.from_proto(message, "filter"), optional_field(message, "block_id")


def target_from_proto(request: rpc.AttachIdentityRequest | rpc.DetachIdentityRequest) -> dict[str, str]:
    """Returns the agent_id or the block_id of a request. Raises InvalidArgument if it has neither."""
    match request.WhichOneof("target"):
        case "agent_id":
            return {"agent_id": require_id(request.agent_id, "agent", "agent_id")}
        case "block_id":
            return {"block_id": require_id(request.block_id, "block", "block_id")}
        case _:
            raise InvalidArgument("target must be set to agent_id or block_id.", field="target")
