"""Identities of the contract and of Letta's API."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from mnemesh.agents.v1 import identities_pb2 as pb
from mnemesh.agents.v1 import identities_service_pb2 as rpc

from mnemesh_gateway.letta.convert.names import IDENTITY_TYPE_NAMES, IDENTITY_TYPES
from mnemesh_gateway.letta.convert.values import json_from_text, json_to_text, present, set_present
from mnemesh_gateway.letta.errors import invalid_field
from mnemesh_gateway.letta.schemas.identities import CreateIdentity, Identity, IdentityProperty, UpdateIdentity

_KINDS: Final = {"text": "string", "boolean": "boolean", "integer": "number", "number": "number", "json": "json"}


def identity_from_proto(identity: pb.Identity) -> Identity:
    """Returns an identity."""
    return Identity(
        id=identity.id,
        identifier_key=identity.identifier_key,
        name=identity.name,
        identity_type=IDENTITY_TYPE_NAMES.get(identity.type, "other"),
        project_id=present(identity.provenance, "project_id"),
        agent_ids=list(identity.agent_ids),
        block_ids=list(identity.block_ids),
        properties=[_property(item) for item in identity.properties],
    )


def identity_to_proto(body: CreateIdentity) -> pb.Identity:
    """Returns the message of an identity. Raises ValidationFailed if a property has another type than it says."""
    identity = pb.Identity(
        identifier_key=body.identifier_key,
        name=body.name,
        type=IDENTITY_TYPES[body.identity_type],
        properties=properties_to_proto(body.properties or (), "body", "properties"),
        agent_ids=body.agent_ids or (),
        block_ids=body.block_ids or (),
    )
    set_present(identity.provenance, project_id=body.project_id)
    return identity


def identity_update_to_proto(body: UpdateIdentity, identity_id: str, request_id: str) -> rpc.UpdateIdentityRequest:
    """Returns the request that makes the changes of a body. Its mask is empty if there are none."""
    identity = pb.Identity(id=identity_id)
    plain = {
        "identifier_key": body.identifier_key,
        "name": body.name,
        "type": IDENTITY_TYPES[body.identity_type] if body.identity_type else None,
    }
    set_present(identity, **plain)
    request = rpc.UpdateIdentityRequest(request_id=request_id)
    request.update_mask.paths.extend(name for name, value in plain.items() if value is not None)
    for name in ("agent_ids", "block_ids"):
        ids: list[str] | None = getattr(body, name)
        if ids is not None:
            getattr(identity, name).extend(ids)
            request.update_mask.paths.append(name)
    if body.properties is not None:
        identity.properties.extend(properties_to_proto(body.properties, "body", "properties"))
        request.update_mask.paths.append("properties")
    request.identity.CopyFrom(identity)
    return request


def properties_to_proto(given: Iterable[IdentityProperty], *loc: str) -> list[pb.IdentityProperty]:
    """Returns properties. Raises ValidationFailed if a value has another type than the property says."""
    return [_property_to_proto(item, *loc, number) for number, item in enumerate(given)]


def _property_to_proto(item: IdentityProperty, *loc: str | int) -> pb.IdentityProperty:
    match item.type, item.value:
        case "string", str(text):
            return pb.IdentityProperty(key=item.key, text=text)
        case "boolean", bool(value):
            return pb.IdentityProperty(key=item.key, boolean=value)
        case "number", int(value) if not isinstance(item.value, bool):
            return pb.IdentityProperty(key=item.key, integer=value)
        case "number", float(value):
            return pb.IdentityProperty(key=item.key, number=value)
        case "json", value if value is not None:
            return pb.IdentityProperty(key=item.key, json=json_to_text(value) or "null")
    raise invalid_field(f"Input should be a valid {item.type}", *loc, "value")


def _property(item: pb.IdentityProperty) -> dict[str, Any]:
    kind = item.WhichOneof("value") or "text"
    value = getattr(item, kind)
    return {"key": item.key, "type": _KINDS[kind], "value": json_from_text(value) if kind == "json" else value}
