"""Conversions of groups and identities."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from mnemesh.agents.v1 import groups_pb2 as pb
from mnemesh.agents.v1 import groups_service_pb2 as rpc
from mnemesh.agents.v1 import identities_pb2 as identities_pb
from mnemesh.agents.v1 import identities_service_pb2 as identities_rpc

from mnemesh_gateway.letta.convert.values import (
    IDENTITY_TYPE_NAMES,
    IDENTITY_TYPES,
    json_from_text,
    json_to_text,
    present,
    set_present,
)
from mnemesh_gateway.letta.errors import invalid_field
from mnemesh_gateway.letta.schemas.groups import (
    CreateGroup,
    CreateIdentity,
    Group,
    GroupManager,
    Identity,
    IdentityProperty,
    UpdateGroup,
    UpdateIdentity,
    settings_of,
)

BEFORE_FIRST_TURN: Final = -1
"""The count of turns with which Letta's sleeptime groups begin: their members run after the first turn."""

_KINDS: Final = {"text": "string", "boolean": "boolean", "integer": "number", "number": "number", "json": "json"}


def group_from_proto(group: pb.Group) -> Group:
    """Returns a group with the settings of its manager."""
    kind = _kind(group)
    settings: Any = getattr(group.manager_config, kind)
    names = {field.name for field in settings.DESCRIPTOR.fields}

    def of(name: str) -> Any:
        return present(settings, name) if name in names else None

    return Group(
        id=group.id,
        manager_type=kind,
        agent_ids=list(group.agent_ids),
        description=group.description,
        project_id=present(group.provenance, "project_id"),
        template_id=present(group.provenance, "template_id"),
        base_template_id=present(group.provenance, "base_template_id"),
        deployment_id=present(group.provenance, "deployment_id"),
        shared_block_ids=list(group.shared_block_ids),
        manager_agent_id=settings.manager_agent_id if "manager_agent_id" in names else None,
        termination_token=of("termination_token"),
        max_turns=of("max_turns"),
        sleeptime_agent_frequency=of("sleeptime_agent_frequency"),
        turns_counter=_turns_counter(group),
        last_processed_message_id=present(group, "last_processed_message_id"),
        max_message_buffer_length=of("max_message_buffer_length"),
        min_message_buffer_length=of("min_message_buffer_length"),
        hidden=group.hidden,
    )


def _turns_counter(group: pb.Group) -> int | None:
    """Returns the count as Letta has it: that of the turns since the members ran, if they do not run after each."""
    frequency = group.manager_config.sleeptime.sleeptime_agent_frequency
    if not frequency:
        return None
    return group.turns_counter % frequency if group.turns_counter >= 0 else group.turns_counter


def group_to_proto(body: CreateGroup) -> pb.Group:
    """Returns the message of a group to create. Raises ValidationFailed if the manager's agent is missing."""
    group = pb.Group(
        description=body.description,
        agent_ids=body.agent_ids,
        shared_block_ids=body.shared_block_ids,
        hidden=bool(body.hidden),
    )
    set_present(group.provenance, project_id=body.project_id)
    if body.manager_config is not None:
        group.manager_config.CopyFrom(_manager(body.manager_config))
    if group.manager_config.sleeptime.sleeptime_agent_frequency:
        group.turns_counter = BEFORE_FIRST_TURN
    return group


def group_update_to_proto(body: UpdateGroup, current: pb.Group, request_id: str) -> rpc.UpdateGroupRequest:
    """Returns the request that makes the changes of a body. Its mask is empty if there are none.

    Args:
        body: of the client.
        current: the group as it is. Its manager keeps the settings that the body leaves out, unless its kind changes.
        request_id: of the update.
    """
    group = pb.Group(id=current.id)
    request = rpc.UpdateGroupRequest(request_id=request_id)
    paths = request.update_mask.paths
    for name in ("agent_ids", "shared_block_ids"):
        ids: list[str] | None = getattr(body, name)
        if ids is not None:
            getattr(group, name).extend(ids)
            paths.append(name)
    if body.description is not None:
        group.description = body.description
        paths.append("description")
    if body.project_id is not None:
        group.provenance.project_id = body.project_id
        paths.append("provenance.project_id")
    given = body.manager_config
    if given is not None and given.manager_type == _kind(current):
        kind = given.manager_type
        settings = _settings(kind, given)
        if settings:
            set_present(getattr(group.manager_config, kind), **settings)
            paths.extend(f"manager_config.{kind}.{name}" for name in settings)
    elif given is not None:
        group.manager_config.CopyFrom(_manager(given))
        paths.append("manager_config")
    if group.manager_config.HasField("sleeptime"):
        # Letta starts to count when a frequency is first set. A later frequency or manager does not reset the count.
        count = _turns_counter(current)
        group.turns_counter = BEFORE_FIRST_TURN if count is None else count
        paths.append("turns_counter")
    request.group.CopyFrom(group)
    return request


def _kind(group: pb.Group) -> str:
    return group.manager_config.WhichOneof("config") or "round_robin"


def _manager(given: GroupManager) -> pb.ManagerConfig:
    config = pb.ManagerConfig()
    manager: Any = getattr(config, given.manager_type)
    manager.SetInParent()
    if "manager_agent_id" in manager.DESCRIPTOR.fields_by_name and not given.manager_agent_id:
        raise invalid_field("Field required", "body", "manager_config", "manager_agent_id")
    set_present(manager, **_settings(given.manager_type, given))
    return config


def _settings(kind: str, given: GroupManager) -> dict[str, Any]:
    """Returns the settings that managers of a kind have."""
    known = getattr(pb.ManagerConfig(), kind).DESCRIPTOR.fields_by_name
    return {name: value for name, value in settings_of(given).items() if name in known}


def identity_from_proto(identity: identities_pb.Identity) -> Identity:
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


def identity_to_proto(body: CreateIdentity) -> identities_pb.Identity:
    """Returns the message of an identity. Raises ValidationFailed if a property has another type than it says."""
    identity = identities_pb.Identity(
        identifier_key=body.identifier_key,
        name=body.name,
        type=IDENTITY_TYPES[body.identity_type],
        properties=properties_to_proto(body.properties or (), "body", "properties"),
        agent_ids=body.agent_ids or (),
        block_ids=body.block_ids or (),
    )
    set_present(identity.provenance, project_id=body.project_id)
    return identity


def identity_update_to_proto(
    body: UpdateIdentity, identity_id: str, request_id: str
) -> identities_rpc.UpdateIdentityRequest:
    """Returns the request that makes the changes of a body. Its mask is empty if there are none."""
    identity = identities_pb.Identity(id=identity_id)
    plain = {
        "identifier_key": body.identifier_key,
        "name": body.name,
        "type": IDENTITY_TYPES[body.identity_type] if body.identity_type else None,
    }
    set_present(identity, **plain)
    request = identities_rpc.UpdateIdentityRequest(request_id=request_id)
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


def properties_to_proto(given: Iterable[IdentityProperty], *loc: str) -> list[identities_pb.IdentityProperty]:
    """Returns properties. Raises ValidationFailed if a value has another type than the property says."""
    return [_property_to_proto(item, *loc, number) for number, item in enumerate(given)]


def _property_to_proto(item: IdentityProperty, *loc: str | int) -> identities_pb.IdentityProperty:
    match item.type, item.value:
        case "string", str(text):
            return identities_pb.IdentityProperty(key=item.key, text=text)
        case "boolean", bool(value):
            return identities_pb.IdentityProperty(key=item.key, boolean=value)
        case "number", int(value) if not isinstance(item.value, bool):
            return identities_pb.IdentityProperty(key=item.key, integer=value)
        case "number", float(value):
            return identities_pb.IdentityProperty(key=item.key, number=value)
        case "json", value if value is not None:
            return identities_pb.IdentityProperty(key=item.key, json=json_to_text(value) or "null")
    raise invalid_field(f"Input should be a valid {item.type}", *loc, "value")


def _property(item: identities_pb.IdentityProperty) -> dict[str, Any]:
    kind = item.WhichOneof("value") or "text"
    value = getattr(item, kind)
    return {"key": item.key, "type": _KINDS[kind], "value": json_from_text(value) if kind == "json" else value}
